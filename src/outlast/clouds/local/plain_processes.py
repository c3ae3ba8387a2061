"""Mode `plain`: ordinary processes, for macOS and for Linux without namespaces.

On Linux shim and init both adopt orphans. A program cannot escape by changing its session, signals or environment, but
one that forks faster than it is killed might. On macOS a machine is its process group and the marked processes.
"""

from __future__ import annotations

import os
import signal

from outlast.clouds.local import linux, loopback
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import InitProgram, Running
from outlast.clouds.local.processes import MARKER, kill_descendants, kill_marked


class PlainProcesses:
    """The `Isolation` of mode `plain`."""

    def __init__(self) -> None:
        self._init_pid = 0

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork init. The hostname stays the computer's: a different one needs a namespace."""
        listener, address, inside = loopback.prepare(folder)
        shim_pid = os.getpid()
        if linux.IS_LINUX:
            linux.adopt_orphans()
        self._init_pid = os.fork()
        if self._init_pid == 0:
            os.setsid()
            os.closerange(3, 4096)
            if linux.IS_LINUX:
                linux.adopt_orphans()
                linux.die_with_parent(signal.SIGTERM)
            program(inside, lambda: os.getppid() != shim_pid, _kill_all)
        return Running(init_pid=self._init_pid, address=address, listener=listener)

    def cut(self) -> None:
        """Do nothing: the machine uses the computer's loopback, which cannot be cut."""

    def kill(self) -> bool:
        if not linux.IS_LINUX and self._init_pid:
            try:
                os.killpg(self._init_pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        return _kill_all()


def _kill_all() -> bool:
    # An ssh session is not a descendant of this process, but it carries the marker.
    if linux.IS_LINUX and not kill_descendants():
        return False
    return kill_marked(os.environ[MARKER])
