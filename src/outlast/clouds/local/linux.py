"""System calls of Linux that Python 3.11 lacks. On other systems they raise."""

from __future__ import annotations

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

_MNT_DETACH = 2
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


def setns(descriptor: int, kind: int, what: str) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), f"join {what}")


def new_user_namespace(others: int, what: str, *, seen_as: int) -> None:
    """Enter a user namespace, and others with it, in which this user appears as `seen_as` and is the only user."""
    user, group = os.geteuid(), os.getegid()
    group_seen_as = 0 if seen_as == 0 else group
    unshare(CLONE_NEWUSER | others, what)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{seen_as} {user} 1")
    _write("/proc/self/gid_map", f"{group_seen_as} {group} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def change_root(root: str) -> None:
    """Make this folder, which must be a mount point, the root; unmount the old root."""
    os.chdir(root)
    # Stacked on the new root, the old one can be unmounted without a folder for it.
    _check(_libc.pivot_root(b".", b"."), f"pivot_root to {root}")
    _check(_libc.umount2(b".", ctypes.c_int(_MNT_DETACH)), "umount of the old root")
    os.chdir("/")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    data = None if options is None else options.encode()
    _check(_libc.mount(*arguments, ctypes.c_ulong(flags), data), f"mount {kind or ''} on {target}")


def _prctl(option: int, value: int) -> int:
    return int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3))


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the parent dies. The caller must check afterwards whether it died before."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number), "prctl PR_SET_PDEATHSIG")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1), "prctl PR_SET_CHILD_SUBREAPER")


# Kernel modules, raw devices, reboot, the clock, new devices: they affect the computer, and no machine needs them.
DANGEROUS = (16, 17, 22, 25, 27)
EVERY = tuple(range(64))


def drop_capabilities(which: tuple[int, ...] = EVERY) -> None:
    """Drop these capabilities for every program executed from here on."""
    for capability in which:
        if _prctl(_PR_CAPBSET_DROP, capability) != 0:
            return
