"""Prices of machines: Google's billing catalogue if it could be fetched, else dated figures by region and family.

Each price reports its source and age. A price that neither has is a guess, and reports that.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from outlast.cachefile import read_cache, write_cache
from outlast.clouds.cloud import Price
from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.price_figures import AS_OF, family_price
from outlast.clouds.gcp.skus import Billing, key, read_skus
from outlast.errors import CloudError

CUSTOM_PART = 1.05
DISK_USD_PER_GB_HOUR = 0.10 / 730  # pd-balanced
# Of a machine's external IPv4 address, per hour.
ADDRESS_USD, ADDRESS_SPOT_USD = 0.005, 0.0025
# Of an unknown family: a CPU, a GB of memory and a GPU. Unknown GPUs are new and expensive.
_OTHER, _OTHER_GPU_USD, _OTHER_SPOT_PART = "n2", 12.0, 0.6
# Families whose GPUs' SKUs hold the whole machine.
_SLICES = ("a4", "a4x")
# CPUs per GPU of G4, which also has parts of a GPU.
_G4_CPUS = 48

# The id of Compute Engine in the catalogue.
_SERVICE = "6F81-5844-456A"
_FRESH_S = 7 * 86400.0
_RETRY_S = 600.0
_MASK = (
    "nextPageToken,skus(description,category(resourceFamily,resourceGroup,usageType),serviceRegions,"
    "pricingInfo/pricingExpression/tieredRates/unitPrice)"
)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The relevant part of the catalogue: `us-central1/n2/cpu/spot` → USD per hour."""

    fetched_at: float
    usd_per_hour: dict[str, float]
    # When the catalogue was last requested without success.
    failed_at: float = 0.0


class PricedMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a machine that determine its price."""

    type: str
    cpus: float
    memory_gb: float
    accelerator: str = ""
    count: float = 0


class PriceBook:
    """Prices by region. `load` fetches the catalogue if the cached one is too old; on failure the figures are used."""

    def __init__(self, folder: str = "~/.outlast/cache", *, report: Callable[[str], None] = lambda _: None) -> None:
        self.folder = os.path.expanduser(folder)
        self._report = report
        self._path = os.path.join(self.folder, "gcp-prices.json")
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

    def load(self, client: GcpClient, *, retry: bool = False) -> None:
        """Load the catalogue once per process; the cached one is valid for a week.

        Without `retry`, a request that failed some minutes ago is not repeated: it would delay each command.
        """
        if self._loaded and not retry:
            return
        self._loaded = True
        now, cached = time.time(), read_cache(self._path, Rates) or Rates(fetched_at=0.0, usd_per_hour={})
        self._rates = cached if cached.usd_per_hour else None
        if now - cached.fetched_at < _FRESH_S or (0 <= now - cached.failed_at < _RETRY_S and not retry):
            return
        try:
            self._report("fetching the prices of Google's billing catalogue; they are kept for a week")
            rates = Rates(fetched_at=now, usd_per_hour=read_skus(_skus(client)))
        except CloudError:
            # Older prices are good enough; each price reports its source.
            write_cache(self._path, msgspec.structs.replace(cached, failed_at=now))
            return
        if rates.usd_per_hour:
            self._rates = rates
            write_cache(self._path, rates)

    def price(self, machine: PricedMachine, region: str, billing: Billing) -> Price:
        """Return the price of a machine with its source: the catalogue, the built-in figures, or a guess."""
        if machine.type.startswith("g4-"):
            machine = msgspec.structs.replace(machine, count=machine.cpus / _G4_CPUS)
        factor = CUSTOM_PART if "custom" in machine.type else 1.0
        if self._rates is not None and (usd := self._listed_usd(machine, region, billing)) is not None:
            return Price(usd_per_hour=round(usd * factor, 6), source=self.source, at=self._rates.fetched_at)
        usd, guessed = _figured_usd(machine, region, billing)
        source = f"built-in prices of {AS_OF}" if not guessed else f"guessed from built-in prices of {AS_OF}"
        at = datetime.datetime.fromisoformat(f"{AS_OF}T00:00:00+00:00").timestamp()
        return Price(usd_per_hour=round(usd * factor, 6), source=source, at=at, guessed=guessed)

    def _listed_usd(self, machine: PricedMachine, region: str, billing: Billing) -> float | None:
        """Return a price if the catalogue has each part of it: a sum of old and new prices would be wrong."""
        assert self._rates is not None
        known, series = self._rates.usd_per_hour, series_of(machine.type)
        parts = [(machine.accelerator, "gpu", machine.count)] if machine.accelerator else []
        if machine.type in ("f1-micro", "g1-small"):
            parts.append((machine.type, "whole", 1.0))
        elif series not in _SLICES:
            cpus = _billed_cpus(machine)
            parts += [(series, "cpu", cpus), (series, "memory", machine.memory_gb)]
        prices = [(known.get(key(region, family, part, billing)), amount) for family, part, amount in parts]
        if any(usd is None for usd, _ in prices):
            return None
        return sum((usd or 0.0) * amount for usd, amount in prices)


def _figured_usd(machine: PricedMachine, region: str, billing: Billing) -> tuple[float, bool]:
    """Return the price by the built-in figures, and whether it is a guess."""
    family = family_of(machine.type)
    rates, guessed = family_price(family, region), False
    if rates is None:
        rates, guessed = family_price(_OTHER, region), True
        assert rates is not None
        rates = msgspec.structs.replace(rates, gpu_usd=_OTHER_GPU_USD, spot_part=_OTHER_SPOT_PART)
    guessed = guessed or rates.guessed
    usd = _billed_cpus(machine) * rates.cpu_usd + machine.memory_gb * rates.memory_gb_usd
    usd += machine.count * rates.gpu_usd
    usd *= rates.spot_part if billing == "spot" else 1.0
    if machine.accelerator and not rates.gpu_usd:  # attached to a machine of series N1
        card = family_price(machine.accelerator, region)
        each = card.gpu_usd if card is not None else _OTHER_GPU_USD
        part = card.spot_part if card is not None else _OTHER_SPOT_PART
        usd += machine.count * each * (part if billing == "spot" else 1.0)
        guessed = guessed or card is None or card.guessed
    # Flex-start costs less than on demand; the figures do not have how much.
    return usd, guessed or billing == "flex"


def address_usd(*, spot: bool) -> float:
    """Return the price of an external IPv4 address, per hour."""
    return ADDRESS_SPOT_USD if spot else ADDRESS_USD


def _billed_cpus(machine: PricedMachine) -> float:
    """Return the billed CPUs: types of E2 with shared CPUs have two, and pay for a part of one."""
    return {"e2-micro": 0.25, "e2-small": 0.5, "e2-medium": 1.0}.get(machine.type, machine.cpus)


def family_of(type: str) -> str:
    """Return the family of the built-in figures: the series, or its part for series with several GPUs."""
    series = series_of(type)
    if series in ("a2", "a3") or type in ("f1-micro", "g1-small"):
        return "-".join(type.split("-")[:2])
    return series


def series_of(type: str) -> str:
    """Return `n2` for `n2-standard-8`; a custom type without a series is N1."""
    return "n1" if type.startswith("custom-") else type.partition("-")[0]


def _skus(client: GcpClient) -> Iterable[dict[str, Any]]:
    token = ""
    while True:
        query = {"pageSize": 5000, "currencyCode": "USD", "fields": _MASK, **({"pageToken": token} if token else {})}
        doc = client.call("cloudbilling", "GET", f"v1/services/{_SERVICE}/skus", query=query).doc
        yield from doc.get("skus", [])
        token = str(doc.get("nextPageToken", ""))
        if not token:
            return
