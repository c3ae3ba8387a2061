"""What is there without anybody making it: the project, zones, regions, machine, disk and accelerator types."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.clouds.local import google_types
from outlast_gcp_emulator.compute.context import Call, Context, Handler, aggregated, listing
from outlast_gcp_emulator.compute.refs import (
    GLOBAL,
    Doc,
    Ref,
    fingerprint,
    not_there,
    scope_link,
    stable_number,
)
from outlast_gcp_emulator.errors import invalid

_BORN = "2014-05-30T18:35:16.413+00:00"
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
    # Scripts that look for a place with GPUs read these first, and take a missing one for none.
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


_PROJECT_QUOTAS = ("CPUS_ALL_REGIONS", "GPUS_ALL_REGIONS", "IMAGES", "NETWORKS", "SNAPSHOTS")


def _quotas(metrics: tuple[str, ...] = _QUOTAS) -> list[Doc]:
    return [{"metric": metric, "limit": 1000000, "usage": 0} for metric in metrics]


# The project


def project_ref(project: str) -> Ref:
    """Where the settings of a project are kept; this is no address of Google's."""
    return Ref(project, GLOBAL, "project", project)


def common_metadata(context: Context, project: str) -> dict[str, str]:
    """The attributes that all machines of a project share."""
    items = (context.store.get(project_ref(project)) or {}).get("items", [])
    return {str(item["key"]): str(item.get("value", "")) for item in items}


def metadata_of(items: list[Doc]) -> Doc:
    answer: Doc = {"kind": "compute#metadata", "fingerprint": fingerprint(items)}
    return {**answer, "items": items} if items else answer


def service_account(project: str) -> str:
    return f"{stable_number(project)}-compute@developer.gserviceaccount.com"


def get_project(context: Context, call: Call) -> Doc:
    items = (context.store.get(project_ref(call.project)) or {}).get("items", [])
    return {
        "kind": "compute#project",
        "id": str(stable_number(call.project)),
        "creationTimestamp": _BORN,
        "name": call.project,
        "commonInstanceMetadata": metadata_of(items),
        "quotas": _quotas(_PROJECT_QUOTAS),
        "selfLink": scope_link(call.project, "").rstrip("/"),
        "defaultServiceAccount": service_account(call.project),
        "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
        "defaultNetworkTier": "PREMIUM",
    }


def check_items(items: object) -> list[Doc]:
    if not isinstance(items, list):
        raise invalid("Invalid value for field 'resource.items': a list is wanted.")
    for at, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("key"), str) or not item["key"]:
            raise invalid(f"Invalid value for field 'resource.items[{at}].key': a text is wanted.")
    keys = [item["key"] for item in items]
    if len(set(keys)) != len(keys):
        raise invalid("Invalid value for field 'resource.items': duplicate keys.")
    return [{"key": str(item["key"]), "value": str(item.get("value", ""))} for item in items]


# Zones and regions


def _zone(project: str, zone: str) -> Doc:
    return {
        "kind": "compute#zone",
        "id": str(stable_number(zone) % 10000),
        "creationTimestamp": _BORN,
        "name": zone,
        "description": zone,
        "status": "UP",
        "region": scope_link(project, f"regions/{google_types.region_of(zone)}"),
        "availableCpuPlatforms": _PLATFORMS,
        "selfLink": scope_link(project, f"zones/{zone}"),
    }


def _region(project: str, region: str) -> Doc:
    return {
        "kind": "compute#region",
        "id": str(stable_number(region) % 10000),
        "creationTimestamp": _BORN,
        "name": region,
        "description": region,
        "status": "UP",
        "zones": [scope_link(project, f"zones/{zone}") for zone in google_types.REGIONS[region]],
        "quotas": _quotas(),
        "selfLink": scope_link(project, f"regions/{region}"),
    }


def get_zone(context: Context, call: Call) -> Doc:
    if call.name not in google_types.ZONES:
        raise not_there(Ref(call.project, GLOBAL, "zones", call.name))
    return _zone(call.project, call.name)


def list_zones(context: Context, call: Call) -> Doc:
    return listing(call, "zone", "zones", [_zone(call.project, zone) for zone in google_types.ZONES])


def get_region(context: Context, call: Call) -> Doc:
    if call.name not in google_types.REGIONS:
        raise not_there(Ref(call.project, GLOBAL, "regions", call.name))
    return _region(call.project, call.name)


def list_regions(context: Context, call: Call) -> Doc:
    return listing(call, "region", "regions", [_region(call.project, region) for region in google_types.REGIONS])


# Types: each is in every zone


def _machine_type(project: str, zone: str, kind: google_types.GoogleType) -> Doc:
    doc: Doc = {
        "kind": "compute#machineType",
        "id": str(stable_number(kind.name)),
        "creationTimestamp": _BORN,
        "name": kind.name,
        "description": f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
        "guestCpus": kind.cpus,
        "memoryMb": kind.memory_mb,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 128,
        "maximumPersistentDisksSizeGb": "263168",
        # The bare name, unlike everywhere else.
        "zone": zone,
        "isSharedCpu": kind.shared,
        "architecture": "ARM64" if kind.name.startswith("t2a-") else "X86_64",
        "selfLink": scope_link(project, f"zones/{zone}/machineTypes/{kind.name}"),
    }
    if kind.accelerators:
        doc["accelerators"] = [
            {"guestAcceleratorType": kind.accelerator, "guestAcceleratorCount": kind.accelerators},
        ]
    return doc


def _disk_type(project: str, zone: str, name: str) -> Doc:
    size_gb, valid = _DISK_TYPES[name]
    return {
        "kind": "compute#diskType",
        "id": str(stable_number(name)),
        "creationTimestamp": _BORN,
        "name": name,
        "description": name,
        "validDiskSize": valid,
        "defaultDiskSizeGb": size_gb,
        "zone": scope_link(project, f"zones/{zone}"),
        "selfLink": scope_link(project, f"zones/{zone}/diskTypes/{name}"),
    }


def _accelerator(project: str, zone: str, name: str) -> Doc:
    return {
        "kind": "compute#acceleratorType",
        "id": str(stable_number(name)),
        "creationTimestamp": _BORN,
        "name": name,
        "description": name.replace("-", " ").replace("nvidia", "NVIDIA"),
        "maximumCardsPerInstance": google_types.ACCELERATORS[name],
        "zone": scope_link(project, f"zones/{zone}"),
        "selfLink": scope_link(project, f"zones/{zone}/acceleratorTypes/{name}"),
    }


def _all_types(project: str, zone: str, collection: str) -> list[Doc]:
    if collection == "machineTypes":
        return [_machine_type(project, zone, kind) for kind in google_types.TYPES.values()]
    if collection == "diskTypes":
        return [_disk_type(project, zone, name) for name in _DISK_TYPES]
    return [_accelerator(project, zone, name) for name in google_types.ACCELERATORS]


def get_type(collection: str) -> Handler:
    def get(call: Call) -> Doc:
        zone = call.scope.removeprefix("zones/")
        if collection == "machineTypes" and (kind := google_types.machine_type(call.name)) is not None:
            return _machine_type(call.project, zone, kind)
        for doc in _all_types(call.project, zone, collection):
            if doc["name"] == call.name:
                return doc
        raise not_there(call.ref(collection))

    return get


def list_types(kind: str, collection: str) -> Handler:
    return lambda call: listing(
        call, kind, collection, _all_types(call.project, call.scope.removeprefix("zones/"), collection)
    )


def aggregate_types(kind: str, collection: str) -> Handler:
    def every(project: str) -> Iterator[tuple[Ref, Doc]]:
        for zone in sorted(google_types.ZONES):
            for doc in _all_types(project, zone, collection):
                yield Ref(project, f"zones/{zone}", collection, doc["name"]), doc

    return lambda call: aggregated(call, kind, collection, list(every(call.project)))
