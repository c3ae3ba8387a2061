"""Zones, machine types and prices of the local cloud. Invented, but close to real ones, so that plans look alike."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

import msgspec

from outlast.clouds.alternatives import offers_by_gpu
from outlast.clouds.cloud import Offer, Requirements
from outlast.clouds.local import google_types
from outlast.errors import BadRequest
from outlast.spec.gpus import gpu_model, matches_gpu

CLOUD = "local"
# The image of a machine with nothing but this computer's software.
BASE_IMAGE = "base"

# Zone → spot price as a fraction of the on-demand price; different in each zone, so that there is a choice.
ZONES = {"local1-a": 0.30, "local1-b": 0.31, "local1-c": 0.29, "local2-a": 0.32, "local2-b": 0.28}
REGIONS = tuple(sorted({zone.rpartition("-")[0] for zone in ZONES}))

_CPU_USD_PER_HOUR = 0.04
# 4 cents per month, like a standard disk of GCE.
DISK_USD_PER_GB_HOUR = 0.04 / 730
_GPU_USD_PER_HOUR = {"": 0.0, "T4": 0.35, "V100": 2.48, "A100": 2.93}
_OTHER_GPU_USD_PER_HOUR = 1.0
# In zones with Google's names.
_SPOT_PART = 0.30
_MEMORY_GB_PER_CPU = 4.0


class MachineType(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cpus: int
    gpu: str = ""
    gpus: int = 0
    # Overrides the memory that follows from the CPUs.
    memory_own_gb: float = 0.0

    @property
    def memory_gb(self) -> float:
        return self.memory_own_gb or self.cpus * _MEMORY_GB_PER_CPU

    @property
    def on_demand_usd_per_hour(self) -> float:
        gpu_usd = _GPU_USD_PER_HOUR.get(self.gpu, _OTHER_GPU_USD_PER_HOUR)
        return round(self.cpus * _CPU_USD_PER_HOUR + self.gpus * gpu_usd, 6)


_ALL_TYPES = [
    *(MachineType(name=f"local-{cpus}", cpus=cpus) for cpus in (1, 2, 4, 8, 16, 32, 64)),
    MachineType(name="local-4-t4", cpus=4, gpu="T4", gpus=1),
    MachineType(name="local-8-v100", cpus=8, gpu="V100", gpus=1),
    MachineType(name="local-12-a100", cpus=12, gpu="A100", gpus=1),
    MachineType(name="local-96-a100", cpus=96, gpu="A100", gpus=8),
]
TYPES = {kind.name: kind for kind in _ALL_TYPES}


def offers(needs: Requirements) -> list[Offer]:
    """Return every matching offer, cheapest first; equal prices ordered by name."""
    return offers_by_gpu(needs, _offers)


def _offers(needs: Requirements) -> list[Offer]:
    kinds = [kind(needs.type)] if needs.type else _ALL_TYPES
    for place in (*needs.zones, *needs.exclude_zones):
        check_place(place)
    fitting = [_offer(each, zone, spot=needs.spot) for zone in _zones(needs) for each in kinds if _fits(each, needs)]
    return sorted(fitting, key=lambda offer: (offer.price_usd_per_hour, offer.zone, offer.type))


def kind(name: str) -> MachineType:
    """Return the machine type of that name: a local one, or one of Google's. Raises BadRequest."""
    if (known := TYPES.get(name)) is not None:
        return known
    if (foreign := google_types.machine_type(name)) is None:
        raise unknown("machine type", name, TYPES)
    model = gpu_model(foreign.accelerator)
    gpu = model.name if model is not None else foreign.accelerator
    memory_gb = foreign.memory_mb / 1024
    return MachineType(name=name, cpus=foreign.cpus, gpu=gpu, gpus=foreign.accelerators, memory_own_gb=memory_gb)


def offer(type: str, zone: str, *, spot: bool) -> Offer:
    """Return the offer of a type in a zone; both may have Google's names. Raises BadRequest."""
    check_zone(zone)
    return _offer(kind(type), zone, spot=spot)


def check_type(name: str) -> None:
    kind(name)


def check_zone(name: str) -> None:
    if name not in ZONES and name not in google_types.ZONES:
        raise unknown("zone", name, ZONES)


def check_place(name: str) -> None:
    if name not in ZONES and name not in REGIONS and name not in google_types.ZONES:
        raise unknown("zone", name, (*ZONES, *REGIONS))


def unknown(what: str, name: str, known: Iterable[str]) -> BadRequest:
    """Return an error for an unknown name, with similar known ones as the hint."""
    near = difflib.get_close_matches(name, list(known), n=4, cutoff=0.4) or sorted(known)
    return BadRequest(
        f"the local cloud has no {what} `{name}`", hint="did you mean " + ", ".join(f"`{n}`" for n in near)
    )


def _zones(needs: Requirements) -> Iterator[str]:
    # Google's zones only on request.
    for zone in (*ZONES, *(zone for zone in needs.zones if zone in google_types.ZONES)):
        names = {zone, zone.rpartition("-")[0]}
        if (not needs.zones or names & set(needs.zones)) and not names & set(needs.exclude_zones):
            yield zone


def _fits(kind: MachineType, needs: Requirements) -> bool:
    if needs.type:
        return kind.name == needs.type
    if kind.cpus not in needs.cpus or kind.memory_gb not in needs.memory_gb:
        return False
    if not needs.gpu and not needs.gpus:
        return not kind.gpu
    right_gpu = kind.gpu != "" if not needs.gpu else matches_gpu(needs.gpu, kind.gpu)
    return right_gpu and needs.gpus in (0, kind.gpus)


def _offer(kind: MachineType, zone: str, *, spot: bool) -> Offer:
    on_demand, part = kind.on_demand_usd_per_hour, ZONES.get(zone, _SPOT_PART)
    return Offer(
        cloud=CLOUD,
        region=zone.rpartition("-")[0],
        zone=zone,
        type=kind.name,
        cpus=float(kind.cpus),
        memory_gb=kind.memory_gb,
        gpu=kind.gpu,
        gpus=kind.gpus,
        spot=spot,
        price_usd_per_hour=round(on_demand * part, 6) if spot else on_demand,
        on_demand_usd_per_hour=on_demand,
        price_source="the local cloud's own list, made up",
    )
