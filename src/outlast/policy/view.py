"""What the policy is told and what it answers: plain values. Times are seconds, prices dollars an hour."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["wait", "spot", "on demand"]

# A machine that is held and is no place's spot machine.
ON_DEMAND = "on demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Spot machines of one place (a zone, or a type in a zone), and what was seen of them."""

    name: str
    price: float
    # Whether a machine can be had now (or is held), and for how long that has been so.
    up: bool
    age_s: float = 0.0
    # From the request to progress as it was before: boot, restore, work that is done again.
    start_s: float = 0.0
    # How often capacity came, for how long it was there, and how long somebody looked: all that was ever seen.
    ups: int = 0
    up_s: float = 0.0
    seen_s: float = 0.0
    # What it costs to carry the data there, once.
    move_usd: float = 0.0
    # The cloud's own word on how long machines live there, where it gives one; 0: none.
    advised_life_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OnDemand:
    """The machine that is always there, at a price."""

    price: float
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyView:
    """One job at one moment. `held` is empty, the name of a `Spot`, or `"on demand"`."""

    work_left_s: float
    # Until the deadline; None: there is none, and the cheapest progress is what counts.
    time_left_s: float | None
    on_demand: OnDemand
    spots: tuple[Spot, ...] = field(default=())
    held: str = ""
    # What is left of the start of the machine that is held.
    start_left_s: float = 0.0
    # The time until the policy is asked again; a spot machine that is lost meanwhile is noticed then.
    look_s: float = 60.0
    # Work that may be lost with a spot machine, because it was not saved yet.
    unsaved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """`place` is the name of the spot chosen, and empty for the other kinds."""

    kind: Kind
    place: str = ""

    @property
    def held(self) -> str:
        """What is held after it, in the words of `View.held`."""
        return self.place if self.kind == "spot" else ON_DEMAND if self.kind == "on demand" else ""
