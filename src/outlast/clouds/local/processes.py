"""Finding, stopping and killing processes: descendants, and those that carry a machine's marker."""

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
    """Kill every descendant of this process, which must adopt orphans. True when none is left.

    No child left means no descendant left: whoever loses its parent becomes ours.
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


def kill_marked(marker: str, *, timeout_s: float = 10.0) -> bool:
    """Kill every process whose environment carries `OUTLAST_MACHINE=<marker>`, and their descendants.

    True when no marked one is left. A descendant that emptied its environment is known by its parent alone, so all are
    stopped before the first is killed: nobody loses a parent, or gains a child, while we look.
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
    """Stop the process `first`, its descendants and those marked, where they stand; answers with whom to `thaw`.

    Parents before their children, each after the one before stands: a shell that sees its job stopped takes it for put
    aside by hand, and goes on without it. Who was stopped already is left so, then and afterwards.
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
    """Let those go on that `freeze` has stopped: children first, so that no parent ever saw them stand still."""
    for pid in reversed(frozen):
        _send(pid, signal.SIGCONT)


def _subjects(first: int, marker: str) -> list[int]:
    """Each once, with its parents before it."""
    found = marked(marker)
    everybody = {first, *found, *descendants([first, *found])}
    eldest = sorted(pid for pid in everybody if _stat(pid)[1] not in everybody)
    return [*eldest, *(pid for pid in descendants(eldest) if pid in everybody)]


def _wait_standing(pid: int) -> None:
    """It stands when the kernel gets to it; what hangs in a call to a disk stops after that, and is not waited for."""
    give_up_at = time.monotonic() + _STANDING_S_MAX
    while _stat(pid)[0] not in (*_STOPPED, *_GONE) and time.monotonic() < give_up_at:
        time.sleep(0.0005)


def _stat(pid: int) -> tuple[str, int]:
    """Its state, as a letter, and its parent; nothing for one that is gone, or where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            state, parent, *_ = file.read().rpartition(")")[2].split()
    except (OSError, ValueError):
        return "", 0
    return state, int(parent)


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
    import subprocess  # costs 20 ms, which the shim does not have

    listing = subprocess.run(["ps", "-E", "-ax", "-o", "pid=,command="], capture_output=True, text=True, check=False)
    lines = (line.split() for line in listing.stdout.splitlines())
    return [int(argv[0]) for argv in lines if argv and wanted in argv[1:]]


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
