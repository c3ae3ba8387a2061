"""The input and the output of the policy. Times are in seconds, prices in dollars per hour."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

Kind = Literal["wait", "spot", "on demand"]

# Instead of unknown work and an unknown price: a century, and more than any machine costs.
_LONG_S, _DEAR_USD = 100 * 365 * 86400.0, 1e6
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


def finite(view: PolicyView) -> PolicyView:
    """Return the view without NaN and infinity: unknown work is long, an unknown deadline is now, and a spot machine
    whose price or times are unknown is not considered.
    """
    time_left = view.time_left_s
    if time_left is not None and not math.isfinite(time_left):
        time_left = None if time_left > 0 else 0.0
    return replace(
        view,
        work_left_s=view.work_left_s if math.isfinite(view.work_left_s) else _LONG_S,
        time_left_s=time_left,
        on_demand=OnDemand(price=_or(view.on_demand.price, _DEAR_USD), start_s=_or(view.on_demand.start_s, 0.0)),
        spots=tuple(spot for spot in view.spots if all(map(math.isfinite, _figures(spot)))),
        start_left_s=_or(view.start_left_s, 0.0),
        interval_s=_or(view.interval_s, 60.0),
        unsaved_s=_or(view.unsaved_s, 0.0),
    )


def _or(value: float, otherwise: float) -> float:
    return value if math.isfinite(value) else otherwise


def _figures(spot: Spot) -> tuple[float, ...]:
    return (spot.price, spot.age_s, spot.start_s, spot.up_s, spot.seen_s, spot.move_usd, spot.advised_life_s)


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision. `place` is the name of the chosen spot; empty for the other kinds."""

    kind: Kind
    place: str = ""

    @property
    def held(self) -> str:
        """The value of `PolicyView.held` after this choice."""
        return self.place if self.kind == "spot" else ON_DEMAND if self.kind == "on demand" else ""
