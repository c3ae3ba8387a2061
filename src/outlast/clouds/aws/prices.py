"""Prices of machines: spot from the price history, on demand from the Pricing API, else from the dated table."""

from __future__ import annotations

import datetime
import json
import threading
import time
from collections.abc import Iterable

from outlast.clouds.aws import price_table
from outlast.clouds.aws.client import AwsClient
from outlast.errors import CloudError

_FRESH_S = 600.0
BUILT_IN = f"built-in table of {price_table.DATE}, us-east-1"
LIVE = "AWS Pricing API"


class AwsPrices:
    """Cached prices of one region."""

    def __init__(self, client: AwsClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._spot: dict[frozenset[str], tuple[float, dict[tuple[str, str], float]]] = {}
        self._on_demand: dict[str, tuple[float, str]] = {}
        self._fetched_at: dict[frozenset[str], float] = {}

    def spot(self, types: Iterable[str]) -> dict[tuple[str, str], float]:
        """Return (type, zone) → newest spot price."""
        wanted = frozenset(types)
        with self._lock:
            at, known = self._spot.get(wanted, (0.0, {}))
            if known and time.monotonic() - at < _FRESH_S:
                return known
            newest: dict[tuple[str, str], tuple[datetime.datetime, float]] = {}
            now = datetime.datetime.now(datetime.UTC)
            for doc in self._client.pages(
                "ec2",
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=sorted(wanted),
                ProductDescriptions=["Linux/UNIX"],
                StartTime=now,
            ):
                key = (str(doc["InstanceType"]), str(doc["AvailabilityZone"]))
                seen = (doc["Timestamp"], float(doc["SpotPrice"]))
                newest[key] = max(newest.get(key, seen), seen)
            prices = {key: price for key, (_, price) in newest.items()}
            self._spot[wanted] = (time.monotonic(), prices)
            return prices

    def on_demand(self, types: Iterable[str]) -> dict[str, float]:
        """Return type → on-demand price, for types with a known price."""
        wanted = frozenset(types)
        with self._lock:
            if time.monotonic() - self._fetched_at.get(wanted, -_FRESH_S) >= _FRESH_S:
                self._fetched_at[wanted] = time.monotonic()
                self._on_demand |= self._fetch_on_demand(wanted)
            return {name: self._on_demand[name][0] for name in wanted if name in self._on_demand}

    @property
    def note(self) -> str:
        """Return a caveat if on-demand prices come from the table; else empty."""
        with self._lock:
            built_in = any(source == BUILT_IN for _, source in self._on_demand.values())
        return f"on demand from the {BUILT_IN}" if built_in else ""

    def source(self, type: str) -> str:
        """Return where the on-demand price of this type comes from, as a text."""
        self.on_demand([type])
        return self._on_demand.get(type, (0.0, "unknown"))[1]

    def _fetch_on_demand(self, types: frozenset[str]) -> dict[str, tuple[float, str]]:
        prices = {name: (price_table.NAMED[name].usd_per_hour, BUILT_IN) for name in types if name in price_table.NAMED}
        fields = {
            "regionCode": self._client.region,
            "operatingSystem": "Linux",
            "tenancy": "Shared",
            "preInstalledSw": "NA",
            "capacitystatus": "Used",
        }
        filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in fields.items()]
        filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(sorted(types))})
        try:
            for text in self._client.pages(
                "pricing", "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters
            ):
                name, price = _read(str(text))
                if price > 0:
                    prices[name] = (price, LIVE)
        except CloudError:
            pass  # missing rights or no network: use the table, which `source` reports
        return prices


def _read(text: str) -> tuple[str, float]:
    doc = json.loads(text)
    terms = doc.get("terms", {}).get("OnDemand", {}).values()
    rates = [rate for term in terms for rate in term.get("priceDimensions", {}).values()]
    price = max((float(rate["pricePerUnit"].get("USD", 0.0)) for rate in rates), default=0.0)
    return str(doc["product"]["attributes"]["instanceType"]), price
