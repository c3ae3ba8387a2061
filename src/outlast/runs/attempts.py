"""The attempts, checkpoints and limits of a run, as the fold of its story records them."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.runs import events as ev
from outlast.runs.events import Outcome
from outlast.runs.usage import Usage

Ending = Literal["", "finished", "failed", "cancelled"]
# placed → started → over, with `noticed` on the way from either.
AttemptPhase = Literal["placed", "started", "noticed", "over"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a run on its machine or machines, as recorded in the story."""

    number: int
    machine: str
    cloud: str
    region: str
    zone: str
    type: str
    spot: bool
    price_usd_per_hour: float
    on_demand_usd_per_hour: float
    placed_at: float
    # The numbers of two events; the store's times of both give the duration by one clock.
    started_event: int = 0
    over_event: int = 0
    phase: AttemptPhase = "placed"
    started_at: float = 0.0
    resumed_from: str = ""
    resumed_step: int | None = None
    noticed_at: float = 0.0
    warned_at: float = 0.0
    notice_event: int = 0
    grace_s: float = 0.0
    over_at: float = 0.0
    # "" while it is not over; "refused", "lost", "finished", "fenced" or the outcome of `Stopped`.
    outcome: Outcome | Literal["", "refused", "lost", "finished", "fenced"] = ""
    why: str = ""
    exit_code: int | None = None
    preempted: bool = False
    # The supervisor itself moved the run.
    moved: bool = False
    # It was placed while the attempt before worked.
    ahead: bool = False
    keep_s: float = 0.0
    # Why the newest state of the checkpoint folder was not committed; empty if it was.
    unsaved: str = ""
    ending: ev.Ending | Literal[""] = ""
    saves: int = 0
    saved_at: float = 0.0
    released: bool = False
    released_at: float = 0.0
    cost_usd: float = 0.0
    seconds: float = 0.0
    disk_usd: float = 0.0
    address_usd: float = 0.0
    address_usd_per_hour: float = 0.0
    # What it used of its machine; None if nothing was sampled.
    usage: Usage | None = None
    # Of a distributed run: its machines in the order of their ranks, and the ranks that the next attempt must replace.
    members: tuple[str, ...] = ()
    gone: tuple[int, ...] = ()
    # With this number of machines it can do, too; 0: it needs them all.
    least: int = 0
    # The next attempt keeps none of its machines.
    retired: bool = False

    @property
    def machines(self) -> tuple[str, ...]:
        """Its machines in the order of their ranks; the first one leads."""
        return self.members or (self.machine,)

    @property
    def nodes(self) -> int:
        return len(self.machines)


def is_spare(attempts: tuple[Attempt, ...], attempt: Attempt) -> bool:
    """Return whether an attempt that was placed ahead has not replaced the one that works, or never did."""
    if not attempt.ahead or attempt.started_at:
        return False
    return attempt.phase == "over" or any(earlier.phase == "started" for earlier in attempts[: attempt.number - 1])


class LimitBreach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that was reached, and the time that the attempts have to save and stop."""

    name: str
    why: str
    hint: str
    grace_s: float
    at: float


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    attempt: int
    step: int | None
    at: float
    bytes: int
    changed_at: float = 0.0
    metrics: dict[str, float] = {}
    # The number of nodes with which it can be resumed; 0: any number.
    nodes: int = 0
