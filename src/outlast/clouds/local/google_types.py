"""Names and sizes of Google's zones and machine types, which the local cloud accepts beside its own.

A local machine of type `n1-standard-64` still has the cores of this computer. Only plans, prices and listings show the
type.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator

import msgspec

# Region → the letters of its zones.
_ODD_LETTERS = {"us-central1": "abcf", "us-east1": "bcd", "europe-west1": "bcd"}
_REGIONS = """
africa-south1 asia-east1 asia-east2 asia-northeast1 asia-northeast2 asia-northeast3 asia-south1 asia-south2
asia-southeast1 asia-southeast2 australia-southeast1 australia-southeast2 europe-central2 europe-north1 europe-north2
europe-southwest1 europe-west1 europe-west10 europe-west12 europe-west2 europe-west3 europe-west4 europe-west6
europe-west8 europe-west9 me-central1 me-central2 me-west1 northamerica-northeast1 northamerica-northeast2
northamerica-south1 southamerica-east1 southamerica-west1 us-central1 us-east1 us-east4 us-east5 us-south1 us-west1
us-west2 us-west3 us-west4
"""
REGIONS = {region: [f"{region}-{letter}" for letter in _ODD_LETTERS.get(region, "abc")] for region in _REGIONS.split()}
ZONES = frozenset(zone for zones in REGIONS.values() for zone in zones)


class GoogleType(msgspec.Struct, frozen=True, kw_only=True):
    """A machine type: CPUs, memory and built-in accelerators."""

    name: str
    cpus: int
    memory_mb: int
    accelerator: str = ""
    accelerators: int = 0
    shared: bool = False


# Series → kind → MiB of memory per CPU, and the numbers of CPUs. From Google's tables of machine families.
_SERIES: dict[str, dict[str, tuple[float, str]]] = {
    "n1": {
        "standard": (3840, "1 2 4 8 16 32 64 96"),
        "highmem": (6656, "2 4 8 16 32 64 96"),
        "highcpu": (921.6, "2 4 8 16 32 64 96"),
    },
    "n2": {
        "standard": (4096, "2 4 8 16 32 48 64 80 96 128"),
        "highmem": (8192, "2 4 8 16 32 48 64 80 96"),
        "highcpu": (1024, "2 4 8 16 32 48 64 80 96"),
    },
    "n2d": {
        "standard": (4096, "2 4 8 16 32 48 64 80 96 128 224"),
        "highmem": (8192, "2 4 8 16 32 48 64 80 96"),
        "highcpu": (1024, "2 4 8 16 32 48 64 80 96 128 224"),
    },
    "n4": {
        "standard": (4096, "2 4 8 16 32 48 64 80"),
        "highmem": (8192, "2 4 8 16 32 48 64 80"),
        "highcpu": (2048, "2 4 8 16 32 48 64 80"),
    },
    "e2": {
        "standard": (4096, "2 4 8 16 32"),
        "highmem": (8192, "2 4 8 16"),
        "highcpu": (1024, "2 4 8 16 32"),
    },
    "c2": {"standard": (4096, "4 8 16 30 60")},
    "c2d": {
        "standard": (4096, "2 4 8 16 32 56 112"),
        "highmem": (8192, "2 4 8 16 32 56 112"),
        "highcpu": (2048, "2 4 8 16 32 56 112"),
    },
    "c3": {
        "standard": (4096, "4 8 22 44 88 176"),
        "highmem": (8192, "4 8 22 44 88 176"),
        "highcpu": (2048, "4 8 22 44 88 176"),
    },
    "c3d": {
        "standard": (4096, "4 8 16 30 60 90 180 360"),
        "highmem": (8192, "4 8 16 30 60 90 180 360"),
    },
    "t2d": {"standard": (4096, "1 2 4 8 16 32 48 60")},
    "t2a": {"standard": (4096, "1 2 4 8 16 32 48")},
    "c4": {
        "standard": (3840, "4 8 16 24 32 48 96 144 192"),
        "highmem": (7936, "4 8 16 24 32 48 96 144 192"),
        "highcpu": (2048, "2 4 8 16 24 32 48 96 144 192"),
    },
    "n4d": {
        "standard": (4096, "2 4 8 16 32 48 64 80 96"),
        "highmem": (8192, "2 4 8 16 32 48 64 80 96"),
        "highcpu": (2048, "2 4 8 16 32 48 64 80 96"),
    },
}

# Types outside of that scheme → CPUs, MiB, accelerator, number of accelerators.
_SINGLE: dict[str, tuple[int, int, str, int]] = {
    "f1-micro": (1, 614, "", 0),
    "g1-small": (1, 1740, "", 0),
    "e2-micro": (2, 1024, "", 0),
    "e2-small": (2, 2048, "", 0),
    "e2-medium": (2, 4096, "", 0),
    "m1-megamem-96": (96, 1467392, "", 0),
    "m1-ultramem-40": (40, 984064, "", 0),
    "m1-ultramem-80": (80, 1968128, "", 0),
    "m1-ultramem-160": (160, 3936256, "", 0),
    "a2-highgpu-1g": (12, 87040, "nvidia-tesla-a100", 1),
    "a2-highgpu-2g": (24, 174080, "nvidia-tesla-a100", 2),
    "a2-highgpu-4g": (48, 348160, "nvidia-tesla-a100", 4),
    "a2-highgpu-8g": (96, 696320, "nvidia-tesla-a100", 8),
    "a2-megagpu-16g": (96, 1392640, "nvidia-tesla-a100", 16),
    "a2-ultragpu-1g": (12, 174080, "nvidia-a100-80gb", 1),
    "a2-ultragpu-2g": (24, 348160, "nvidia-a100-80gb", 2),
    "a2-ultragpu-4g": (48, 696320, "nvidia-a100-80gb", 4),
    "a2-ultragpu-8g": (96, 1392640, "nvidia-a100-80gb", 8),
    "a3-highgpu-1g": (26, 239616, "nvidia-h100-80gb", 1),
    "a3-highgpu-2g": (52, 479232, "nvidia-h100-80gb", 2),
    "a3-highgpu-4g": (104, 958464, "nvidia-h100-80gb", 4),
    "a3-highgpu-8g": (208, 1916928, "nvidia-h100-80gb", 8),
    "a3-megagpu-8g": (208, 1916928, "nvidia-h100-mega-80gb", 8),
    "a3-ultragpu-8g": (224, 3022848, "nvidia-h200-141gb", 8),
    "a4-highgpu-8g": (224, 4063232, "nvidia-b200", 8),
    "g4-standard-48": (48, 184320, "nvidia-rtx-pro-6000", 1),
    "g4-standard-96": (96, 368640, "nvidia-rtx-pro-6000", 2),
    "g4-standard-192": (192, 737280, "nvidia-rtx-pro-6000", 4),
    "g4-standard-384": (384, 1474560, "nvidia-rtx-pro-6000", 8),
    "g2-standard-4": (4, 16384, "nvidia-l4", 1),
    "g2-standard-8": (8, 32768, "nvidia-l4", 1),
    "g2-standard-12": (12, 49152, "nvidia-l4", 1),
    "g2-standard-16": (16, 65536, "nvidia-l4", 1),
    "g2-standard-24": (24, 98304, "nvidia-l4", 2),
    "g2-standard-32": (32, 131072, "nvidia-l4", 1),
    "g2-standard-48": (48, 196608, "nvidia-l4", 4),
    "g2-standard-96": (96, 393216, "nvidia-l4", 8),
}
_SHARED = ("f1-micro", "g1-small", "e2-micro", "e2-small", "e2-medium")

# Accelerator → the most of them per machine.
ACCELERATORS = {
    "nvidia-tesla-k80": 8,
    "nvidia-tesla-p4": 4,
    "nvidia-tesla-p100": 4,
    "nvidia-tesla-t4": 4,
    "nvidia-tesla-v100": 8,
    "nvidia-tesla-a100": 16,
    "nvidia-a100-80gb": 8,
    "nvidia-h100-80gb": 8,
    "nvidia-h100-mega-80gb": 8,
    "nvidia-h200-141gb": 8,
    "nvidia-b200": 8,
    "nvidia-rtx-pro-6000": 8,
    "nvidia-l4": 8,
}

# `custom-4-8192` is of series N1; memory in MiB, a multiple of 256.
_CUSTOM = re.compile(r"(?:(?:n1|n2|n2d|n4|e2|c2d)-)?custom-(\d{1,3})-(\d{3,7})(?:-ext)?")


def _all_types() -> Iterator[GoogleType]:
    for series, kinds in _SERIES.items():
        for kind, (memory_mb, sizes) in kinds.items():
            for cpus in map(int, sizes.split()):
                yield GoogleType(name=f"{series}-{kind}-{cpus}", cpus=cpus, memory_mb=int(memory_mb * cpus))
    for name, (cpus, memory, accelerator, count) in _SINGLE.items():
        yield GoogleType(
            name=name,
            cpus=cpus,
            memory_mb=memory,
            accelerator=accelerator,
            accelerators=count,
            shared=name in _SHARED,
        )


TYPES = {kind.name: kind for kind in _all_types()}


@functools.cache
def machine_type(name: str) -> GoogleType | None:
    """Return the type of that name, custom types included; None if Google has none."""
    if (known := TYPES.get(name)) is not None:
        return known
    if (custom := _CUSTOM.fullmatch(name)) is None:
        return None
    cpus, memory_mb = int(custom[1]), int(custom[2])
    if cpus < 1 or memory_mb % 256 or (cpus > 1 and cpus % 2):
        return None
    return GoogleType(name=name, cpus=cpus, memory_mb=memory_mb)


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]
