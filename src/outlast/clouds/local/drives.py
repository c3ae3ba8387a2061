"""Data disks of a machine: files of this computer that the machine sees as /dev/sdb and so on.

Mode `root` only: loop devices and device nodes need root. The shim holds each device open. The kernel releases the
device with its last user, mounts included, so a killed shim leaves nothing.
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

# JSON: a list of `file`, `bus` (prefix of the device name), `aliases` (below /dev/disk/by-id), `read_only`, and `gb`,
# so that the attribute changes when the file grows.
ATTRIBUTE = "outlast-drives"

_SET_CAPACITY, _CONFIGURE, _GET_FREE = 0x4C07, 0x4C0A, 0x4C82
_READ_ONLY, _AUTOCLEAR = 1, 4
# `struct loop_config`: descriptor and block size, a `struct loop_info64`, reserved fields.
_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
# The suffixes of device names on a bus. `sda` would be the boot disk.
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
    """The data disks of one machine, for one boot. The shim owns it; init has a copy."""

    def __init__(self, folder: Folder, mode: str) -> None:
        self._folder = folder
        self._mode = mode
        self._attached: dict[str, AttachedDrive] = {}
        self._reported: set[str] = set()
        # Path below /dev → device number or link target: the wanted nodes, and those that exist.
        self.nodes: dict[str, str | int] = {}
        self._created: dict[str, str | int] = {}
        # A requested disk could not be attached yet.
        self.incomplete = False

    def attach_requested(self, *, timeout_s: float = 0.0) -> None:
        """Attach the requested disks, and detach the others."""
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
            # Also under the kernel's name, by which `blkid` and `mount UUID=…` find it.
            self.nodes[f"loop{os.minor(attached.device)}"] = attached.device
            self.nodes |= {f"disk/by-id/{alias}": f"../../{attached.node}" for alias in wanted[file].get("aliases", [])}

    def mark_created(self) -> None:
        """Record that init has created the nodes of its copy."""
        self._created = dict(self.nodes)

    def create_nodes(self, dev: str) -> None:
        """Create nodes and links in the machine's /dev, and remove stale ones. Raises OSError."""
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
            raise OSError("only machines of mode `root` can have data disks")
        file, read_only = str(request["file"]), bool(request.get("read_only"))
        while not read_only and (others := _holders(file)):
            if time.monotonic() > give_up_at:
                raise OSError(f"it is still in use as {', '.join(others)} on this computer")
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
            raise OSError(f"no device name is free on bus `{bus}`")
        return free[0]

    def _report_failure(self, request: DriveRequest, problem: OSError) -> None:
        """Print a failure to the serial output, once: the attempt is repeated every second."""
        name = (request.get("aliases") or [request["file"]])[0]
        if (line := f"could not attach disk {name}: {problem}") not in self._reported:
            self._reported.add(line)
            self._folder.print_serial(line)


def _requests(folder: Folder) -> list[DriveRequest]:
    try:
        value = json.loads(folder.attributes().get(ATTRIBUTE, "[]"))
    except ValueError:
        return []  # a user may set this; no attribute may crash a machine
    found = value if isinstance(value, list) else []
    return [request for request in found if isinstance(request, dict) and os.path.isfile(str(request.get("file")))]


def _holders(file: str) -> list[str]:
    """Return the loop devices that are backed by this file."""
    found = []
    for name in os.listdir("/sys/block"):
        with suppress(OSError), open(f"/sys/block/{name}/loop/backing_file", encoding="utf-8") as backing:
            if backing.read().rstrip("\n") == os.path.realpath(file):
                found.append(f"/dev/{name}")
    return found


def _loop(file: str, *, read_only: bool) -> int:
    """Return an open loop device over the file. The kernel removes it when its last user closes it."""
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
                # Another process has taken it since.
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
        # In a container /dev lists the devices that existed when it started.
        os.mknod(path, stat.S_IFBLK | 0o660, os.makedev(7, number))
    return os.open(path, how)


def _put(dev: int, path: str, node: str | int | None) -> None:
    """Create a link or a node at this path below /dev, or remove it.

    Folder by folder, following no link: root on the machine may have created one that leads out of it.
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
        if isinstance(node, str):
            os.symlink(node, name, dir_fd=folder)
        elif node is not None:
            os.mknod(name, stat.S_IFBLK | 0o660, node, dir_fd=folder)
    finally:
        os.close(folder)
