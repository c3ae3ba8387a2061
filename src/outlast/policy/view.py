"""The input and the output of the policy. Times are in seconds, prices in dollars per hour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["wait", "spot", "on demand"]

# The name of the on-demand machine in `held`.
ON_DEMAND = "on demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Spot machines of one zone (or of a type in a zone), with observations."""

    name: str
    price: float
    # Whether there is capacity now (or a machine is held), and for how long this has been so.
    up: bool
    age_s: float = 0.0
    # From the request until the job is back at its earlier progress: boot, restore, repeated work.
    start_s: float = 0.0
    # How often capacity began, how long it lasted in all, and how long the zone was observed.
    ups: int = 0
    up_s: float = 0.0
    seen_s: float = 0.0
    # The cost of moving the data there, once.
    move_usd: float = 0.0
    # The lifetime that the cloud itself predicts; 0: unknown.
    advised_life_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """The machine that is always available."""

    price: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """One job at one moment. `held` is empty, the name of a `Spot`, or `"on demand"`."""

    work_left_s: float
    # Until the deadline; None: no deadline, minimize the cost.
    time_left_s: float | None
    on_demand: OnDemand
    spots: tuple[Spot, ...] = field(default=())
    held: str = ""
    # The rest of the start of the held machine.
    start_left_s: float = 0.0
    # The time until the next decision; the loss of a spot machine is noticed only then.
    interval_s: float = 60.0
    # Unsaved work that the loss of a spot machine would cost.
    unsaved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision. `place` is the name of the chosen spot; empty for the other kinds."""

    kind: Kind
    place: str = ""

    @property
    def held(self) -> str:
        """The value of `PolicyView.held` after this choice."""
        return self.place if self.kind == "spot" else ON_DEMAND if self.kind == "on demand" else ""
