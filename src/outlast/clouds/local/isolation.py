"""How the processes of a machine are kept apart and killed: one small interface, one file a mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

# What init does once it is isolated: `run(keeper_died, at_the_end)`.
InitProgram = Callable[[Callable[[], bool], Callable[[], object]], NoReturn]


class Isolation(Protocol):
    """The processes of one machine, seen by its keeper. Used by one thread, for one boot."""

    def boot(self, hostname: str, program: InitProgram) -> int:
        """Fork init, the ancestor of everything on the machine, and answer with its pid.

        Raises OSError when this computer does not allow what the mode needs.
        """

    def kill(self) -> bool:
        """Kill everything that the machine ever started; True when all of it is dead. May be repeated."""


def isolation(mode: str) -> Isolation:
    """The one place that knows the modes by name. Imports only the one that is used: the keeper must boot fast."""
    if mode == "pidns":
        from outlast.clouds.local.pidns import PidNamespace

        return PidNamespace()
    from outlast.clouds.local.plain import PlainProcesses

    return PlainProcesses()
