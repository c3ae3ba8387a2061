"""Google's advice on spot capacity (`advice.capacity`), which orders offers of equal price.

Google scores the best zone of a region for a request. Advice is optional: if the API fails or is missing, offers stay
ordered by price.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence

import msgspec

from outlast.clouds.cloud import Offer
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.errors import Doc
from outlast.clouds.geography import distance
from outlast.errors import CloudError, CloudUnreachable, Throttled

# How long advice is cached, and how long a refusal: capacity changes within minutes, missing rights do not.
_FRESH_S, _REFUSED_S = 300.0, 3600.0
# Only the regions nearest to the data, and the cheapest of them, are queried, because they are tried first.
_REGIONS_MAX = 3
_FIELDS = "recommendations(scores(obtainability,estimatedUptime),shards(zone,machineType))"


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The best zone of a region for a machine type, and the chance that it has capacity: 0 to 1."""

    zone: str
    type: str
    chance: float
    # The expected uptime of a spot machine; 0: unknown.
    uptime_s: float = 0.0


class Adviser:
    """Fetches and caches advice. May be used from many threads at once."""

    def __init__(self, client: GcpClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        # Region, types and zones → when the entry expires, and the advice.
        self._known: dict[tuple[str, ...], tuple[float, tuple[Advice, ...]]] = {}

    def rank(self, offers: Sequence[Offer], near: str = "") -> list[Offer]:
        """Return the offers by price; of equal prices, the likeliest capacity first."""
        if not offers or not offers[0].spot or len({offer.zone for offer in offers}) < 2:
            return list(offers)
        found = dict.fromkeys(offer.region for offer in offers)
        regions = sorted(found, key=lambda region: distance(region, near))[:_REGIONS_MAX]
        chances: dict[tuple[str, str], float] = {}
        best: dict[str, float] = {}
        uptimes: dict[tuple[str, str], float] = {}
        for region in regions:
            for one in self._advice_for(region, [offer for offer in offers if offer.region == region]):
                chances[one.zone, one.type] = one.chance
                uptimes[one.zone, one.type] = one.uptime_s
                best[region] = max(one.chance, best.get(region, 0.0))

        def rank(offer: Offer) -> tuple[float, float]:
            # A zone without advice ranks a little below the best zone of its region.
            named = chances.get((offer.zone, offer.type), best.get(offer.region, 0.5) * 0.9)
            return offer.price_usd_per_hour, -named

        advised = [
            msgspec.structs.replace(offer, advised_life_s=uptimes.get((offer.zone, offer.type), 0.0))
            for offer in offers
        ]
        return sorted(advised, key=rank)

    def _advice_for(self, region: str, offers: list[Offer]) -> tuple[Advice, ...]:
        types, zones = sorted({offer.type for offer in offers}), sorted({offer.zone for offer in offers})
        key = (region, *types, *zones)
        with self._lock:
            until, known = self._known.get(key, (0.0, ()))
        if time.monotonic() < until:
            return known
        cache_s = _FRESH_S
        try:
            path = f"regions/{region}/advice/capacity"
            body = _request_body(offers[0], types, zones)
            known = tuple(_read(self._client.compute("POST", path, query={"fields": _FIELDS}, body=body).doc))
        except (Throttled, CloudUnreachable):
            known = ()
        except CloudError:
            known, cache_s = (), _REFUSED_S
        with self._lock:
            self._known[key] = (time.monotonic() + cache_s, known)
        return known


def _request_body(offer: Offer, types: Iterable[str], zones: Iterable[str]) -> Doc:
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
    """Yield the recommendations; skip those in an unknown form."""
    for one in doc.get("recommendations", []):
        chance = one.get("scores", {}).get("obtainability")
        uptime_s = _seconds(str(one.get("scores", {}).get("estimatedUptime", "")))
        for shard in one.get("shards", []):
            if isinstance(chance, int | float) and shard.get("zone") and shard.get("machineType"):
                zone, type = last(shard["zone"]), last(shard["machineType"])
                yield Advice(zone=zone, type=type, chance=float(chance), uptime_s=uptime_s)


def _seconds(text: str) -> float:
    """Return a duration such as `86400s`; 0 if it is missing or in an unknown form."""
    number = text.removesuffix("s")
    return float(number) if number.replace(".", "", 1).isdigit() else 0.0
