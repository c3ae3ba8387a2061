"""The decision itself: a net under the deadline, a reserve of slack above it, and break-even for every move. Pure.

`slack` is the time that may yet be lost: time left minus work left. Three rules, in this order:

1. The net: nothing is done after which an on-demand machine, started at the next look, could come too late. It is
   exact: whatever the places do, a job that could be in time at its first look is in time.
2. The reserve: while no spot is to be had the job waits, as long as the slack is more than the restarts to come will
   need. Waiting keeps the chance that spot does the work; a job without slack can use no spot at all.
3. Break-even: a running on-demand machine is left for a spot that will live long enough to pay for both starts.
"""

from __future__ import annotations

from outlast.policy.lifetimes import cycle_s, life_s, mean_life_s
from outlast.policy.view import ON_DEMAND, Choice, PolicyView, Spot

# The part of the work left that is kept for bad luck, beyond the restarts that are expected.
RESERVE_FRACTION = 0.08
# Starts of which the time is always kept: one to go to spot, one to come back, one in hand.
STARTS = 3.0
# A spot that is held is left for another only if that pays this many times over: choices that flap cost starts.
MOVE_PAYBACK = 4.0
# Sums of floating-point times may be off by so much; a move that is safe by less is not safe.
EXACT_S = 1e-3

WAIT = Choice("wait")
DEMAND = Choice("on demand")


def decide(view: PolicyView) -> Choice:
    """Where the job should be until the next look."""
    if view.work_left_s <= 0:
        return WAIT
    best = _best(view)
    held = _held(view)
    if held is not None:
        best = _stay_or_move(view, held, best)
    if view.time_left_s is None:
        return _cheapest(view, best)
    if best is not None and safe_on(view, best):
        if view.held != ON_DEMAND or pays(view, best):
            return Choice("spot", best.name)
    elif held is not None and safe_on(view, held):
        return Choice("spot", held.name)
    if view.held == ON_DEMAND or best is not None or not _cheaper(view):
        # A spot that is there and cannot be risked now can be risked even less later.
        return DEMAND
    return WAIT if _may_wait(view) else DEMAND


def slack_s(view: PolicyView) -> float:
    """The time that may be lost. The time left is counted in whole looks: only then can anything be done."""
    assert view.time_left_s is not None
    left = view.time_left_s
    if view.look_s > 0:
        left = (left + EXACT_S) // view.look_s * view.look_s
    return left - view.work_left_s


def safe_to_wait(view: PolicyView) -> bool:
    """Whether an on-demand machine that is started at the next look ends in time."""
    return slack_s(view) - view.look_s >= view.on_demand.start_s + EXACT_S


def safe_on(view: PolicyView, spot: Spot) -> bool:
    """Whether that is so after a look's time on this spot machine, if it is lost at the end of it."""
    staying = spot.name == view.held
    start = view.start_left_s if staying else spot.start_s
    if view.work_left_s + start <= view.look_s - EXACT_S and not view.unsaved_s:
        # It is done before the next look, and a machine is lost only at one.
        assert view.time_left_s is not None
        return view.work_left_s + start <= view.time_left_s
    lost = min(start, view.look_s)
    # Who stays loses nothing that was not given up when it came here: no rounding may drive it out.
    exact = -EXACT_S if staying else EXACT_S
    return slack_s(view) - lost - view.unsaved_s >= view.on_demand.start_s + exact


def reserve_s(view: PolicyView) -> float:
    """The slack below which a job without spot goes on demand: what restarts will need, and a part for bad luck."""
    return RESERVE_FRACTION * view.work_left_s + _start_s(view) * (_cycles(view) + STARTS)


def scarcity(view: PolicyView) -> float:
    """How many times the slack the restarts to come would take, if every spot were used and left: two a cycle."""
    return 2 * _start_s(view) * _cycles(view) / max(slack_s(view), 1.0)


def break_even_s(view: PolicyView, spot: Spot) -> float:
    """The life from which on a spot pays for leaving on demand: its start, and that of the way back."""
    saved = view.on_demand.price - spot.price
    if saved <= 0:
        return float("inf")
    # During its start progress stands still that would have been paid on demand; the way back is billed on demand.
    starts = spot.start_s * spot.price + view.on_demand.start_s * view.on_demand.price
    # Who has too little slack for every spot to come takes those that pay as many times over.
    scarce = 1.0 if view.time_left_s is None else max(1.0, scarcity(view))
    return (starts * scarce + spot.move_usd * 3600.0) / saved


def pays(view: PolicyView, spot: Spot) -> bool:
    return life_s(spot, view.look_s) >= break_even_s(view, spot)


def value(view: PolicyView, spot: Spot) -> float:
    """Dollars an hour that this place is worth: progress at the price of on demand, less what it costs."""
    life = max(life_s(spot, view.look_s), view.look_s, 1e-9)
    start = view.start_left_s if spot.name == view.held else spot.start_s
    move = 0.0 if spot.name == view.held else spot.move_usd * 3600.0 / life
    return view.on_demand.price * max(life - start, 0.0) / life - spot.price - move


def _best(view: PolicyView) -> Spot | None:
    best: Spot | None = None
    worth = float("-inf")
    for spot in view.spots:
        if spot.up and spot.price < view.on_demand.price:
            this = value(view, spot)
            if this > worth:
                best, worth = spot, this
    return best


def _held(view: PolicyView) -> Spot | None:
    if view.held and view.held != ON_DEMAND:
        for spot in view.spots:
            if spot.name == view.held:
                return spot if spot.up else None
    return None


def _stay_or_move(view: PolicyView, held: Spot, best: Spot | None) -> Spot:
    """The spot that is held, unless another is so much cheaper that it pays for the move more than once."""
    if best is None or best.name == held.name:
        return held
    life = min(life_s(held, view.look_s), life_s(best, view.look_s), view.work_left_s)
    saved = (held.price - best.price) * life
    cost = best.start_s * (best.price + view.on_demand.price) + best.move_usd * 3600.0
    return best if saved > MOVE_PAYBACK * cost and saved > 0 else held


def _cheapest(view: PolicyView, best: Spot | None) -> Choice:
    """Without a deadline: the place whose progress is the cheapest; none there: wait, for time costs nothing."""
    if best is not None and (view.held != ON_DEMAND or pays(view, best)):
        return Choice("spot", best.name)
    return DEMAND if view.held == ON_DEMAND or not _cheaper(view) else WAIT


def worthwhile(view: PolicyView, spot: Spot) -> bool:
    """Whether an hour of progress is cheaper there than on demand, if machines live as long as was seen."""
    life = mean_life_s(spot)
    if life <= spot.start_s:
        return False
    return (spot.price * life + spot.move_usd * 3600.0) / (life - spot.start_s) < view.on_demand.price


def _cheaper(view: PolicyView) -> bool:
    """Whether there is any spot that is worth waiting for."""
    return any(worthwhile(view, spot) for spot in view.spots)


def _may_wait(view: PolicyView) -> bool:
    if not safe_to_wait(view):
        return False
    if slack_s(view) - view.look_s >= reserve_s(view):
        return True
    # Most outages are short. To sit one out for as long as a start takes costs no more time than the start would; but
    # not if the slack is too little for one start a cycle as it is.
    if scarcity(view) >= 2.0:
        return False
    down_s = min((spot.age_s for spot in view.spots if not spot.up), default=float("inf"))
    return down_s + view.look_s <= view.on_demand.start_s


def _cycles(view: PolicyView) -> float:
    """How often capacity will come and go until the work is done."""
    return view.work_left_s / cycle_s(view.spots)


def _start_s(view: PolicyView) -> float:
    """The mean of a start on demand and one on spot: each cycle has one of either."""
    if not view.spots:
        return view.on_demand.start_s
    return (view.on_demand.start_s + sum(spot.start_s for spot in view.spots) / len(view.spots)) / 2
