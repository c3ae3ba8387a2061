"""Offers of EC2 in one region: types, zones, prices."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable

from outlast.clouds.aws import price_table
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.price_table import InstanceType
from outlast.clouds.aws.prices import AwsPrices
from outlast.clouds.cloud import Offer, Requirements
from outlast.errors import BadRequest

CLOUD = "aws"


class AwsOffers:
    """The offers of one region. Zones and availability are cached."""

    def __init__(self, client: AwsClient, prices: AwsPrices) -> None:
        self._client = client
        self._prices = prices
        self._lock = threading.Lock()
        self._zones: tuple[str, ...] = ()
        self._sold: dict[frozenset[str], frozenset[tuple[str, str]]] = {}
        self._kinds: dict[str, InstanceType] = dict(price_table.NAMED)

    def zones(self) -> tuple[str, ...]:
        with self._lock:
            if not self._zones:
                only = [{"Name": "zone-type", "Values": ["availability-zone"]}]
                found = self._client.ec2("describe_availability_zones", Filters=only)["AvailabilityZones"]
                self._zones = tuple(sorted(str(zone["ZoneName"]) for zone in found))
            return self._zones

    def offers(self, needs: Requirements) -> list[Offer]:
        """Return every matching offer, cheapest first; equal prices ordered by name."""
        zones = self._chosen(needs)
        fitting = [self.kind(needs.type)] if needs.type else [k for k in price_table.KINDS.values() if _fits(k, needs)]
        if not fitting:
            return []
        names = [kind.name for kind in fitting]
        sold, full = self._sold_where(names), self._prices.on_demand(names)
        spot = self._prices.spot(names) if needs.spot else {}
        found = []
        for kind in fitting:
            for zone in zones:
                on_demand = full.get(kind.name, 0.0)
                price = spot.get((kind.name, zone), 0.0) if needs.spot else on_demand
                if price > 0 and (kind.name, zone) in sold:
                    found.append(self._offer(kind, zone, needs.spot, price, on_demand))
        return sorted(found, key=lambda o: (o.price_usd_per_hour, o.on_demand_usd_per_hour, o.zone, o.type))

    def _offer(self, kind: InstanceType, zone: str, spot: bool, price: float, on_demand: float) -> Offer:
        return Offer(
            cloud=CLOUD,
            region=self._client.region,
            zone=zone,
            type=kind.name,
            cpus=kind.cpus,
            memory_gb=kind.memory_gb,
            gpu=kind.gpu,
            gpus=kind.gpus,
            spot=spot,
            price_usd_per_hour=price,
            on_demand_usd_per_hour=on_demand,
        )

    def kind(self, name: str) -> InstanceType:
        """Return any instance type of EC2. Raises BadRequest."""
        if name not in self._kinds:
            try:
                docs = self._client.ec2("describe_instance_types", InstanceTypes=[name])["InstanceTypes"]
            except BadRequest as problem:
                raise unknown("machine type", name, self._kinds) from problem
            if not docs:
                raise unknown("machine type", name, self._kinds)
            doc = docs[0]
            cards = doc.get("GpuInfo", {}).get("Gpus", [])
            count = sum(int(card.get("Count", 0)) for card in cards)
            memory_gb = doc["MemoryInfo"]["SizeInMiB"] / 1024
            gpu = str(cards[0].get("Name", "")) if cards else ""
            self._kinds[name] = InstanceType(name, float(doc["VCpuInfo"]["DefaultVCpus"]), memory_gb, 0.0, gpu, count)
        return self._kinds[name]

    def _sold_where(self, types: list[str]) -> frozenset[tuple[str, str]]:
        key = frozenset(types)
        if key not in self._sold:
            where = {
                "LocationType": "availability-zone",
                "Filters": [{"Name": "instance-type", "Values": sorted(key)}],
            }
            docs = self._client.pages("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", **where)
            self._sold[key] = frozenset((str(doc["InstanceType"]), str(doc["Location"])) for doc in docs)
        return self._sold[key]

    def _chosen(self, needs: Requirements) -> list[str]:
        zones = self.zones()
        for name in (*needs.zones, *needs.exclude_zones):
            if name not in zones and name != self._client.region:
                raise unknown("zone", name, (*zones, self._client.region))
        wanted, refused = set(needs.zones), set(needs.exclude_zones)
        region = {self._client.region}
        return [
            zone for zone in zones if (not wanted or ({zone} | region) & wanted) and not ({zone} | region) & refused
        ]


def unknown(what: str, name: str, known: Iterable[str]) -> BadRequest:
    near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.4) or sorted(known)[:8]
    hint = "did you mean " + ", ".join(f"`{one}`" for one in near) + "? AWS_REGION sets the region"
    return BadRequest(f"unknown {what} `{name}` in this AWS region", hint=hint)


def _fits(kind: InstanceType, needs: Requirements) -> bool:
    if kind.cpus not in needs.cpus or kind.memory_gb not in needs.memory_gb:
        return False
    if not needs.gpu and not needs.gpus:
        return not kind.gpu
    right = kind.gpu != "" if not needs.gpu else kind.gpu.lower() == needs.gpu.lower()
    return right and needs.gpus in (0, kind.gpus)
