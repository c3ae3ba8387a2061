"""Machine types of Google Cloud that match a request: Google's own list, completed by a table of common types."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from outlast.clouds.cloud import Requirements
from outlast.clouds.gcp.prices import PricedMachine, series_of
from outlast.clouds.local import google_types
from outlast.errors import BadRequest
from outlast.spec.gpus import GPU_NAMES, gpu_model, least_memory_gb, matches_gpu

# Google's name of a GPU → the common one, and the series whose types have it built in.
ACCELERATORS = {
    "nvidia-tesla-p4": ("P4", "n1"),
    "nvidia-tesla-t4": ("T4", "n1"),
    "nvidia-tesla-p100": ("P100", "n1"),
    "nvidia-tesla-v100": ("V100", "n1"),
    "nvidia-l4": ("L4", "g2"),
    "nvidia-tesla-a100": ("A100", "a2"),
    "nvidia-a100-80gb": ("A100-80GB", "a2"),
    "nvidia-h100-80gb": ("H100", "a3"),
    "nvidia-h100-mega-80gb": ("H100", "a3"),
    "nvidia-h200-141gb": ("H200", "a3"),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", "g4"),
    "nvidia-b200": ("B200", "a4"),
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
_ARM = ("t2a", "c4a", "n4a", "a4x")
# Types that are used by name only: their local disks or licences cost more than our price, or they boot for minutes.
_BY_NAME = re.compile(r".*-(lssd|standardlssd|highlssd|metal|ext)\b.*|(z3|x4|m2|h3|h4d)-.*")
_G4_CPUS_MIN = 48
# Google sells these as spot or flex-start only.
SPOT_ONLY = re.compile(r"a3-highgpu-[124]g")
# Older than the driver of the default image, whose open kernel modules begin with the T4.
_WITHOUT_DRIVER = ("nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-tesla-v100")


class MachineKind(msgspec.Struct, frozen=True, kw_only=True):
    """A machine type, with the GPUs that are built in or attached to it."""

    type: str
    cpus: float
    memory_gb: float
    accelerator: str = ""
    count: int = 0
    attached: bool = False
    arm: bool = False

    @property
    def gpu(self) -> str:
        """The common name of its GPU; Google's name for one that we do not know."""
        return ACCELERATORS[self.accelerator][0] if self.accelerator in ACCELERATORS else self.accelerator

    @property
    def priced(self) -> PricedMachine:
        return PricedMachine(
            type=self.type,
            cpus=self.cpus,
            memory_gb=self.memory_gb,
            accelerator=self.accelerator,
            count=self.count,
        )


def kind_of(known: google_types.GoogleType) -> MachineKind:
    """Return a type of the table."""
    return MachineKind(
        type=known.name,
        cpus=float(known.cpus),
        memory_gb=known.memory_mb / 1024,
        accelerator=known.accelerator,
        count=known.accelerators,
        arm=series_of(known.name) in _ARM,
    )


def read_type(item: dict[str, Any]) -> MachineKind:
    """Return a type from Google's description."""
    gpu = (item.get("accelerators") or [{}])[0]
    return MachineKind(
        type=str(item["name"]),
        cpus=float(item.get("guestCpus", 0)),
        memory_gb=float(item.get("memoryMb", 0)) / 1024,
        accelerator=str(gpu.get("guestAcceleratorType", "")),
        count=int(gpu.get("guestAcceleratorCount", 0)),
        arm=item.get("architecture") == "ARM64",
    )


def accelerators(gpu: str) -> tuple[str, ...]:
    """Return Google's names of the requested GPU; none if Google has it in no type that we know."""
    if not gpu:
        return ()
    if gpu.lower() in ACCELERATORS:
        return (gpu.lower(),)
    return tuple(name for name, (common, _) in ACCELERATORS.items() if matches_gpu(gpu, common))


def is_known_gpu(gpu: str) -> bool:
    return gpu_model(gpu) is not None or least_memory_gb(gpu) is not None or gpu.lower() in ACCELERATORS


def type_pattern(gpu: str) -> str:
    """Return a regular expression of the types that have a GPU built in; empty if it is only attached to others."""
    if not gpu or not is_known_gpu(gpu):
        return "(a|g)[0-9].*"
    series = {ACCELERATORS[name][1] for name in accelerators(gpu)} - {"n1"}
    return f"({'|'.join(sorted(series))})-.*" if series else ""


def matching_kinds(needs: Requirements, listed: Iterable[MachineKind]) -> list[MachineKind]:
    """Return the types that match; a custom type if no predefined one does."""
    found = [kind for kind in _every_kind(needs, listed) if fits(kind, needs)]
    if not found and not needs.gpu and not needs.gpus:
        found = list(_custom(needs))
    return found


def _every_kind(needs: Requirements, listed: Iterable[MachineKind]) -> Iterator[MachineKind]:
    known = {kind.type: kind for kind in map(kind_of, google_types.TYPES.values()) if not _is_shared(kind.type)}
    if needs.gpu or needs.gpus:
        # Types with GPUs are new and rare: only Google's own list says which exist.
        known = {name: kind for name, kind in known.items() if not kind.accelerator}
    known |= {kind.type: kind for kind in listed if not _is_shared(kind.type)}
    wanted = accelerators(needs.gpu) or tuple(_ATTACHED)
    for kind in known.values():
        if kind.arm or _BY_NAME.fullmatch(kind.type) or (kind.type.startswith("g4-") and kind.cpus < _G4_CPUS_MIN):
            continue
        yield kind
        if series_of(kind.type) == "n1":
            for accelerator in set(wanted) & set(_ATTACHED):
                for count in _ATTACHED[accelerator]:
                    if kind.cpus <= _CPUS_PER_GPU[accelerator] * count:
                        yield msgspec.structs.replace(kind, accelerator=accelerator, count=count, attached=True)


def _is_shared(type: str) -> bool:
    known = google_types.TYPES.get(type)
    return known is not None and known.shared


def fits(kind: MachineKind, needs: Requirements) -> bool:
    if kind.cpus not in needs.cpus or kind.memory_gb not in needs.memory_gb:
        return False
    if not needs.gpu and not needs.gpus:
        return not kind.accelerator
    right = bool(kind.accelerator) if not needs.gpu else _has(kind, needs.gpu)
    return right and needs.gpus in (0, kind.count)


def _has(kind: MachineKind, gpu: str) -> bool:
    wanted = accelerators(gpu)
    # A GPU that we do not know is requested by Google's name.
    return kind.accelerator in wanted if wanted else kind.accelerator == gpu.lower()


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
        if cpus <= _CUSTOM_CPUS_MAX[series] and fits(kind, needs) and google_types.machine_type(kind.type):
            yield kind


def with_attached(kind: MachineKind, needs: Requirements) -> MachineKind:
    """Return a type that the user named, with the requested GPUs attached if it has none."""
    wanted = accelerators(needs.gpu)
    if not wanted or kind.accelerator or series_of(kind.type) != "n1":
        return kind
    return msgspec.structs.replace(kind, accelerator=wanted[0], count=max(1, needs.gpus), attached=True)


def with_driver(kinds: list[MachineKind], gpu: str) -> list[MachineKind]:
    """Return the types whose GPU the default image has a driver for. Raises BadRequest if only others match."""
    found = [kind for kind in kinds if kind.accelerator not in _WITHOUT_DRIVER]
    if kinds and not found:
        why = f"the driver of the default image does not support the GPU `{gpu}`"
        raise BadRequest(why, hint="name an image with a driver for it: [machine] image; or use a T4 or newer")
    return found


def listed_type(kind: MachineKind) -> str:
    """Return the listed type whose zones have this one: a custom type is available wherever its series is."""
    return kind.type if "custom" not in kind.type else f"{series_of(kind.type)}-standard-4"


def unknown_name(what: str, name: str, known: Iterable[str]) -> BadRequest:
    near = difflib.get_close_matches(name, sorted(known), n=4, cutoff=0.4) or sorted(known)[:6]
    return BadRequest(f"unknown {what} on Google Cloud: `{name}`", hint=f"did you mean {_quoted(near)}")


def unknown_gpu(name: str) -> BadRequest:
    near = difflib.get_close_matches(name.upper(), GPU_NAMES, n=4, cutoff=0.4) or GPU_NAMES
    hint = f"did you mean {_quoted(near)}? A size such as `24GB+` and Google's own names are allowed, too"
    return BadRequest(f"outlast does not know the GPU `{name}`, and Google Cloud lists no such accelerator", hint=hint)


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
