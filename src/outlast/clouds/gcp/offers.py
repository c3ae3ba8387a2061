"""Offers of Google Cloud: matching machine types, the zones that have them, and their prices."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

import msgspec

from outlast.cachefile import read_cache, write_cache
from outlast.clouds.alternatives import offers_by_gpu
from outlast.clouds.cloud import Offer, Price, Requirements
from outlast.clouds.gcp.advice import Adviser
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.prices import PriceBook, address_usd
from outlast.clouds.gcp.skus import Billing
from outlast.clouds.gcp.types import (
    SPOT_ONLY,
    MachineKind,
    is_known_gpu,
    kind_of,
    listed_type,
    matching_kinds,
    read_type,
    type_pattern,
    unknown_gpu,
    unknown_name,
    with_attached,
    with_driver,
)
from outlast.clouds.geography import distance
from outlast.clouds.local import google_types
from outlast.spec.network import NetworkSpec, network_of

CLOUD = "gcp"
# Zones and types change rarely, but a supervisor that runs for weeks must notice.
_FRESH_S = 3600.0
# The most matching types that are looked up, and the highest price among them as a multiple of the lowest: the
# supervisor would not choose others. The first selection is by the prices of one region.
_KINDS_MAX, _DEARER_MAX, _FIRST_MAX = 8, 2.5, 40
# It has every series first.
_HOME = "us-central1"
_TYPE_FIELDS = "name,guestCpus,memoryMb,accelerators,architecture"


class _Stored(msgspec.Struct, kw_only=True):
    """The cache file: zones and types of one project, from one command to the next. Times are of the wall clock."""

    address: str
    zones_at: float = 0.0
    zones: list[str] = []
    # Type or accelerator → when it was fetched, and the zones that have it.
    places: dict[str, tuple[float, list[str]]] = {}
    listed: dict[str, MachineKind] = {}
    # Pattern or zone of a whole list of types → when it was fetched.
    lists: dict[str, float] = {}


class GcpOffers:
    """The offers of one project. Zones and types are cached for an hour, also in a file for the next command."""

    def __init__(self, client: GcpClient, prices: PriceBook) -> None:
        self._client = client
        self.prices = prices
        self.adviser = Adviser(client)
        self._lock = threading.RLock()
        self._path = os.path.join(prices.folder, "gcp-types.json")
        # Read from the file at the first use.
        self._stored: _Stored | None = None

    def offers(self, needs: Requirements) -> list[Offer]:
        """Return every matching offer, cheapest first; equal prices by Google's advice, else by name."""
        return offers_by_gpu(needs, self._offers)

    def _offers(self, needs: Requirements) -> list[Offer]:
        zones = self._wanted_zones(needs)
        self.prices.load(self._client)
        kinds = self._kinds(needs, frozenset(map(google_types.region_of, zones)))
        self._find([listed_type(kind) for kind in kinds] + [kind.accelerator for kind in kinds if kind.attached])
        found = [
            self.offer(kind, zone, spot=needs.spot, network=needs.network)
            for kind in kinds
            for zone in sorted(self._having(kind) & zones)
        ]
        ordered = sorted(found, key=lambda offer: (offer.price_usd_per_hour, offer.zone, offer.type))
        return self.adviser.rank(ordered, needs.near)

    def offer(
        self, kind: MachineKind, zone: str, *, spot: bool, flex: bool = False, network: NetworkSpec | None = None
    ) -> Offer:
        region = google_types.region_of(zone)
        external = (network or network_of(CLOUD, os.environ)).external_address
        on_demand = self._price(kind, region)
        price = self._price(kind, region, "flex" if flex else "spot") if spot or flex else on_demand
        return Offer(
            cloud=CLOUD,
            region=region,
            zone=zone,
            type=kind.type,
            cpus=kind.cpus,
            memory_gb=kind.memory_gb,
            gpu=kind.gpu,
            gpus=kind.count,
            spot=spot,
            price_usd_per_hour=price.usd_per_hour,
            on_demand_usd_per_hour=on_demand.usd_per_hour,
            price_source=price.source,
            price_at=price.at,
            price_guessed=price.guessed,
            address_usd_per_hour=address_usd(spot=spot) if external else 0.0,
        )

    def price(self, type: str, zone: str, *, accelerator: str, count: int, spot: bool) -> float:
        """Return the price of a machine that outlast did not launch."""
        table = google_types.machine_type(type)
        known = kind_of(table) if table is not None else self._cache().listed.get(type)
        if known is None:
            return 0.0
        if accelerator:
            known = msgspec.structs.replace(known, accelerator=accelerator, count=count)
        return self._price(known, google_types.region_of(zone), "spot" if spot else "on-demand").usd_per_hour

    def _price(self, kind: MachineKind, region: str, billing: Billing = "on-demand") -> Price:
        return self.prices.price(kind.priced, region, billing)

    # Types

    def _kinds(self, needs: Requirements, regions: frozenset[str]) -> list[MachineKind]:
        """Return the types to look up: the cheapest ones in any of the regions."""
        if needs.type:
            return self._named(needs)
        fitting = matching_kinds(needs, self._listed(needs, regions))
        # The policies ask for on-demand machines of a run on spot, too: none, instead of an error.
        fitting = [kind for kind in fitting if needs.spot or not SPOT_ONLY.fullmatch(kind.type)]
        if not needs.image:
            fitting = with_driver(fitting, needs.gpu)
        if not fitting and needs.gpu and not is_known_gpu(needs.gpu):
            raise unknown_gpu(needs.gpu)
        billing: Billing = "spot" if needs.spot else "on-demand"
        fitting.sort(key=lambda kind: (self._price(kind, _HOME, billing).usd_per_hour, kind.type))

        def lowest(kind: MachineKind) -> float:
            return min((self._price(kind, region, billing).usd_per_hour for region in regions), default=0.0)

        priced = sorted(((lowest(kind), kind) for kind in fitting[:_FIRST_MAX]), key=lambda one: (one[0], one[1].type))
        return [kind for price, kind in priced[:_KINDS_MAX] if price <= priced[0][0] * _DEARER_MAX]

    def _named(self, needs: Requirements) -> list[MachineKind]:
        """Return the type of that name; a type that is not in our table is looked up at Google."""
        if (known := google_types.machine_type(needs.type)) is not None:
            kind = kind_of(known)
        else:
            self._find([needs.type])
            if needs.type not in self._cache().listed:
                raise unknown_name("machine type", needs.type, google_types.TYPES)
            kind = self._cache().listed[needs.type]
        kinds = [with_attached(kind, needs)]
        return kinds if needs.image else with_driver(kinds, needs.gpu)

    def _listed(self, needs: Requirements, regions: frozenset[str]) -> list[MachineKind]:
        """Return Google's types for a request: those with its GPU in all zones, or all types of one zone."""
        with self._lock:
            stored = self._cache()
            if needs.gpu or needs.gpus:
                pattern = type_pattern(needs.gpu)
                if pattern and not _fresh(stored.lists.get(pattern, 0.0)):
                    zones = self._list("machineTypes", pattern)
                    stored.places |= {name: (time.time(), sorted(found)) for name, found in zones.items()}
                    stored.lists[pattern] = time.time()
                    self._keep()
                return [kind for kind in stored.listed.values() if kind.accelerator]
            near = [zone for zone in stored.zones if google_types.region_of(zone) in regions]
            zone = next((zone for zone in near if zone.startswith(_HOME)), near[0] if near else "")
            if zone and not _fresh(stored.lists.get(zone, 0.0)):
                query = {"fields": f"items({_TYPE_FIELDS}),nextPageToken"}
                for page in self._client.pages(f"zones/{zone}/machineTypes", query=query):
                    stored.listed |= {str(item["name"]): read_type(item) for item in page.doc.get("items", [])}
                stored.lists[zone] = time.time()
                self._keep()
            return list(stored.listed.values())

    # Zones

    def _wanted_zones(self, needs: Requirements) -> frozenset[str]:
        zones = self.zones()
        regions = {google_types.region_of(zone) for zone in zones}
        for name in (*needs.zones, *needs.exclude_zones):
            if name not in zones and name not in regions:
                raise unknown_name("zone", name, (*zones, *regions))

        def wanted(zone: str) -> bool:
            names = {zone, google_types.region_of(zone)}
            return (not needs.zones or bool(names & set(needs.zones))) and not names & set(needs.exclude_zones)

        found = frozenset(filter(wanted, zones))
        if needs.zones or needs.anywhere or not needs.near:
            return found
        near = frozenset(zone for zone in found if distance(google_types.region_of(zone), needs.near) <= 1)
        return near or found

    def zones(self) -> frozenset[str]:
        with self._lock:
            stored = self._cache()
            if not stored.zones or not _fresh(stored.zones_at):
                pages = self._client.pages("zones", query={"fields": "items(name,status),nextPageToken"})
                items = [item for page in pages for item in page.doc.get("items", [])]
                stored.zones = sorted(str(item["name"]) for item in items if item.get("status") == "UP")
                stored.zones_at = time.time()
                self._keep()
            return frozenset(stored.zones)

    def _having(self, kind: MachineKind) -> frozenset[str]:
        places = self._cache().places
        zones = frozenset(places[listed_type(kind)][1])
        return zones & frozenset(places[kind.accelerator][1]) if kind.attached else zones

    def _find(self, names: Iterable[str]) -> None:
        """Fetch the zones that have these types and GPUs: one list for all types, one for all GPUs."""
        with self._lock:
            places = self._cache().places
            old = [name for name in dict.fromkeys(names) if name not in places or not _fresh(places[name][0])]
            gpus = [name for name in old if name.startswith(("nvidia-", "ct"))]
            for collection, wanted in (("acceleratorTypes", gpus), ("machineTypes", sorted(set(old) - set(gpus)))):
                if not wanted:
                    continue
                # A regular expression is shorter and faster than one comparison per name.
                zones = self._list(collection, "|".join(wanted))
                places |= {name: (time.time(), sorted(zones.get(name, ()))) for name in wanted}
            if old:
                self._keep()

    def _cache(self) -> _Stored:
        """Return the cached zones and types: those of the file, if it is of the same project and endpoint."""
        if self._stored is None:
            address = self._client.address("compute") + self._client.below("")
            stored = read_cache(self._path, _Stored)
            self._stored = stored if stored is not None and stored.address == address else _Stored(address=address)
        return self._stored

    def _keep(self) -> None:
        """Write the file, without types that no zone has: a user may just have been granted access to one."""
        stored = self._cache()
        places = {name: place for name, place in stored.places.items() if place[1]}
        write_cache(self._path, msgspec.structs.replace(stored, places=places))

    def _list(self, collection: str, pattern: str) -> dict[str, set[str]]:
        """Return name → zones of the types that match a regular expression, in all zones."""
        fields = _TYPE_FIELDS if collection == "machineTypes" else "name"
        query = {"filter": f'name eq "{pattern}"', "fields": f"items/*/{collection}({fields}),nextPageToken"}
        found: dict[str, set[str]] = {}
        for page in self._client.pages(f"aggregated/{collection}", query=query):
            for scope, inner in page.doc.get("items", {}).items():
                for item in inner.get(collection, []):
                    found.setdefault(str(item["name"]), set()).add(last(scope))
                    if collection == "machineTypes":
                        self._cache().listed[str(item["name"])] = read_type(item)
        return found


def _fresh(fetched_at: float) -> bool:
    """Return whether a cached answer is still valid. One from the future is not: the clock was set back."""
    return 0 <= time.time() - fetched_at < _FRESH_S
