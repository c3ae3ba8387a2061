"""Prices of machines: spot from the price history, on demand from the Pricing API, else from dated figures."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Iterable, Sequence

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.price_figures import AS_OF, on_demand_figure, spot_figure
from outlast.clouds.aws.types import InstanceType
from outlast.clouds.cloud import Price
from outlast.errors import CloudError, Denied

_FRESH_S = 600.0
BUILT_IN = f"built-in prices of {AS_OF}"
GUESSED = f"guessed from built-in prices of {AS_OF}"
LIVE = "AWS Pricing API"
_AS_OF_S = datetime.datetime.fromisoformat(f"{AS_OF}T00:00:00+00:00").timestamp()
HISTORY = "EC2's spot price history"


class AwsPrices:
    """Cached prices of one region."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._spot: dict[frozenset[str], tuple[float, dict[tuple[str, str], Price]]] = {}
        self._on_demand: dict[str, Price] = {}
        self._fetched_at: dict[frozenset[str], float] = {}

    def spot(self, types: Iterable[InstanceType], zones: Sequence[str]) -> dict[tuple[str, str], Price]:
        """Return (type, zone) → newest spot price; without the right to read them, figures that are guesses."""
        kinds = {kind.name: kind for kind in types}
        wanted = frozenset(kinds)
        with self._lock:
            at, known = self._spot.get(wanted, (0.0, {}))
            if known and time.monotonic() - at < _FRESH_S:
                return known
            try:
                prices = self._fetch_spot(wanted)
            except Denied:
                prices = self._spot_figures(kinds.values(), zones)
            self._spot[wanted] = (time.monotonic(), prices)
            return prices

    def _fetch_spot(self, types: frozenset[str]) -> dict[tuple[str, str], Price]:
        newest: dict[tuple[str, str], tuple[datetime.datetime, float]] = {}
        for doc in self._client.pages(
            "ec2",
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=sorted(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.datetime.now(datetime.UTC),
        ):
            key = (str(doc["InstanceType"]), str(doc["AvailabilityZone"]))
            seen = (doc["Timestamp"], float(doc["SpotPrice"]))
            newest[key] = max(newest.get(key, seen), seen)
        return {
            key: Price(usd_per_hour=usd, source=HISTORY, at=changed.timestamp())
            for key, (changed, usd) in newest.items()
            if usd > 0
        }

    def _spot_figures(self, kinds: Iterable[InstanceType], zones: Sequence[str]) -> dict[tuple[str, str], Price]:
        prices = {}
        for kind in kinds:
            usd = spot_figure(kind.name, self._client.region, cpus=kind.cpus)
            for zone in zones if usd is not None else ():
                prices[kind.name, zone] = Price(usd_per_hour=usd or 0.0, source=GUESSED, at=_AS_OF_S, guessed=True)
        return prices

    def on_demand(self, types: Iterable[InstanceType]) -> dict[str, Price]:
        """Return type → on-demand price, for types with a known price."""
        kinds = {kind.name: kind for kind in types}
        wanted = frozenset(kinds)
        with self._lock:
            if time.monotonic() - self._fetched_at.get(wanted, -_FRESH_S) >= _FRESH_S:
                self._fetched_at[wanted] = time.monotonic()
                self._on_demand |= self._figures(kinds.values()) | self._fetch_on_demand(wanted)
            return {name: self._on_demand[name] for name in wanted if name in self._on_demand}

    @property
    def note(self) -> str:
        """Return a caveat if on-demand prices do not come from the API; else empty."""
        with self._lock:
            built_in = any(price.source != LIVE for price in self._on_demand.values())
        return f"on demand: {BUILT_IN}, because the Pricing API did not answer" if built_in else ""

    def source(self, kind: InstanceType) -> str:
        """Return where the on-demand price of this type comes from, as a text."""
        found = self.on_demand([kind]).get(kind.name)
        return found.source if found is not None else "unknown"

    def _figures(self, kinds: Iterable[InstanceType]) -> dict[str, Price]:
        prices = {}
        for kind in kinds:
            found = on_demand_figure(kind.name, self._client.region, cpus=kind.cpus)
            if found is not None:
                usd, guessed = found
                source = GUESSED if guessed else BUILT_IN
                prices[kind.name] = Price(usd_per_hour=usd, source=source, at=_AS_OF_S, guessed=guessed)
        return prices

    def _fetch_on_demand(self, types: frozenset[str]) -> dict[str, Price]:
        fields = {
            "regionCode": self._client.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
        filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(sorted(types))})
        prices = {}
        try:
            for text in self._client.pages(
                "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
            ):
                name, usd = _read(str(text))
                if usd > 0:
                    prices[name] = Price(usd_per_hour=usd, source=LIVE, at=time.time())
        except CloudError:
            pass  # missing rights or no network: use the figures, and report that
        return prices


def _read(text: str) -> tuple[str, float]:
    doc = json.loads(text)
    terms = doc.get("terms", {}).get("OnDemand", {}).values()
    rates = [rate for term in terms for rate in term.get("priceDimensions", {}).values()]
    price = max((float(rate["pricePerUnit"].get("USD", 0.0)) for rate in rates), default=0.0)
    return str(doc["product"]["attributes"]["instanceType"]), price
