"""Disks beside a machine's boot disk: files of this computer, which the machine sees as /dev/sdb and so on.

In mode `root` alone: it takes loop devices, and the right to make nodes. The shim holds each device open, and the
kernel lets go of it with the last one who does, a mount of the machine included: nothing is left of a shim that was
killed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
from contextlib import suppress
from typing import Any, NamedTuple

from outlast.clouds.local.folder import Folder

# JSON: a list of `file`, `bus` (how its name begins), `aliases` (below /dev/disk/by-id), `read_only`, and `gb`, so that
# it changes when the file grows.
ATTRIBUTE = "outlast-drives"

_SET_CAPACITY, _CONFIGURE, _GET_FREE = 0x4C07, 0x4C0A, 0x4C82
_READ_ONLY, _AUTOCLEAR = 1, 4
# `struct loop_config`: descriptor and block size, a `struct loop_info64`, and what is reserved.
_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
# How the names of a bus end. The first letter is the boot disk's.
_SUFFIXES = {"sd": list("bcdefghijklmnopqrstuvwxyz"), "nvme0n": [str(number) for number in range(1, 33)]}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

DriveRequest = dict[str, Any]


class AttachedDrive(NamedTuple):
    descriptor: int
    device: int
    node: str
    bytes: int
    read_only: bool


class Drives:
    """What is attached into one machine, for one boot. Its shim's; init has a copy."""

    def __init__(self, folder: Folder, mode: str) -> None:
        self._folder = folder
        self._mode = mode
        self._attached: dict[str, AttachedDrive] = {}
        self._reported: set[str] = set()
        # By path below /dev, a device's number or where a link leads: what shall be there, and what is.
        self.nodes: dict[str, str | int] = {}
        self._created: dict[str, str | int] = {}
        # Something is wanted that cannot be had yet.
        self.incomplete = False

    def attach_requested(self, *, timeout_s: float = 0.0) -> None:
        """Plug in what is wanted by now, and pull out what is not."""
        wanted = {str(request["file"]): request for request in _requests(self._folder)}
        for file, attached in list(self._attached.items()):
            if file not in wanted or attached.read_only != bool(wanted[file].get("read_only")):
                os.close(self._attached.pop(file).descriptor)
        give_up_at = time.monotonic() + timeout_s
        for file, request in wanted.items():
            try:
                self._attached[file] = (
                    self._with_new_size(file) if file in self._attached else self._attach(request, give_up_at)
                )
            except OSError as problem:
                self._report_failure(request, problem)
        self.incomplete = self._mode == "root" and len(self._attached) < len(wanted)
        self.nodes = {}
        for file, attached in self._attached.items():
            self.nodes[attached.node] = attached.device
            # By the kernel's own name, too: `blkid` and `mount UUID=…` find it by that.
            self.nodes[f"loop{os.minor(attached.device)}"] = attached.device
            self.nodes |= {f"disk/by-id/{alias}": f"../../{attached.node}" for alias in wanted[file].get("aliases", [])}

    def mark_created(self) -> None:
        """From here on init has done what its copy was told to."""
        self._created = dict(self.nodes)

    def create_nodes(self, dev: str) -> None:
        """Make nodes and links in the machine's /dev, and remove those of what is gone. Raises OSError."""
        changed = {path for path in {**self._created, **self.nodes} if self._created.get(path) != self.nodes.get(path)}
        if not changed:
            return
        self._created = dict(self.nodes)
        folder = os.open(dev, _FOLDER)
        try:
            for path in sorted(changed):
                _put(folder, path, self.nodes.get(path))
        finally:
            os.close(folder)

    def _attach(self, request: DriveRequest, give_up_at: float) -> AttachedDrive:
        if self._mode != "root":
            raise OSError("only machines of mode `root` have disks beside their boot disk")
        file, read_only = str(request["file"]), bool(request.get("read_only"))
        while not read_only and (others := _holders(file)):
            if time.monotonic() > give_up_at:
                raise OSError(f"it is still in use, as {', '.join(others)} of this computer")
            time.sleep(0.02)
        node = self._free_node(str(request.get("bus")))
        descriptor = _loop(file, read_only=read_only)
        device, size = os.fstat(descriptor).st_rdev, os.stat(file).st_size
        return AttachedDrive(descriptor=descriptor, device=device, node=node, bytes=size, read_only=read_only)

    def _with_new_size(self, file: str) -> AttachedDrive:
        attached, size = self._attached[file], os.stat(file).st_size
        if size != attached.bytes:
            fcntl.ioctl(attached.descriptor, _SET_CAPACITY)
        return attached._replace(bytes=size)

    def _free_node(self, bus: str) -> str:
        taken = {attached.node for attached in self._attached.values()}
        free = [bus + end for end in _SUFFIXES.get(bus, []) if bus + end not in taken]
        if not free:
            raise OSError(f"there is no room for it on the bus `{bus}`")
        return free[0]

    def _report_failure(self, request: DriveRequest, problem: OSError) -> None:
        """On the serial console, and once: it is tried again every second."""
        name = (request.get("aliases") or [request["file"]])[0]
        if (line := f"disk {name} cannot be seen on this machine: {problem}") not in self._reported:
            self._reported.add(line)
            self._folder.print_serial(line)


def _requests(folder: Folder) -> list[DriveRequest]:
    try:
        value = json.loads(folder.attributes().get(ATTRIBUTE, "[]"))
    except ValueError:
        return []  # set by hand; no word in metadata may end a machine
    found = value if isinstance(value, list) else []
    return [request for request in found if isinstance(request, dict) and os.path.isfile(str(request.get("file")))]


def _holders(file: str) -> list[str]:
    """The loop devices that have this file behind them."""
    found = []
    for name in os.listdir("/sys/block"):
        with suppress(OSError), open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8") as backing:
            if backing.read().rstrip("\n") == os.path.realpath(file):
                found.append(f"/dev/{name}")
    return found


def _loop(file: str, *, read_only: bool) -> int:
    """A loop device over the file, open; it is gone when nobody has it open any more."""
    how = (os.O_RDONLY if read_only else os.O_RDWR) | os.O_CLOEXEC
    backing = os.open(file, how)
    try:
        flags = _AUTOCLEAR | (_READ_ONLY if read_only else 0)
        name = os.fsencode(file)[-63:]
        config = _CONFIG.pack(backing, 0, *[0] * 5, 0, 0, 0, flags, name, b"", b"", *[0] * 10)
        while True:
            device = _open_free(how)
            try:
                fcntl.ioctl(device, _CONFIGURE, config)
                return device
            except OSError as problem:
                os.close(device)
                # Somebody else has taken it since we asked.
                if problem.errno != errno.EBUSY:
                    raise
    finally:
        os.close(backing)


def _open_free(how: int) -> int:
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        number = fcntl.ioctl(control, _GET_FREE)
    finally:
        os.close(control)
    path = f"/dev/loop{number}"
    if not os.path.exists(path):
        # In a container: its devices are those that were there when it was started.
        os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(7, number))
    return os.open(path, how)


def _put(dev: int, path: str, what: str | int | None) -> None:
    """A link, a node or nothing at this path below /dev.

    Step by step, through no link: whoever is root on the machine may have put one there that leads out of it.
    """
    folder = os.dup(dev)
    try:
        *steps, name = path.split("/")
        for step in steps:
            with suppress(FileExistsError):
                os.mkdir(step, 0o755, dir_fd=folder)
            deeper = os.open(step, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = deeper
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        if isinstance(what, str):
            os.symlink(what, name, dir_fd=folder)
        elif what is not None:
            os.mknod(name, stat.S_IFBLK | 0o660, what, dir_fd=folder)
    finally:
        os.close(folder)
