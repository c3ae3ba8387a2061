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

from outlast.clouds.local import linux
from outlast.clouds.local.isolation import InitProgram

# Through these a program could switch off the computer instead of its machine: scripts for real machines end with
# `sudo shutdown -h now`, and sudo does not look at our PATH.
_HOST_SWITCHES = ("/run/systemd/private", "/run/dbus/system_bus_socket", "/run/initctl", "/run/systemd/initctl/fifo")


class PidNamespace:
    def __init__(self) -> None:
        self._init_pid = 0

    def boot(self, hostname: str, program: InitProgram) -> int:
        """Fork pid 1. This process must have a single thread; its later children are pid 1's subjects as well."""
        _enter()
        # The keeper alone keeps the writing end, so that init reads its end if the keeper is dead already.
        alive_reader, alive_writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(alive_writer)
            _become_init(hostname, program, alive_reader)
        os.close(alive_reader)
        self._init_pid = pid
        return pid

    def kill(self) -> bool:
        if self._init_pid:
            try:
                os.kill(self._init_pid, signal.SIGKILL)
                # The kernel lets pid 1 be reaped only after every other process of its space is gone.
                os.waitpid(self._init_pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass
            self._init_pid = 0
        return True


def _enter() -> None:
    """Let the next child be pid 1 of a new process space; take a user namespace where we may not do it otherwise."""
    user, group = os.geteuid(), os.getegid()
    try:
        if user == 0:
            linux.unshare(linux.CLONE_NEWPID, "pid namespace")
            return
    except OSError:
        pass  # root of a container, without the capability: it goes the way of an ordinary user
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWPID, "user and pid namespaces")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _become_init(hostname: str, program: InitProgram, alive_reader: int) -> None:
    """In the child: furnish the namespaces, then run the program, which does not return."""
    try:
        linux.die_with_parent(signal.SIGKILL)
        if _is_closed(alive_reader):
            os._exit(1)
        furnish(hostname)
        os.closerange(3, 4096)
        if os.geteuid() != 0:
            linux.drop_capabilities()
        program(lambda: False, lambda: None)
    except OSError as error:
        os.write(2, f"outlast: pid 1 failed: {error}\n".encode())
    os._exit(1)


def furnish(hostname: str) -> None:
    """Give pid 1 what is its own. Nothing is bound over /tmp: workspaces and environments may live there."""
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS, "mount, ipc and uts namespaces")
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("proc", "/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("tmpfs", "/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777")
    for path in _HOST_SWITCHES:
        if os.path.exists(path):
            with suppress(OSError):  # not ours to mask, in some containers; then it is not ours to reach either
                linux.mount("/dev/null", path, None, linux.MS_BIND)
    socket.sethostname(hostname)


def _is_closed(reader: int) -> bool:
    poll = select.poll()
    poll.register(reader, select.POLLHUP)
    return bool(poll.poll(0))


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)
