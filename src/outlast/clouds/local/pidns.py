"""Mode `pidns`: a process space of its own, so that the kernel itself kills everything when pid 1 dies.

Own /proc, hostname, /dev/shm and System V memory; the file system and loopback are the computer's. Needs no root:
an ordinary user gets a user namespace in which the uid stays what it is.
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

# Through these a program could switch off the computer instead of its machine: scripts for real machines end with
# `sudo shutdown -h now`, and sudo does not look at our PATH.
_HOST_POWER_SOCKETS = (
    "/run/systemd/private",
    "/run/dbus/system_bus_socket",
    "/run/initctl",
    "/run/systemd/initctl/fifo",
)


class PidNamespace:
    def __init__(self) -> None:
        self._init_pid = 0

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork pid 1. This process must have a single thread; its later children are pid 1's subjects as well."""
        listener = loopback.listen(folder)
        address, port = listener.getsockname()[:2]
        loopback.prepare(folder)
        inside = loopback.inside(folder, f"{address}:{port}")
        enter()
        # The shim alone keeps the writing end, so that init reads its end if the shim is dead already.
        alive_reader, alive_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive_writer)
            _become_init(folder.name, inside, program, alive_reader)
        os.close(alive_reader)
        self._init_pid = pid
        return Running(init_pid=pid, address=address, listener=listener)

    def cut(self) -> None:
        """There is no uplink: loopback is everybody's."""

    def kill(self) -> bool:
        kill_init(self._init_pid)
        self._init_pid = 0
        return True


def kill_init(pid: int) -> None:
    """Kill a process space with its first process. Nothing happens for pid 0."""
    if not pid:
        return
    try:
        os.kill(pid, signal.SIGKILL)
        # The kernel lets pid 1 be reaped only after every other process of its space is gone.
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def enter() -> None:
    """Let the next child be pid 1 of a new process space; take a user namespace where we may not do it otherwise."""
    try:
        if os.geteuid() == 0:
            linux.unshare(linux.CLONE_NEWPID, "pid namespace")
            return
    except OSError:
        pass  # root of a container, without the capability: it goes the way of an ordinary user
    user = os.geteuid()
    linux.new_user_namespace(linux.CLONE_NEWPID, "user and pid namespaces", seen_as=user)


def _become_init(hostname: str, inside: Inside, program: InitProgram, alive_reader: int) -> None:
    """In the child: furnish the namespaces, then run the program, which does not return."""
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
    """Give pid 1 what is its own. Nothing is bound over /tmp: workspaces and environments may live there."""
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS, "mount, ipc and uts namespaces")
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("tmpfs", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    for path in _HOST_POWER_SOCKETS:
        if os.path.exists(path):
            with suppress(OSError):  # not ours to mask, in some containers; then it is not ours to reach either
                linux.mount("/dev/null", path, None, linux.MS_BIND)
    socket.sethostname(hostname)


def is_closed(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    return bool(poll.poll(0))
