"""Prices of machines: Google's billing catalogue if it could be fetched, else a dated table; `source` reports which.

The table has the list prices of us-central1, and a factor per region. Its spot prices are the highest that Google
allows, so that no user pays more than the shown price.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from typing import Any

import msgspec

from outlast import private
from outlast.clouds.gcp.client import GcpClient
from outlast.errors import CloudError

# When the tables below were written.
AS_OF = "2025-06"
# Spot costs 60 to 91 % less.
SPOT_PART = 0.40
CUSTOM_PART = 1.05
DISK_USD_PER_GB_HOUR = 0.10 / 730  # pd-balanced

# Series → USD per hour for a CPU, and for a GB of memory.
_SERIES = {
    "e2": (0.021811, 0.002923),
    "n1": (0.031611, 0.004237),
    "n2": (0.031611, 0.004237),
    "n2d": (0.027502, 0.003686),
    "n4": (0.030500, 0.003500),
    "t2d": (0.027502, 0.003686),
    "t2a": (0.025000, 0.003400),
    "c2": (0.033982, 0.004555),
    "c2d": (0.029563, 0.003959),
    "c3": (0.033982, 0.004555),
    "c3d": (0.029563, 0.003959),
    "m1": (0.034840, 0.005118),
    "a2": (0.031611, 0.004237),
    "a3": (0.029300, 0.002550),
    "g2": (0.024988, 0.002927),
}
# Prices of whole machines, for types with shared CPUs.
_WHOLE = {"f1-micro": 0.0076, "g1-small": 0.0257, "e2-micro": 0.0084, "e2-small": 0.0168, "e2-medium": 0.0335}
_ACCELERATORS = {
    "nvidia-tesla-k80": 0.45,
    "nvidia-tesla-p4": 0.60,
    "nvidia-tesla-t4": 0.35,
    "nvidia-tesla-p100": 1.46,
    "nvidia-tesla-v100": 2.48,
    "nvidia-l4": 0.56,
    "nvidia-tesla-a100": 2.934,
    "nvidia-a100-80gb": 3.93,
    "nvidia-h100-80gb": 9.80,
}
_OTHER_ACCELERATOR = 10.0
_REGIONS = {
    "us-central1": 1.0, "us-east1": 1.0, "us-west1": 1.0, "us-east5": 1.0, "us-south1": 1.18, "us-east4": 1.126,
    "us-west2": 1.201, "us-west3": 1.201, "us-west4": 1.126, "northamerica-northeast1": 1.101,
    "northamerica-northeast2": 1.101, "southamerica-east1": 1.587, "southamerica-west1": 1.43,
    "europe-west1": 1.1, "europe-west2": 1.288, "europe-west3": 1.288, "europe-west4": 1.101, "europe-west6": 1.399,
    "europe-west8": 1.16, "europe-west9": 1.16, "europe-west12": 1.16, "europe-southwest1": 1.18,
    "europe-north1": 1.101, "europe-central2": 1.288, "asia-east1": 1.158, "asia-east2": 1.399,
    "asia-northeast1": 1.285, "asia-northeast2": 1.285, "asia-northeast3": 1.285, "asia-south1": 1.201,
    "asia-south2": 1.201, "asia-southeast1": 1.234, "asia-southeast2": 1.345, "australia-southeast1": 1.419,
    "australia-southeast2": 1.419, "me-west1": 1.1, "me-central1": 1.13, "africa-south1": 1.3,
}  # fmt: skip
_OTHER_REGION = 1.3

# The id of Compute Engine in the catalogue.
_SERVICE = "6F81-5844-456A"
_FRESH_S = 7 * 86400.0
_MASK = (
    "nextPageToken,skus(description,category(resourceFamily,usageType),serviceRegions,"
    "pricingInfo/pricingExpression/tieredRates/unitPrice)"
)
_CPU_OR_MEMORY = re.compile(
    r"(?:Spot Preemptible )?(E2|N1|N2|N2D|N4|T2D|T2A|C2D|C3|C3D|A2|A3|G2)(?: AMD| Arm)?(?: Predefined)? Instance "
    r"(Core|Ram) running in .*"
)
_ACCELERATOR = re.compile(r"Nvidia (Tesla )?(\w+)(?: (\d+)GB)? GPU (?:attached to Spot Preemptible VMs )?running in .*")


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The relevant part of the catalogue: `us-central1/n2/cpu/spot` → USD per hour."""

    fetched_at: float
    usd_per_hour: dict[str, float]


class PriceBook:
    """Prices by region. `load` fetches the catalogue if the cached one is too old; on failure the table is used."""

    def __init__(self, folder: str = "~/.outlast/cache") -> None:
        self._path = os.path.join(os.path.expanduser(folder), "gcp-prices.json")
        self._rates: Rates | None = None
        self._loaded = False

    @property
    def built_in(self) -> bool:
        return self._rates is None

    @property
    def source(self) -> str:
        """Return where the prices come from, as a text."""
        if self._rates is None:
            return f"built-in prices of {AS_OF}: Google's billing catalogue was unreachable"
        age_h = max(0.0, time.time() - self._rates.fetched_at) / 3600
        return f"Google's billing catalogue, fetched {age_h:.0f} h ago"

    def load(self, client: GcpClient) -> None:
        """Load the catalogue once per process; the cached one is valid for a week."""
        if self._loaded:
            return
        self._loaded = True
        self._rates = self._stored()
        if self._rates is not None and time.time() - self._rates.fetched_at < _FRESH_S:
            return
        try:
            rates = Rates(fetched_at=time.time(), usd_per_hour=read_skus(_skus(client)))
        except CloudError:
            return  # older prices are good enough; `outlast doctor` reports their source
        if rates.usd_per_hour:
            self._rates = rates
            self._store(rates)

    def _stored(self) -> Rates | None:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=Rates)
        except (OSError, msgspec.MsgspecError):
            return None

    def _store(self, rates: Rates) -> None:
        try:
            os.makedirs(os.path.dirname(private.prepare(self._path)), mode=0o700, exist_ok=True)
            draft = f"{self._path}.{os.getpid()}"
            with open(draft, "wb") as file:
                file.write(msgspec.json.encode(rates))
            os.replace(draft, self._path)
        except OSError:
            pass  # the next process fetches it again

    def usd_per_hour(
        self, type: str, region: str, *, cpus: float, memory_gb: float, accelerator: str, count: int, spot: bool
    ) -> float:
        series = series_of(type)
        if type in _WHOLE:
            machine = _WHOLE[type] * _REGIONS.get(region, _OTHER_REGION) * (SPOT_PART if spot else 1.0)
        else:
            parts = (("cpu", cpus), ("memory", memory_gb))
            machine = sum(self._rate(region, series, part, spot=spot) * amount for part, amount in parts)
        if "custom" in type:
            machine *= CUSTOM_PART
        if accelerator:
            machine += self._rate(region, accelerator, "gpu", spot=spot) * count
        return round(machine, 6)

    def _rate(self, region: str, series: str, part: str, *, spot: bool) -> float:
        known = self._rates.usd_per_hour.get(_key(region, series, part, spot)) if self._rates is not None else None
        if known is not None:
            return known
        if part == "gpu":
            base = _ACCELERATORS.get(series, _OTHER_ACCELERATOR)
        else:
            base = _SERIES.get(series, _SERIES["n2"])[part == "memory"]
        return base * _REGIONS.get(region, _OTHER_REGION) * (SPOT_PART if spot else 1.0)


def series_of(type: str) -> str:
    """Return `n2` for `n2-standard-8`; a custom type without a series is N1."""
    return "n1" if type.startswith("custom-") else type.partition("-")[0]


def _key(region: str, series: str, part: str, spot: bool) -> str:
    return f"{region}/{series}/{part}/{'spot' if spot else 'on-demand'}"


def _skus(client: GcpClient) -> Iterable[dict[str, Any]]:
    token = ""
    while True:
        query = {"pageSize": 5000, "currencyCode": "USD", "fields": _MASK, **({"pageToken": token} if token else {})}
        doc = client.call("cloudbilling", "GET", f"v1/services/{_SERVICE}/skus", query=query).doc
        yield from doc.get("skus", [])
        token = str(doc.get("nextPageToken", ""))
        if not token:
            return


def read_skus(skus: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the prices that the catalogue's descriptions identify; skip unknown descriptions."""
    found: dict[str, float] = {}
    for sku in skus:
        category = sku.get("category", {})
        usage = category.get("usageType")
        if category.get("resourceFamily") != "Compute" or usage not in ("OnDemand", "Preemptible"):
            continue
        named = _named(str(sku.get("description", "")))
        price = _unit_price(sku)
        if named is None or price is None:
            continue
        for region in sku.get("serviceRegions", []):
            found[_key(str(region), *named, usage == "Preemptible")] = price
    return found


def _named(description: str) -> tuple[str, str] | None:
    if machine := _CPU_OR_MEMORY.fullmatch(description):
        return machine[1].lower(), "cpu" if machine[2] == "Core" else "memory"
    if gpu := _ACCELERATOR.fullmatch(description):
        tesla, size = "tesla-" if gpu[1] else "", f"-{gpu[3]}gb" if gpu[3] else ""
        return f"nvidia-{tesla}{gpu[2].lower()}{size}", "gpu"
    return None


def _unit_price(sku: dict[str, Any]) -> float | None:
    try:
        rate = sku["pricingInfo"][-1]["pricingExpression"]["tieredRates"][-1]["unitPrice"]
        return float(rate.get("units", 0)) + float(rate.get("nanos", 0)) / 1e9
    except (KeyError, IndexError, TypeError, ValueError):
        return None
