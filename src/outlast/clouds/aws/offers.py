"""Offers of EC2 in one region: types, zones, prices."""

from __future__ import annotations

import os
import threading

from outlast.clouds.alternatives import offers_by_gpu
from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.price_figures import ADDRESS_USD
from outlast.clouds.aws.prices import AwsPrices
from outlast.clouds.aws.types import AwsTypes, InstanceType, unknown
from outlast.clouds.cloud import Offer, Price, Requirements
from outlast.spec.network import network_of

CLOUD = "aws"


class AwsOffers:
    """The offers of one region. Zones and availability are cached."""

    def __init__(self, client: AwsClient, prices: AwsPrices) -> None:
        self._client = client
        self._prices = prices
        self._lock = threading.Lock()
        self._zones: tuple[str, ...] = ()
        self._sold: dict[frozenset[str], frozenset[tuple[str, str]]] = {}
        self.types = AwsTypes(client)

    def zones(self) -> tuple[str, ...]:
        with self._lock:
            if not self._zones:
                only = [{"Name": "zone-type", "Values": ["availability-zone"]}]
                found = self._client.ec2("describe_availability_zones", Filters=only)["AvailabilityZones"]
                self._zones = tuple(sorted(str(zone["ZoneName"]) for zone in found))
            return self._zones

    def offers(self, needs: Requirements) -> list[Offer]:
        """Return every matching offer, cheapest first; equal prices ordered by name."""
        return offers_by_gpu(needs, self._offers)

    def _offers(self, needs: Requirements) -> list[Offer]:
        zones = self._chosen(needs)
        fitting = self.types.matching(needs)
        if not fitting:
            return []
        sold, full = self._sold_where([kind.name for kind in fitting]), self._prices.on_demand(fitting)
        spot = self._prices.spot(fitting, zones) if needs.spot else {}
        found = []
        for kind in fitting:
            for zone in zones:
                on_demand = full.get(kind.name)
                price = spot.get((kind.name, zone)) if needs.spot else on_demand
                if price is not None and (kind.name, zone) in sold:
                    found.append(self._offer(kind, zone, needs, price, on_demand))
        return sorted(found, key=lambda o: (o.price_usd_per_hour, o.on_demand_usd_per_hour, o.zone, o.type))

    def _offer(
        self, kind: InstanceType, zone: str, needs: Requirements, price: Price, on_demand: Price | None
    ) -> Offer:
        network = needs.network or network_of("aws", os.environ)
        return Offer(
            cloud=CLOUD,
            region=self._client.region,
            zone=zone,
            type=kind.name,
            cpus=kind.cpus,
            memory_gb=kind.memory_gb,
            gpu=kind.gpu,
            gpus=kind.gpus,
            spot=needs.spot,
            price_usd_per_hour=price.usd_per_hour,
            on_demand_usd_per_hour=on_demand.usd_per_hour if on_demand is not None else 0.0,
            price_source=price.source,
            price_at=price.at,
            price_guessed=price.guessed,
            address_usd_per_hour=ADDRESS_USD if network.external_address else 0.0,
        )

    def kind(self, name: str) -> InstanceType:
        """Return any instance type of EC2. Raises BadRequest."""
        return self.types.kind(name)

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
