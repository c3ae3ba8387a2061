"""The few system calls of Linux that Python 3.11 lacks. Calls them, decides nothing; on other systems they raise."""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36

IS_LINUX = sys.platform == "linux"
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int, what: str) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), f"unshare {what}")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {kind or ''} on {target}")


def _prctl(option: int, value: int) -> int:
    return int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3))


def die_with_parent(signal_number: int) -> None:
    """Be sent this signal when the parent dies. Whether it died already is for the caller to check, afterwards."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number), "prctl PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl PR_SET_CHILD_SUBREAPER")


def drop_capabilities() -> None:
    """Let no program that is executed from here on gain a capability. The caller's own are lost as it executes one."""
    for capability in range(64):
        if _prctl(_PR_CAPBSET_DROP, capability) != 0:
            return
