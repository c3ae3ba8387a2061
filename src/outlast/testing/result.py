"""The result of one simulated world."""

from __future__ import annotations

import msgspec


class WorldResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one world."""

    seed: int
    problem: str = ""
    trace: tuple[str, ...] = ()
    runs: int = 0
    attempts: int = 0
    effects: int = 0
    sim_s: float = 0.0
    endings: dict[str, int] = {}
