"""Resources that Google provides: zones, regions with their capacity advice, machine, disk and accelerator types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from outlast.clouds.local import google_types
from outlast.errors import NoCapacity, OverQuota
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.project import CREATED_AT, quotas
from outlast_gcp_emulator.compute.refs import GLOBAL, Doc, Ref, last, resource_not_found, scope_link, stable_number
from outlast_gcp_emulator.compute.resource import ZONAL, Resource, RouteEntry, builtin_resource
from outlast_gcp_emulator.errors import invalid

_PLATFORMS = ["Intel Broadwell", "Intel Cascade Lake", "Intel Haswell", "Intel Ice Lake", "Intel Skylake", "AMD Milan"]
_DISK_TYPES = {
    "pd-standard": ("500", "10GB-65536GB"),
    "pd-balanced": ("100", "10GB-65536GB"),
    "pd-ssd": ("100", "10GB-65536GB"),
    "pd-extreme": ("1000", "500GB-65536GB"),
    "hyperdisk-balanced": ("100", "4GB-65536GB"),
    "local-ssd": ("375", "375GB-375GB"),
}
_QUOTAS = (
    "CPUS",
    # Scripts that search for a region with GPUs read these first, and treat a missing one as zero.
    "NVIDIA_A100_GPUS",
    "NVIDIA_L4_GPUS",
    "NVIDIA_P100_GPUS",
    "NVIDIA_T4_GPUS",
    "NVIDIA_V100_GPUS",
    "PREEMPTIBLE_NVIDIA_A100_GPUS",
    "PREEMPTIBLE_NVIDIA_L4_GPUS",
    "PREEMPTIBLE_NVIDIA_P100_GPUS",
    "PREEMPTIBLE_NVIDIA_T4_GPUS",
    "PREEMPTIBLE_NVIDIA_V100_GPUS",
    "DISKS_TOTAL_GB",
    "INSTANCES",
    "IN_USE_ADDRESSES",
    "PREEMPTIBLE_CPUS",
    "SSD_TOTAL_GB",
    "STATIC_ADDRESSES",
)
# Scores of a zone with room, and of one without.
_OBTAINABLE, _UNOBTAINABLE = 0.9, 0.1
# The expected uptime of a spot machine in a zone without a preemption rate.
_UPTIME_S = 86400.0


class BuiltinKind(Resource, ABC):
    """A kind whose resources are fixed and in no store."""

    names: Iterable[str] = ()

    @abstractmethod
    def describe(self, ref: Ref) -> Doc | None:
        """Return the resource; None if it does not exist."""

    def scopes(self, scope: str) -> Iterable[str]:
        return [scope]

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        refs = [Ref(project, place, self.collection, name) for place in self.scopes(scope) for name in self.names]
        return [(ref, doc) for ref in refs if (doc := self.describe(ref)) is not None]

    def get(self, call: Call) -> Doc:
        ref = self.ref(call)
        if (doc := self.describe(ref)) is None:
            raise resource_not_found(ref if ref.scope else ref._replace(scope=GLOBAL))
        return doc

    def routes(self) -> Iterator[RouteEntry]:
        yield from self.read_routes("")


class Zones(BuiltinKind):
    kind = "zone"
    names = google_types.ZONES

    def describe(self, ref: Ref) -> Doc | None:
        if ref.name not in google_types.ZONES:
            return None
        region = scope_link(ref.project, f"regions/{google_types.region_of(ref.name)}")
        return _location(ref, self.kind, region=region, availableCpuPlatforms=_PLATFORMS)


class Regions(BuiltinKind):
    kind = "region"
    names = google_types.REGIONS

    def routes(self) -> Iterator[RouteEntry]:
        yield from super().routes()
        yield "POST", "/regions/{name}/advice/capacity", self.capacity

    def describe(self, ref: Ref) -> Doc | None:
        if ref.name not in google_types.REGIONS:
            return None
        zones = [scope_link(ref.project, f"zones/{zone}") for zone in google_types.REGIONS[ref.name]]
        return _location(ref, self.kind, zones=zones, quotas=quotas(_QUOTAS, self.context.surroundings.now.quotas))

    def capacity(self, call: Call) -> Doc:
        """Return one recommendation: the first zone with room, for the first requested machine type."""
        if call.name not in google_types.REGIONS:
            raise resource_not_found(Ref(call.project, GLOBAL, "regions", call.name))
        policy = call.body.get("distributionPolicy", {})
        zones = [zone for zone in google_types.ZONES if google_types.region_of(zone) == call.name]
        requested = [last(zone.get("zone")) for zone in policy.get("zones", [])]
        if unknown := [zone for zone in requested if zone not in zones]:
            raise invalid(f"Invalid value for field 'distributionPolicy.zones': '{unknown[0]}' is not in {call.name}")
        selections = call.body.get("instanceFlexibilityPolicy", {}).get("instanceSelections", {})
        types = [str(name) for selection in selections.values() for name in selection.get("machineTypes", [])]
        model = call.body.get("instanceProperties", {}).get("scheduling", {}).get("provisioningModel", "STANDARD")
        if not types or not call.body.get("size"):
            raise invalid("Required field 'size' or 'instanceFlexibilityPolicy.instanceSelections' not specified")
        scores = {zone: self._obtainability(zone, spot=model == "SPOT") for zone in requested or zones}
        best = max(scores, key=lambda zone: scores[zone])
        uptime_s = self.context.cloud.zone_settings().get(best, {}).get("mean_life_s") or _UPTIME_S
        shard = {
            "zone": best,
            "machineType": types[0],
            "instanceCount": int(call.body["size"]),
            "provisioningModel": model,
        }
        score = {"obtainability": scores[best], "estimatedUptime": f"{float(uptime_s):.0f}s"}
        return {"recommendations": [{"scores": score, "shards": [shard]}]}

    def _obtainability(self, zone: str, *, spot: bool) -> float:
        try:
            self.context.cloud.check_room(zone, spot=spot)
        except (NoCapacity, OverQuota):
            return _UNOBTAINABLE
        return _OBTAINABLE


class ZonalType(BuiltinKind):
    """A type that every zone has."""

    def routes(self) -> Iterator[RouteEntry]:
        yield from self.read_routes(ZONAL)
        yield self.aggregated_route()

    def scopes(self, scope: str) -> Iterable[str]:
        return [scope] if scope else [f"zones/{zone}" for zone in sorted(google_types.ZONES)]


class MachineTypes(ZonalType):
    kind = "machineType"
    names = google_types.TYPES

    def describe(self, ref: Ref) -> Doc | None:
        if (kind := google_types.machine_type(ref.name)) is None:
            return None
        accelerators = [{"guestAcceleratorType": kind.accelerator, "guestAcceleratorCount": kind.accelerators}]
        return _zonal_type(
            ref,
            self.kind,
            description=f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
            guestCpus=kind.cpus,
            memoryMb=kind.memory_mb,
            imageSpaceGb=0,
            maximumPersistentDisks=128,
            maximumPersistentDisksSizeGb="263168",
            # The bare name, unlike in every other kind.
            zone=last(ref.scope),
            isSharedCpu=kind.shared,
            architecture="ARM64" if kind.name.startswith("t2a-") else "X86_64",
            **({"accelerators": accelerators} if kind.accelerators else {}),
        )


class DiskTypes(ZonalType):
    kind = "diskType"
    names = _DISK_TYPES

    def describe(self, ref: Ref) -> Doc | None:
        if ref.name not in _DISK_TYPES:
            return None
        size_gb, valid = _DISK_TYPES[ref.name]
        return _zonal_type(ref, self.kind, description=ref.name, validDiskSize=valid, defaultDiskSizeGb=size_gb)


class AcceleratorTypes(ZonalType):
    kind = "acceleratorType"
    names = google_types.ACCELERATORS

    def describe(self, ref: Ref) -> Doc | None:
        if ref.name not in google_types.ACCELERATORS:
            return None
        description = ref.name.replace("-", " ").replace("nvidia", "NVIDIA")
        cards = google_types.ACCELERATORS[ref.name]
        return _zonal_type(ref, self.kind, description=description, maximumCardsPerInstance=cards)


def builtin_kinds(context: Context) -> list[BuiltinKind]:
    kinds = (Zones, Regions, MachineTypes, DiskTypes, AcceleratorTypes)
    return [kind(context) for kind in kinds]


def _location(ref: Ref, kind: str, **fields: object) -> Doc:
    fields |= {
        "id": str(stable_number(ref.name) % 10000),
        "description": ref.name,
        "status": "UP",
        "selfLink": scope_link(ref.project, f"{ref.collection}/{ref.name}"),
    }
    return builtin_resource(ref, kind, CREATED_AT, **fields)


def _zonal_type(ref: Ref, kind: str, **fields: object) -> Doc:
    zone = {"id": str(stable_number(ref.name)), "zone": scope_link(ref.project, ref.scope)}
    return builtin_resource(ref, kind, CREATED_AT, **zone | fields)
