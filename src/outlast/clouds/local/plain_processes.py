"""Mode `plain`: ordinary processes, for macOS and for Linux that allows no namespaces.

On Linux shim and init both adopt orphans, so no ordinary program escapes, whatever it does to its session, signals
or environment; one that forks faster than it is killed might. Elsewhere: its process group, and the marker.
"""

from __future__ import annotations

import os
import signal

from outlast.clouds.local import linux, loopback
from outlast.clouds.local.folder import Folder
from outlast.clouds.local.isolation import InitProgram, Running
from outlast.clouds.local.processes import MARKER, kill_descendants, kill_marked


class PlainProcesses:
    def __init__(self) -> None:
        self._init_pid = 0

    def boot(self, folder: Folder, program: InitProgram) -> Running:
        """Fork init. The hostname stays the computer's: there is no namespace to hold another."""
        listener = loopback.listen(folder)
        address, port = listener.getsockname()[:2]
        loopback.prepare(folder)
        inside = loopback.inside(folder, f"{address}:{port}")
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
        """There is no uplink: loopback is everybody's."""

    def kill(self) -> bool:
        if not linux.IS_LINUX and self._init_pid:
            try:
                os.killpg(self._init_pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        return _kill_all()


def _kill_all() -> bool:
    # Whoever logged in over ssh is no descendant of ours, but carries the marker.
    if linux.IS_LINUX and not kill_descendants():
        return False
    return kill_marked(os.environ[MARKER])
