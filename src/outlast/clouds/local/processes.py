"""Finding and killing processes: the descendants of this one, and those that carry a machine's marker."""

from __future__ import annotations

import os
import signal
import time

from outlast.clouds.local.linux import IS_LINUX

MARKER = "OUTLAST_MACHINE"


def kill_descendants(*, patience_s: float = 10.0) -> bool:
    """Kill every descendant of this process, which must adopt orphans. True when none is left.

    No child left means no descendant left: whoever loses its parent becomes ours.
    """
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        for pid in descendants([os.getpid()]):
            _send(pid, signal.SIGKILL)
        if not _reap_all():
            return True
        time.sleep(0.0005)
    return False


def _reap_all() -> bool:
    """Collect the dead; True while there are living children."""
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
        # It has died meanwhile, and then its children are found with their new parent.
        pass
    return found


def kill_marked(marker: str, *, patience_s: float = 10.0) -> bool:
    """Kill every process whose environment carries `OUTLAST_MACHINE=<marker>`, and their descendants.

    True when no marked one is left. A descendant that emptied its environment is known by its parent alone, so all are
    stopped before the first is killed: nobody loses a parent, or gains a child, while we look.
    """
    give_up_at = time.monotonic() + patience_s
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


def marked(marker: str) -> list[int]:
    """Living processes that carry the marker, but for this one."""
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
                # A zombie has no environment any more, so the dead do not count.
                if wanted in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def _marked_in_ps(wanted: str) -> list[int]:
    import subprocess  # costs 20 ms, which the keeper does not have

    listing = subprocess.run(["ps", "-E", "-ax", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    lines = (line.split() for line in listing.stdout.splitlines())
    return [int(words[0]) for words in lines if words and wanted in words[1:]]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
