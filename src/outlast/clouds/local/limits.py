"""How much memory and processor a realistic machine may use, where the kernel lets us say so. Kills nothing."""

from __future__ import annotations

import os
from contextlib import suppress

from outlast.clouds.local.folder import Folder

_V1 = "/sys/fs/cgroup/{controller}"
_V2 = "/sys/fs/cgroup"
_PERIOD_US = 100_000


def put(folder: Folder, pid: int) -> None:
    """Bind this process and what it will start to the limits of the machine's type. What cannot be had is left out."""
    facts = folder.facts() or {}
    cpus, memory_gb = float(facts.get("cpus", 0.0)), float(facts.get("memory_gb", 0.0))
    if not cpus or not memory_gb:
        return
    memory, quota = int(memory_gb * 2**30), int(cpus * _PERIOD_US)
    if os.path.exists(f"{_V2}/cgroup.controllers"):
        _bind(f"{_V2}/{_name(folder)}", pid, {"memory.max": memory, "cpu.max": f"{quota} {_PERIOD_US}"})
        return
    _bind(f"{_V1.format(controller='memory')}/{_name(folder)}", pid, {"memory.limit_in_bytes": memory})
    if cpus < (os.cpu_count() or 1):
        _bind(f"{_V1.format(controller='cpu')}/{_name(folder)}", pid, {"cpu.cfs_quota_us": quota})


def lift(folder: Folder) -> None:
    """Remove the groups; the machine's processes are dead."""
    for place in _places(folder):
        with suppress(OSError):
            os.rmdir(place)


def _places(folder: Folder) -> list[str]:
    roots = [_V2, *(_V1.format(controller=controller) for controller in ("memory", "cpu"))]
    return [f"{root}/{_name(folder)}" for root in roots]


def _name(folder: Folder) -> str:
    return f"outlast-{(folder.facts() or {}).get('id')}"


def _bind(group: str, pid: int, settings: dict[str, int | str]) -> None:
    try:
        os.mkdir(group)
        for name, value in {**settings, "cgroup.procs": pid}.items():
            with open(f"{group}/{name}", "w", encoding="ascii") as file:
                file.write(str(value))
    except OSError:
        with suppress(OSError):
            os.rmdir(group)
