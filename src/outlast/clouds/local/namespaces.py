"""Modes `root` and `userns`: machines with their own root file system, processes, users and network address.

An ordinary user does the same as root of a user namespace with a single user. In order:

    shim     joins the cloud's network, creates the machine's, connects them, forks   (network.py)
    child    enters its own namespaces, waits
    shim     sets limits
    child    builds its root file system, changes into it, becomes init   (rootfs.py)
"""

from __future__ import annotations

import os
import signal
import socket
from contextlib import suppress
from typing import NamedTuple

from outlast.clouds.local import limits, linux, network, proxy, relay, rootfs
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import InitProgram, Running
from outlast.clouds.local.pidns import kill_init

_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
_SSH_PORT = 22


class _Ends(NamedTuple):
    """One side of the two pipes between shim and child."""

    reader: int
    writer: int


class NamespaceIsolation:
    """The `Isolation` of modes `root` and `userns`."""

    def __init__(self, *, rootless: bool) -> None:
        self._rootless = rootless
        self._init_pid = 0
        self._folder: Folder | None = None
        self._uplink: network.Uplink | None = None
        self._relay: socket.socket | None = None

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        self._folder = folder
        forwards = [int(port) for port in (folder.facts() or {}).get("ports", [])]
        if self._rootless and proxy.PORT not in forwards:
            forwards.append(proxy.PORT)
        # In this computer's network, which this process is about to leave.
        self._relay = relay.start() if forwards else None
        self._uplink = network.join(folder, rootless=self._rootless)
        machine_network = network.create_machine_network(forwards)
        if self._relay is not None:
            relay.hand_over(self._relay, machine_network.forwards)
        self._uplink.attach(machine_network.namespace)
        own_space = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        linux.unshare(linux.CLONE_NEWPID, "pid namespace")
        theirs, ours = _pipes()
        pid = os.fork()
        if pid == 0:
            os.close(ours.reader)
            os.close(ours.writer)
            _run_machine(folder, self._uplink, machine_network.namespace, theirs, program)
        os.close(theirs.reader)
        os.close(theirs.writer)
        self._init_pid = pid
        if not self._rootless:
            # Later children of the shim belong to the host: the pid namespace of a dead machine accepts none.
            linux.setns(own_space, linux.CLONE_NEWPID, "this computer's pid namespace")
        os.close(own_space)
        _expect(ours.reader, b"apart", "it could not enter its own namespaces")
        os.close(machine_network.namespace)
        limits.apply(folder, pid)
        os.write(ours.writer, b"ready")
        _expect(ours.reader, b"moved", "its root file system could not be built")
        os.close(ours.reader)
        os.close(ours.writer)
        # A namespace with a single user runs no sshd, which must switch to other users.
        port = 0 if self._rootless else _SSH_PORT
        return Running(
            init_pid=pid, address=self._uplink.address, listener=machine_network.listener, ssh_port=port, private=True
        )

    def cut(self) -> None:
        if self._uplink is not None:
            self._uplink.cut()

    def kill(self) -> bool:
        kill_init(self._init_pid)
        self._init_pid = 0
        if self._folder is not None and self._uplink is not None:
            limits.remove(self._folder)
            network.leave(self._folder, self._uplink)
        return True


def _pipes() -> tuple[_Ends, _Ends]:
    down_reader, down_writer = os.pipe()
    up_reader, up_writer = os.pipe()
    return _Ends(down_reader, up_writer), _Ends(up_reader, down_writer)


def _expect(reader: int, expected: bytes, otherwise: str) -> None:
    received = os.read(reader, 4096)
    if received != expected:
        raise OSError(received.decode("utf-8", "replace") or otherwise)


def _unshare_cgroups() -> None:
    """Make the control group that the shim created the root of those that the machine sees."""
    # A kernel may lack them. Then container runtimes do not work on the machine; everything else does.
    with suppress(OSError):
        linux.unshare(linux.CLONE_NEWCGROUP, "control group namespace")


def _run_machine(
    folder: Folder, uplink: network.Uplink, machine_network: int, ends: _Ends, program: InitProgram
) -> None:
    """Build the machine and be its init. Runs in the child; sends errors to the shim, which reports them."""
    rootless = not uplink.routes_out
    try:
        linux.die_with_parent(signal.SIGKILL)
        linux.unshare(_NAMESPACES, "mount, uts and ipc namespaces")
        linux.setns(machine_network, linux.CLONE_NEWNET, "the machine's network")
        os.write(ends.writer, b"apart")
        if os.read(ends.reader, 16) != b"ready":
            os._exit(1)
        _unshare_cgroups()
        socket.sethostname(folder.name)
        rootfs.build(folder, uplink, rootless=rootless)
        uplink.configure()
        # Imported now: a machine with another root file system may lack this Python.
        from outlast.clouds.local import sshd as sshd

        linux.change_root(f"{folder.path}/root")
        os.write(ends.writer, b"moved")
    except OSError as error:
        os.write(ends.writer, str(error).encode())
        os._exit(1)
    os.closerange(3, 4096)
    if not rootless:
        linux.drop_capabilities(linux.DANGEROUS)
    program(rootfs.inside(folder, rootless=rootless), lambda: False, lambda: None)
