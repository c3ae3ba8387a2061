"""Machine prices of all clouds, and the prices of traffic between machines and a workspace."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.app.clouds import clouds
from outlast.billing.egress import rates as traffic_rates
from outlast.clouds.cloud import Cloud, Offer
from outlast.clouds.cloud import Requirements as Requirements
from outlast.clouds.geography import DATE as DATE
from outlast.clouds.location import bucket_location
from outlast.clouds.traits import known_clouds
from outlast.errors import CloudError, OutlastError, UsageError
from outlast.store.parallel import in_parallel

__all__ = [
    "DATE",
    "PriceAnswer",
    "Requirements",
    "ask",
    "ask_clouds",
    "cheapest_first",
    "known_clouds",
    "location_of",
    "no_offers",
    "traffic_rates",
]


class PriceAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one cloud: its offers, each with the origin of its price, or why it has none."""

    cloud: str
    offers: tuple[Offer, ...] = ()
    problem: str = ""
    hint: str = ""


def location_of(url: str) -> str:
    """Return the region of the bucket at a URL; empty for a folder."""
    return bucket_location(url, clouds())


def ask_clouds(names: Sequence[str], needs: Requirements, kinds: Sequence[bool]) -> list[PriceAnswer]:
    """Return the offers of each cloud, of all without names; `kinds` has True for spot, False for on demand."""
    return list(in_parallel(lambda name: ask(clouds()[name], needs, kinds), list(names or known_clouds())))


def ask(cloud: Cloud, needs: Requirements, kinds: Sequence[bool]) -> PriceAnswer:
    """Return the offers of a cloud, or its error."""
    try:
        found = [offer for spot in kinds for offer in cloud.offers(msgspec.structs.replace(needs, spot=spot))]
    except OutlastError as problem:
        return PriceAnswer(cloud=cloud.name, problem=problem.message.partition("\n")[0], hint=problem.hint)
    return PriceAnswer(cloud=cloud.name, offers=tuple(found))


def cheapest_first(answers: Sequence[PriceAnswer], *, everything: bool) -> list[Offer]:
    """Return the offers of all clouds; unless `everything`, the cheapest zone of each type, spot and on demand."""
    offers = [offer for answer in answers for offer in answer.offers]
    offers.sort(key=lambda offer: (offer.price_usd_per_hour, offer.cloud, offer.zone, offer.type))
    if everything:
        return offers
    kept: dict[tuple[str, str, str, int, bool], Offer] = {}
    for offer in offers:
        kept.setdefault((offer.cloud, offer.type, offer.gpu, offer.gpus, offer.spot), offer)
    return list(kept.values())


def no_offers(answers: Sequence[PriceAnswer]) -> OutlastError:
    if all(answer.problem for answer in answers):
        return CloudError("no cloud could be queried", hint="`outlast doctor` lists the problems")
    return UsageError("no machine matches", hint="reduce the requirements, or use a range such as `8+`")
