"""Mode `pidns`: a pid namespace per machine, so that the kernel kills every process when pid 1 dies.

A machine has its own /proc, hostname, /dev/shm and System V memory; file system and loopback are the computer's. It
does not need root: an ordinary user gets a user namespace with an unchanged uid.
"""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress

from outlast.clouds.local import linux, loopback
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import InitProgram, Inside, Running

# Through these a program could switch off the computer instead of its machine: startup scripts often end with
# `sudo shutdown -h now`, and sudo ignores our PATH.
_HOST_POWER_SOCKETS = (
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
    "/run/initctl",
    "/run/systemd/initctl/fifo",
)


class PidNamespace:
    """The `Isolation` of mode `pidns`."""

    def __init__(self) -> None:
        self._init_pid = 0

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork pid 1. This process must have a single thread; its later children join the namespace as well."""
        listener, address, inside = loopback.prepare(folder)
        enter()
        # Only the shim keeps the write end, so that init sees a closed pipe if the shim is dead already.
        alive_reader, alive_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive_writer)
            _become_init(folder.name, inside, program, alive_reader)
        os.close(alive_reader)
        self._init_pid = pid
        return Running(init_pid=pid, address=address, listener=listener)

    def cut(self) -> None:
        """Do nothing: the machine uses the computer's loopback, which cannot be cut."""

    def kill(self) -> bool:
        kill_init(self._init_pid)
        self._init_pid = 0
        return True


def kill_init(pid: int) -> None:
    """Kill a pid namespace through its first process; do nothing for pid 0."""
    if not pid:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        # The kernel lets pid 1 be reaped only after every other process of its namespace is gone.
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def enter() -> None:
    """Make the next child pid 1 of a new namespace, through a user namespace if this process lacks the right."""
    try:
        if os.geteuid() == 0:
            linux.unshare(linux.CLONE_NEWPID, "pid namespace")
            return
    except OSError:
        pass  # root in a container without the capability: proceed as an ordinary user
    user = os.geteuid()
    linux.new_user_namespace(linux.CLONE_NEWPID, "user and pid namespaces", seen_as=user)


def _become_init(hostname: str, inside: Inside, program: InitProgram, alive_reader: int) -> None:
    """Set up the namespaces, then run the program, which does not return. Runs in the child."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if is_closed(alive_reader):
            os._exit(1)
        set_up_namespaces(hostname)
        os.closerange(3, 4096)
        if os.geteuid() != 0:
            linux.drop_capabilities()
        program(inside, lambda: False, lambda: None)
    except OSError as error:
        os.write(2, f"outlast: pid 1 failed: {error}\n".encode())
    os._exit(1)


def set_up_namespaces(hostname: str) -> None:
    """Give pid 1 its own mounts and hostname. /tmp stays visible: workspaces and environments may be in it."""
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS, "mount, ipc and uts namespaces")
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("tmpfs", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    for path in _HOST_POWER_SOCKETS:
        if os.path.exists(path):
            with suppress(OSError):  # some containers forbid the mount; there the socket is out of reach too
                linux.mount("/dev/null", path, None, linux.MS_BIND)
    socket.sethostname(hostname)


def is_closed(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    return bool(poll.poll(0))
