"""Where spot machines are to be had, as far as Google says (`advice.capacity`). Nobody depends on it.

Google scores a region's best zone for a wish. Where it does not answer, is not there or refuses, there is no advice,
and offers stay in the order of their prices.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from outlast.clouds.cloud import Offer
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.errors import Doc
from outlast.errors import CloudError, CloudUnreachable, Throttled

# Capacity changes by the minute; a refusal for want of rights, or of the API, does not.
_FRESH_S, _REFUSED_S = 300.0, 3600.0
# So many regions are asked about: the cheapest ones, which are tried first.
_REGIONS_MAX = 3
_FIELDS = "recommendations(scores/obtainability,shards(zone,machineType))"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The best zone of a region for one of the types, and how likely it has room: 0 to 1."""

    zone: str
    type: str
    chance: float


class Adviser:
    """Remembers what it was told for some minutes. May be used from many threads at once."""

    def __init__(self, client: GcpClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        # Region and types → until when it is remembered, and what was said.
        self._known: dict[tuple[str, ...], tuple[float, tuple[Advice, ...]]] = {}

    def ordered(self, offers: Sequence[Offer]) -> list[Offer]:
        """Cheapest first as they were; of equal prices the likeliest first, then those of which nothing is known."""
        if not offers or not offers[0].spot or len({offer.zone for offer in offers}) < 2:
            return list(offers)
        regions = list(dict.fromkeys(offer.region for offer in offers))[:_REGIONS_MAX]
        chances: dict[tuple[str, str], float] = {}
        best: dict[str, float] = {}
        for region in regions:
            for one in self._about(region, [offer for offer in offers if offer.region == region]):
                chances[one.zone, one.type] = one.chance
                best[region] = max(one.chance, best.get(region, 0.0))

        def rank(offer: Offer) -> tuple[float, float]:
            # A zone that was not named is worse than the one that was, and no better than the whole region.
            named = chances.get((offer.zone, offer.type), best.get(offer.region, 0.5) * 0.9)
            return offer.price_usd_per_hour, -named

        return sorted(offers, key=rank)

    def _about(self, region: str, offers: list[Offer]) -> tuple[Advice, ...]:
        types, zones = sorted({offer.type for offer in offers}), sorted({offer.zone for offer in offers})
        key = (region, *types, *zones)
        with self._lock:
            until, known = self._known.get(key, (0.0, ()))
        if time.monotonic() < until:
            return known
        remembered_s = _FRESH_S
        try:
            path = f"regions/{region}/advice/capacity"
            body = _question(offers[0], types, zones)
            known = tuple(_read(self._client.compute("POST", path, query={"fields": _FIELDS}, body=body).doc))
        except (Throttled, CloudUnreachable):
            known = ()
        except CloudError:
            known, remembered_s = (), _REFUSED_S
        with self._lock:
            self._known[key] = (time.monotonic() + remembered_s, known)
        return known


def _question(offer: Offer, types: Iterable[str], zones: Iterable[str]) -> Doc:
    return {
        "size": 1,
        "distributionPolicy": {
            "targetShape": "ANY_SINGLE_ZONE",
            "zones": [{"zone": f"zones/{zone}"} for zone in zones],
        },
        "instanceFlexibilityPolicy": {"instanceSelections": {"any": {"machineTypes": list(types)}}},
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT" if offer.spot else "STANDARD"}},
    }


def _read(doc: Doc) -> Iterable[Advice]:
    """What is not as we know it says nothing to us."""
    for one in doc.get("recommendations", []):
        chance = one.get("scores", {}).get("obtainability")
        for shard in one.get("shards", []):
            if isinstance(chance, int | float) and shard.get("zone") and shard.get("machineType"):
                yield Advice(zone=last(shard["zone"]), type=last(shard["machineType"]), chance=float(chance))
