"""Where regions are, and list prices of traffic between them. Pure data, importable from everywhere.

A location is a region, or the part of the world over which a bucket is spread, such as `US` or `EUR4`.
"""

from __future__ import annotations

import re

# Date of the list prices of traffic, for the first terabytes.
DATE = "2026-06"

# Beginning of a location → its continent. The first that fits decides.
_CONTINENTS = (
    (r"us|ca-|mx-|nam|northamerica-", "north america"),
    (r"sa-|southamerica-", "south america"),
    (r"eu", "europe"),
    (r"ap-southeast-(2|4|6)|australia-", "oceania"),
    (r"ap-|asia|cn-", "asia"),
    (r"me-|il-", "middle east"),
    (r"af-|africa-", "africa"),
)
# Source region of Amazon → USD per GB to its other regions; all others cost the usual price.
_AMAZON_USD = {
    "af-south-1": 0.147,
    "ap-east-1": 0.09,
    "ap-northeast-1": 0.09,
    "ap-northeast-2": 0.08,
    "ap-northeast-3": 0.09,
    "ap-south-1": 0.086,
    "ap-southeast-1": 0.09,
    "ap-southeast-2": 0.098,
    "ap-southeast-3": 0.10,
    "me-central-1": 0.085,
    "me-south-1": 0.1105,
    "sa-east-1": 0.138,
}
_AMAZON_USUAL_USD = 0.02
# Google's prices for two continents; within a continent its own price.
_GOOGLE_WITHIN_USD = {"north america": 0.02, "europe": 0.02, "asia": 0.08, "oceania": 0.08, "south america": 0.14}
_GOOGLE_BETWEEN_USD = {
    frozenset({"north america", "europe"}): 0.05,
    frozenset({"north america", "asia"}): 0.08,
    frozenset({"europe", "asia"}): 0.08,
    frozenset({"north america", "oceania"}): 0.10,
    frozenset({"europe", "oceania"}): 0.10,
    frozenset({"asia", "oceania"}): 0.10,
}
_GOOGLE_FAR_USD = 0.14


def continent(location: str) -> str:
    """Return the continent of a region or of a bucket's location; empty if it is unknown."""
    name = location.lower()
    return next((found for pattern, found in _CONTINENTS if re.match(pattern, name)), "")


def is_region(location: str) -> bool:
    """Return whether a location is one region: `us-central1`, not `US`, `NAM4` or `EUR4`."""
    return "-" in location


def distance(region: str, location: str) -> int:
    """Return 0 for the region of the location, 1 for its continent, 2 for elsewhere; 0 if the location is unknown."""
    if not location or region.lower() == location.lower():
        return 0
    there = continent(location)
    if not there:
        return 0
    return 1 if continent(region) == there else 2


def between_regions_usd(scheme: str, source: str, target: str) -> float:
    """Return the list price of a GB from one location to another of the cloud with that object store."""
    if not source or not target or source.lower() == target.lower() or scheme not in _BETWEEN_REGIONS:
        return 0.0
    return _BETWEEN_REGIONS[scheme](source, target)


def _between_amazons(source: str, target: str) -> float:
    if {source, target} == {"us-east-1", "us-east-2"}:
        return 0.01
    return _AMAZON_USD.get(source, _AMAZON_USUAL_USD)


def _between_googles(source: str, target: str) -> float:
    here, there = continent(source), continent(target)
    if here == there:
        return _GOOGLE_WITHIN_USD.get(here, _GOOGLE_FAR_USD)
    return _GOOGLE_BETWEEN_USD.get(frozenset({here, there}), _GOOGLE_FAR_USD)


# By the scheme of the cloud's own store.
_BETWEEN_REGIONS = {"gs": _between_googles, "s3": _between_amazons}
