"""The reasons for a choice of the policy: one sentence, and one row per option."""

from __future__ import annotations

from dataclasses import dataclass

from outlast.policy.decide import (
    break_even_s,
    decide,
    pays,
    reserve_s,
    safe_on,
    safe_to_wait,
    slack_s,
    value,
    worthwhile,
)
from outlast.policy.lifetimes import life_s
from outlast.policy.prices import is_dear, needed_usd
from outlast.policy.view import ON_DEMAND, Choice, PolicyView, Spot, finite
from outlast.spec.duration import describe_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One possible choice. `value` is dollars per hour: progress at the on-demand price, minus the cost."""

    name: str
    price: float
    life_s: float | None
    start_s: float
    value: float
    chosen: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    choice: Choice
    sentence: str
    options: tuple[Option, ...]


def explain(view: PolicyView) -> Explanation:
    """Return the choice of `decide` with its reasons. NaN and infinity count as unknown."""
    view = finite(view)
    choice = decide(view)
    options = [_spot(view, spot, choice) for spot in view.spots]
    demand = view.on_demand
    held = view.held == ON_DEMAND
    options.append(
        Option(
            name=ON_DEMAND,
            price=demand.price,
            life_s=None,
            start_s=view.start_left_s if held else demand.start_s,
            value=0.0,
            chosen=choice.kind == "on demand",
            note="held" if held else "always available",
        )
    )
    options.append(
        Option(
            name="wait",
            price=0.0,
            life_s=None,
            start_s=0.0,
            value=0.0,
            chosen=choice.kind == "wait",
            note=_wait_note(view),
        )
    )
    return Explanation(choice=choice, sentence=_sentence(view, choice), options=tuple(options))


def _spot(view: PolicyView, spot: Spot, choice: Choice) -> Option:
    chosen = choice.kind == "spot" and choice.place == spot.name
    if spot.name == view.held:
        note = "held"
    elif not spot.up:
        note = f"no capacity for {describe_s(spot.age_s)}"
    elif spot.price >= view.on_demand.price:
        note = "more expensive than on demand"
    elif not chosen and is_dear(view, spot):
        note = f"expensive: zones up to ${needed_usd(view):g} an hour should be enough"
    elif view.time_left_s is not None and not safe_on(view, spot):
        note = "its loss could miss the deadline"
    elif view.held == ON_DEMAND and not pays(view, spot):
        note = f"must live {describe_s(break_even_s(view, spot))} to pay for the move"
    else:
        note = f"available for {describe_s(spot.age_s)}"
    return Option(
        name=spot.name,
        price=spot.price,
        life_s=life_s(spot, view.interval_s),
        start_s=view.start_left_s if spot.name == view.held else spot.start_s,
        value=value(view, spot),
        chosen=chosen,
        note=note,
    )


def _wait_note(view: PolicyView) -> str:
    if view.time_left_s is None:
        return "no deadline"
    slack, reserve = slack_s(view), reserve_s(view)
    if not safe_to_wait(view):
        return "on demand would then be too late"
    return f"{describe_s(max(slack, 0.0))} to spare, {describe_s(reserve)} reserved"


def _sentence(view: PolicyView, choice: Choice) -> str:
    if view.work_left_s <= 0:
        return "the work is done"
    if choice.kind == "spot":
        spot = next(spot for spot in view.spots if spot.name == choice.place)
        stays = "stays on" if spot.name == view.held else "goes to"
        saved = view.on_demand.price - spot.price
        return f"{stays} spot in {spot.name}: ${spot.price:g} an hour, ${saved:.4g} less than on demand"
    if view.time_left_s is None:
        if choice.kind == "wait":
            return "waits for spot: without a deadline, waiting costs nothing"
        return "on demand: no spot machine makes cheaper progress"
    slack = slack_s(view)
    if slack < (view.start_left_s if view.held == ON_DEMAND else view.on_demand.start_s):
        return "on demand: the deadline can no longer be met, and this finishes soonest"
    spare = describe_s(max(slack, 0.0))
    if choice.kind == "wait":
        what = "a cheaper spot machine" if any(spot.up for spot in view.spots) else "spot"
        return f"waits for {what}: {spare} to spare, {describe_s(reserve_s(view))} of it reserved for restarts"
    if not any(worthwhile(view, spot) for spot in view.spots):
        return "on demand: no spot machine makes cheaper progress"
    if any(spot.up for spot in view.spots):
        return f"on demand: {spare} to spare, and no available spot machine pays for the move"
    return f"on demand: no spot capacity, and the {spare} to spare are reserved for restarts"
