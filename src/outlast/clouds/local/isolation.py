"""The interface of the isolation modes: how a machine's processes are separated and killed. One module per mode."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol

from outlast.clouds.local.folder import Folder


class Inside(NamedTuple):
    """Paths and environment of a machine, as its init sees them."""

    # The folder of the startup and shutdown scripts, and those for commands that power the machine off.
    scripts_dir: str
    power_dirs: tuple[str, ...]
    home: str
    variables: dict[str, str]
    # The folder with the keys of the machine's sshd. Empty: it runs none, and sessions enter from the host.
    ssh: str = ""


class Running(NamedTuple):
    """A booted machine: its init, its address, the socket of its metadata server."""

    init_pid: int
    address: str
    listener: socket.socket
    ssh_port: int = 0
    # The machine has its own network, so no other client reaches its metadata server.
    private: bool = False


# The program of an isolated init: `run(inside, shim_died, on_exit)`.
InitProgram = Callable[[Inside, Callable[[], bool], Callable[[], object]], NoReturn]


class Isolation(Protocol):
    """The processes of one machine, for its shim. Used by one thread, for one boot."""

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork init, the ancestor of every process of the machine. Disk and scripts exist already.

        Raises OSError if this computer does not allow the mode.
        """

    def cut(self) -> None:
        """Disconnect the machine from the network, as if it had disappeared. Kills nothing."""

    def kill(self) -> bool:
        """Kill every process of the machine; return whether all are dead. May be repeated."""


# Best first. The last one always works.
MODES = ("root", "userns", "pidns", "plain")


def isolation(mode: str) -> Isolation:
    """Return the isolation of a mode. Imports only that one: a shim must start fast."""
    if mode in ("root", "userns"):
        from outlast.clouds.local.namespaces import NamespaceIsolation

        return NamespaceIsolation(rootless=mode == "userns")
    if mode == "pidns":
        from outlast.clouds.local.pidns import PidNamespace

        return PidNamespace()
    from outlast.clouds.local.plain_processes import PlainProcesses

    return PlainProcesses()
