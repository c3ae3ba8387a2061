"""Limits of memory and CPU for machines with namespaces, by control groups where the kernel has them."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress

from outlast.clouds.local.folder import Folder

_V1 = "/sys/fs/cgroup/{controller}"
_V2 = "/sys/fs/cgroup"
# Where both versions are mounted: no controllers here, but a group for every machine.
_HYBRID = "/sys/fs/cgroup/unified"
_PERIOD_US = 100_000


def apply(folder: Folder, pid: int) -> None:
    """Limit this process and its children to the machine's type. Limits that the kernel lacks are skipped."""
    if os.path.exists(f"{_HYBRID}/cgroup.procs"):
        _bind(f"{_HYBRID}/{_name(folder)}", pid, {})
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


def remove(folder: Folder, *, timeout_s: float = 0.0) -> None:
    """Remove the groups, waiting for the machine's dying processes."""
    give_up_at = time.monotonic() + timeout_s
    for path in (inner for group in _groups(folder) for inner in _with_children(group)):
        while True:
            try:
                os.rmdir(path)
            except OSError as problem:
                if problem.errno == errno.EBUSY and time.monotonic() < give_up_at:
                    time.sleep(0.01)
                    continue
            break


def _with_children(group: str) -> list[str]:
    """Return the group and those that a container runtime created below it, innermost first."""
    return [path for path, _, _ in os.walk(group, topdown=False)]


def _groups(folder: Folder) -> list[str]:
    roots = [_V2, _HYBRID, *(_V1.format(controller=controller) for controller in ("memory", "cpu"))]
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
