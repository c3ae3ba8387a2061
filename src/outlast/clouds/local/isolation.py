"""How the processes of a machine are kept apart and killed: one small interface, one file a mode."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from outlast.clouds.local.folder import Folder


class Inside(NamedTuple):
    """A machine as its init sees it."""

    # The folder with the startup script, and the one for commands that switch the machine off.
    scripts_dir: str
    power_dirs: tuple[str, ...]
    home: str
    variables: dict[str, str]
    # Where the machine's own sshd finds its keys. Empty: it has none, and a session steps in from outside.
    ssh: str = ""


class Running(NamedTuple):
    """A machine that was booted: its init, its address, the socket of its metadata server."""

    init_pid: int
    address: str
    listener: socket.socket
    ssh_port: int = 0
    # Whether only the machine reaches its metadata server: it has a network of its own.
    private: bool = False


# What init does once it is isolated: `run(inside, shim_died, on_exit)`.
InitProgram = Callable[[Inside, Callable[[], bool], Callable[[], object]], NoReturn]


class Isolation(Protocol):
    """The processes of one machine, seen by its shim. Used by one thread, for one boot."""

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork init, the ancestor of everything on the machine. The disk is there, and the box is filled.

        Raises OSError when this computer does not allow what the mode needs.
        """

    def cut(self) -> None:
        """Pull the uplink: from here on nobody hears from the machine, as if it had vanished. Nothing is killed."""

    def kill(self) -> bool:
        """Kill everything that the machine ever started; True when all of it is dead. May be repeated."""


# Best first. The last one always works.
MODES = ("root", "userns", "pidns", "plain")


def isolation(mode: str) -> Isolation:
    """The one place that knows the modes by name. Imports only the one that is used: the shim must boot fast."""
    if mode in ("root", "userns"):
        from outlast.clouds.local.namespaces import NamespaceIsolation

        return NamespaceIsolation(rootless=mode == "userns")
    if mode == "pidns":
        from outlast.clouds.local.pidns import PidNamespace

        return PidNamespace()
    from outlast.clouds.local.plain_processes import PlainProcesses

    return PlainProcesses()
