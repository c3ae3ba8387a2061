"""Offers of Google Cloud: matching machine types, the zones that have them, and their prices."""

from __future__ import annotations

import difflib
import math
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from outlast.clouds.cloud import Offer, Requirements
from outlast.clouds.gcp.advice import Adviser
from outlast.clouds.gcp.client import GcpClient, last
from outlast.clouds.gcp.prices import PriceBook, series_of
from outlast.clouds.local import google_types
from outlast.errors import BadRequest

CLOUD = "gcp"
# Zones and types change rarely, but a supervisor that runs for weeks must notice.
_FRESH_S = 3600.0
# The most matching types that are looked up, and the highest price among them as a multiple of the lowest: the
# supervisor would not choose others.
_KINDS_MAX, _DEARER_MAX = 8, 2.5
# Common name of a GPU → Google's name.
GPUS = {
    "K80": "nvidia-tesla-k80",
    "P4": "nvidia-tesla-p4",
    "T4": "nvidia-tesla-t4",
    "P100": "nvidia-tesla-p100",
    "V100": "nvidia-tesla-v100",
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-40GB": "nvidia-tesla-a100",
    "A100-80GB": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
}
# GPU that is attached to machines of series N1 → possible counts. All others are built into a machine type.
_ATTACHED = {
    "nvidia-tesla-t4": (1, 2, 4),
    "nvidia-tesla-p4": (1, 2, 4),
    "nvidia-tesla-p100": (1, 2, 4),
    "nvidia-tesla-v100": (1, 2, 4, 8),
}
# GPU → the most CPUs per GPU.
_CPUS_PER_GPU = {"nvidia-tesla-v100": 12, "nvidia-tesla-p100": 16, "nvidia-tesla-p4": 24, "nvidia-tesla-t4": 48}
# Series with custom sizes → least and most GB of memory per CPU.
_CUSTOM = {"e2": (0.5, 8.0), "n2d": (0.5, 8.0), "n1": (0.922, 6.5), "n2": (0.5, 8.0)}
_CUSTOM_CPUS_MAX = {"e2": 32, "n1": 96, "n2": 128, "n2d": 96}
# ARM processors: programs and images for x86 do not run on them.
_ARM = ("t2a", "c4a", "n4a")


class MachineKind(msgspec.Struct, frozen=True, kw_only=True):
    """A machine type, with the GPUs that are built in or attached to it."""

    type: str
    cpus: float
    memory_gb: float
    accelerator: str = ""
    count: int = 0
    attached: bool = False

    @property
    def gpu(self) -> str:
        return next((name for name, link in GPUS.items() if link == self.accelerator), self.accelerator)


class GcpOffers:
    """The offers of one project. Zones and types are cached for an hour."""

    def __init__(self, client: GcpClient, prices: PriceBook) -> None:
        self._client = client
        self.prices = prices
        self.adviser = Adviser(client)
        self._lock = threading.RLock()
        self._zones: tuple[float, frozenset[str]] = (0.0, frozenset())
        # Type or accelerator → when it was fetched, and the zones that have it.
        self._places: dict[str, tuple[float, frozenset[str]]] = {}
        self._foreign: dict[str, MachineKind] = {}

    def offers(self, needs: Requirements) -> list[Offer]:
        """Return every matching offer, cheapest first; equal prices by Google's advice, else by name."""
        zones = self._wanted_zones(needs)
        self.prices.load(self._client)
        kinds = self._kinds(needs)
        self._find([listed_type(kind) for kind in kinds] + [kind.accelerator for kind in kinds if kind.attached])
        found = [
            self.offer(kind, zone, spot=needs.spot) for kind in kinds for zone in sorted(self._having(kind) & zones)
        ]
        return self.adviser.rank(sorted(found, key=lambda offer: (offer.price_usd_per_hour, offer.zone, offer.type)))

    def offer(self, kind: MachineKind, zone: str, *, spot: bool) -> Offer:
        region = google_types.region_of(zone)
        both = [self._price(kind, region, spot=one) for one in (False, True)]
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
            price_usd_per_hour=both[spot],
            on_demand_usd_per_hour=both[0],
        )

    def price(self, type: str, zone: str, *, accelerator: str, count: int, spot: bool) -> float:
        """Return the price of a machine that outlast did not launch."""
        known = google_types.machine_type(type) or self._foreign.get(type)
        if known is None:
            return 0.0
        memory_gb = known.memory_mb / 1024 if isinstance(known, google_types.GoogleType) else known.memory_gb
        kind = MachineKind(type=type, cpus=known.cpus, memory_gb=memory_gb, accelerator=accelerator, count=count)
        return self._price(kind, google_types.region_of(zone), spot=spot)

    def _price(self, kind: MachineKind, region: str, *, spot: bool) -> float:
        return self.prices.usd_per_hour(
            kind.type,
            region,
            cpus=kind.cpus,
            memory_gb=kind.memory_gb,
            accelerator=kind.accelerator,
            count=kind.count,
            spot=spot,
        )

    # Types

    def _kinds(self, needs: Requirements) -> list[MachineKind]:
        if needs.type:
            return self._named(needs)
        fitting = [kind for kind in _every_kind(_accelerator(needs)) if _fits(kind, needs)]
        if not fitting and not needs.gpu and not needs.gpus:
            fitting = list(_custom(needs))
        home = "us-central1"
        priced = [(self._price(kind, home, spot=needs.spot), kind) for kind in fitting]
        priced.sort(key=lambda one: (one[0], one[1].type))
        return [kind for price, kind in priced[:_KINDS_MAX] if price <= priced[0][0] * _DEARER_MAX]

    def _named(self, needs: Requirements) -> list[MachineKind]:
        """Return the type of that name; a type that is not in our table is looked up at Google."""
        if (known := google_types.machine_type(needs.type)) is not None:
            kind = _kind(known)
        else:
            self._find([needs.type])
            if needs.type not in self._foreign:
                raise _unknown("machine type", needs.type, google_types.TYPES)
            kind = self._foreign[needs.type]
        accelerator = _accelerator(needs)
        if accelerator and not kind.accelerator and series_of(kind.type) == "n1":
            kind = msgspec.structs.replace(kind, accelerator=accelerator, count=max(1, needs.gpus), attached=True)
        return [kind]

    # Zones

    def _wanted_zones(self, needs: Requirements) -> frozenset[str]:
        zones = self.zones()
        regions = {google_types.region_of(zone) for zone in zones}
        for name in (*needs.zones, *needs.exclude_zones):
            if name not in zones and name not in regions:
                raise _unknown("zone", name, (*zones, *regions))

        def wanted(zone: str) -> bool:
            names = {zone, google_types.region_of(zone)}
            return (not needs.zones or bool(names & set(needs.zones))) and not names & set(needs.exclude_zones)

        return frozenset(filter(wanted, zones))

    def zones(self) -> frozenset[str]:
        with self._lock:
            fetched_at, known = self._zones
            if not known or time.monotonic() - fetched_at > _FRESH_S:
                pages = self._client.pages("zones", query={"fields": "items(name,status),nextPageToken"})
                items = [item for page in pages for item in page.doc.get("items", [])]
                known = frozenset(str(item["name"]) for item in items if item.get("status") == "UP")
                self._zones = (time.monotonic(), known)
            return known

    def _having(self, kind: MachineKind) -> frozenset[str]:
        zones = self._places[listed_type(kind)][1]
        return zones & self._places[kind.accelerator][1] if kind.attached else zones

    def _find(self, names: Iterable[str]) -> None:
        """Fetch the zones that have these types and GPUs: one list for all types, one for all GPUs."""
        with self._lock:
            now = time.monotonic()
            old = [name for name in dict.fromkeys(names) if now - self._places.get(name, (-_FRESH_S,))[0] >= _FRESH_S]
            gpus = [name for name in old if name.startswith(("nvidia-", "ct"))]
            for collection, wanted in (("acceleratorTypes", gpus), ("machineTypes", sorted(set(old) - set(gpus)))):
                if not wanted:
                    continue
                zones = self._list(collection, wanted)
                self._places |= {name: (now, frozenset(zones.get(name, ()))) for name in wanted}

    def _list(self, collection: str, names: list[str]) -> dict[str, set[str]]:
        fields = "name,guestCpus,memoryMb,accelerators" if collection == "machineTypes" else "name"
        query = {
            # A regular expression is shorter and faster than one comparison per name.
            "filter": f'name eq "{"|".join(names)}"',
            "fields": f"items/*/{collection}({fields}),nextPageToken",
        }
        found: dict[str, set[str]] = {}
        for page in self._client.pages(f"aggregated/{collection}", query=query):
            for scope, inner in page.doc.get("items", {}).items():
                for item in inner.get(collection, []):
                    found.setdefault(str(item["name"]), set()).add(last(scope))
                    if collection == "machineTypes":
                        self._foreign.setdefault(str(item["name"]), _foreign(item))
        return found


def listed_type(kind: MachineKind) -> str:
    """Return the listed type whose zones have this one: a custom type is available wherever its series is."""
    if "custom" not in kind.type:
        return kind.type
    return f"{series_of(kind.type)}-standard-4"


def _kind(known: google_types.GoogleType) -> MachineKind:
    return MachineKind(
        type=known.name,
        cpus=float(known.cpus),
        memory_gb=known.memory_mb / 1024,
        accelerator=known.accelerator,
        count=known.accelerators,
    )


def _foreign(item: dict[str, Any]) -> MachineKind:
    """Return a type from Google's description, for types that are newer than our table."""
    gpu = (item.get("accelerators") or [{}])[0]
    return MachineKind(
        type=str(item["name"]),
        cpus=float(item.get("guestCpus", 0)),
        memory_gb=float(item.get("memoryMb", 0)) / 1024,
        accelerator=str(gpu.get("guestAcceleratorType", "")),
        count=int(gpu.get("guestAcceleratorCount", 0)),
    )


def _accelerator(needs: Requirements) -> str:
    """Return Google's name of the requested GPU. Raises BadRequest."""
    if not needs.gpu:
        return ""
    name = needs.gpu.upper().removeprefix("NVIDIA-").removeprefix("TESLA-")
    if name in GPUS:
        return GPUS[name]
    if needs.gpu.lower() in GPUS.values():
        return needs.gpu.lower()
    raise _unknown("GPU", needs.gpu, GPUS)


def _every_kind(accelerator: str) -> Iterator[MachineKind]:
    for known in google_types.TYPES.values():
        series = series_of(known.name)
        if known.shared or series in _ARM:
            continue
        yield _kind(known)
        if series == "n1" and accelerator in _ATTACHED:
            for count in _ATTACHED[accelerator]:
                if known.cpus <= _CPUS_PER_GPU[accelerator] * count:
                    yield msgspec.structs.replace(_kind(known), accelerator=accelerator, count=count, attached=True)


def _fits(kind: MachineKind, needs: Requirements) -> bool:
    if kind.cpus not in needs.cpus or kind.memory_gb not in needs.memory_gb:
        return False
    if not needs.gpu and not needs.gpus:
        return not kind.accelerator
    right_gpu = bool(kind.accelerator) if not needs.gpu else kind.accelerator == _accelerator(needs)
    return right_gpu and needs.gpus in (0, kind.count)


def _custom(needs: Requirements) -> Iterator[MachineKind]:
    """Yield custom types of the smallest matching size, for requests that no predefined type matches."""
    for series, (least, most) in _CUSTOM.items():
        cpus = max(2, 2 * math.ceil(max(needs.cpus.low, 1) / 2))
        cpus = max(cpus, 2 * math.ceil(needs.memory_gb.low / most / 2))
        # In steps of 256 MB.
        memory_gb = math.ceil(max(needs.memory_gb.low, least * cpus) * 4) / 4
        # Custom types of N1 have no prefix.
        name = f"{series}-custom".removeprefix("n1-") + f"-{cpus}-{int(memory_gb * 1024)}"
        kind = MachineKind(type=name, cpus=float(cpus), memory_gb=memory_gb)
        if cpus <= _CUSTOM_CPUS_MAX[series] and _fits(kind, needs) and google_types.machine_type(kind.type):
            yield kind


def _unknown(what: str, name: str, known: Iterable[str]) -> BadRequest:
    near = difflib.get_close_matches(name, sorted(known), n=4, cutoff=0.4) or sorted(known)[:6]
    return BadRequest(f"Google has no {what} `{name}`", hint="did you mean " + ", ".join(f"`{n}`" for n in near))
