"""Finds, stops and kills processes: descendants, and those that carry a machine's marker."""

from __future__ import annotations

import os
import signal
import time

from outlast.clouds.local.linux import IS_LINUX

MARKER = "OUTLAST_MACHINE"
_STANDING_S_MAX = 0.2
# States of a process, by the kernel's letters.
_STOPPED = ("T", "t")
_GONE = ("Z", "X", "")


def kill_descendants(*, timeout_s: float = 10.0) -> bool:
    """Kill every descendant of this process, which must adopt orphans. Return whether none is left.

    No child left means no descendant left: a process that loses its parent becomes our child.
    """
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        for pid in descendants([os.getpid()]):
            _send(pid, signal.SIGKILL)
        if not _reap_all():
            return True
        time.sleep(0.0005)
    return False


def _reap_all() -> bool:
    """Reap dead children; return whether living ones remain."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants(ancestors: list[int]) -> list[int]:
    found: list[int] = []
    fresh = ancestors
    while fresh:
        fresh = [child for pid in fresh for child in _children(pid)]
        found += fresh
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as file:
                found += map(int, file.read().split())
    except OSError:
        # It has died; its children appear under their new parent.
        pass
    return found


def kill_marked(marker: str, *, timeout_s: float = 10.0) -> bool:
    """Kill every process whose environment has `OUTLAST_MACHINE=<marker>`, and their descendants.

    Return whether no marked process is left. A descendant that cleared its environment is found through its parent
    only, so all are stopped before the first is killed: no parent dies and no child is born during the search.
    """
    give_up_at = time.monotonic() + timeout_s
    while time.monotonic() < give_up_at:
        stopped: set[int] = set()
        found = marked(marker)
        while fresh := {*found, *descendants(found)} - stopped:
            for pid in fresh:
                _send(pid, signal.SIGSTOP)
            stopped |= fresh
            found = marked(marker)
        if not stopped:
            return True
        for pid in stopped:
            _send(pid, signal.SIGKILL)
        time.sleep(0.002)
    return False


def freeze(first: int, marker: str) -> list[int]:
    """Stop the process `first`, its descendants and the marked processes; return those to `thaw`.

    Parents are stopped before their children: a running shell that sees its job stopped treats it as suspended by the
    user and goes on. Processes that were stopped before stay stopped after `thaw`.
    """
    frozen: list[int] = []
    seen: set[int] = set()
    while fresh := [pid for pid in _subjects(first, marker) if pid not in seen]:
        for pid in fresh:
            if _stat(pid)[0] not in _STOPPED:
                _send(pid, signal.SIGSTOP)
                _wait_standing(pid)
                frozen.append(pid)
        seen.update(fresh)
    return frozen


def thaw(frozen: list[int]) -> None:
    """Continue the processes that `freeze` stopped: children first, so that no parent sees them stopped."""
    for pid in reversed(frozen):
        _send(pid, signal.SIGCONT)


def _subjects(first: int, marker: str) -> list[int]:
    """Return the processes to stop, each once, parents first."""
    found = marked(marker)
    members = {first, *found, *descendants([first, *found])}
    eldest = sorted(pid for pid in members if _stat(pid)[1] not in members)
    return [*eldest, *(pid for pid in descendants(eldest) if pid in members)]


def _wait_standing(pid: int) -> None:
    """Wait briefly until the kernel has stopped it. A process in disk I/O stops after that, and is not waited for."""
    give_up_at = time.monotonic() + _STANDING_S_MAX
    while _stat(pid)[0] not in (*_STOPPED, *_GONE) and time.monotonic() < give_up_at:
        time.sleep(0.0005)


def _stat(pid: int) -> tuple[str, int]:
    """Return the kernel's letter for its state, and its parent; empty if it is gone or there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return "", 0
    return state, int(parent)


def marked(marker: str) -> list[int]:
    """Return the living processes that carry the marker, except this one."""
    wanted = f"{MARKER}={marker}"
    found = _marked_in_proc(wanted.encode()) if IS_LINUX else _marked_in_ps(wanted)
    return [pid for pid in found if pid != os.getpid()]


def _marked_in_proc(wanted: bytes) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                # A zombie has no environment, so the dead are not found.
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def _marked_in_ps(wanted: str) -> list[int]:
    import subprocess  # costs 20 ms, too much for a shim's start

    listing = subprocess.run(["ps", "-E", "-ax", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    rows = (line.split() for line in listing.stdout.splitlines())
    return [int(row[0]) for row in rows if row and wanted in row[1:]]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
