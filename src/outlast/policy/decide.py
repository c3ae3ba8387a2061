"""The decision: never miss the deadline, keep a reserve of slack, move only if it pays. Pure.

Slack is the time that may be lost: time left minus work left. Three rules, in this order (a fourth, for zones with
different prices, is in `prices`):

1. Safety: choose nothing after which an on-demand machine, started at the next decision, could finish too late. This is
   exact: a job that could be in time at its first decision is in time, whatever the zones do.
2. Reserve: without spot capacity the job waits while the slack exceeds the expected cost of restarts. Waiting keeps the
   chance of spot; a job without slack cannot use spot at all.
3. Break-even: leave a running on-demand machine for a spot machine that should live long enough to pay for both starts.
"""

from __future__ import annotations

from outlast.policy.lifetimes import cycle_s, life_s, mean_life_s
from outlast.policy.prices import without_dear
from outlast.policy.view import ON_DEMAND, Choice, PolicyView, Spot

# The fraction of the remaining work kept as reserve, beyond the expected restarts.
RESERVE_FRACTION = 0.08
# Starts whose time is always reserved: one to spot, one back, one spare.
STARTS = 3.0
# A move between spot machines must save this many times its cost: frequent moves waste starts.
MOVE_PAYBACK = 2.0
# Sums of floating-point times may be off by this much; a smaller margin does not count as safe.
EXACT_S = 1e-3

WAIT = Choice("wait")
DEMAND = Choice("on demand")


def decide(view: PolicyView) -> Choice:
    """Return where the job should run until the next decision."""
    cheap = without_dear(view)
    choice = decide_at_any_price(cheap)
    # An expensive spot machine is still better than an on-demand machine.
    return decide_at_any_price(view) if choice.kind == "on demand" and cheap is not view else choice


def decide_at_any_price(view: PolicyView) -> Choice:
    """Return the decision if every spot machine below the on-demand price is welcome."""
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
        # An available spot machine that is too risky now is even riskier later.
        return DEMAND
    return WAIT if _may_wait(view) else DEMAND


def slack_s(view: PolicyView) -> float:
    """Return the time that may be lost. The time left counts in whole intervals, because decisions happen only then."""
    assert view.time_left_s is not None
    left = view.time_left_s
    if view.interval_s > 0:
        left = (left + EXACT_S) // view.interval_s * view.interval_s
    return left - view.work_left_s


def safe_to_wait(view: PolicyView) -> bool:
    """Return whether an on-demand machine that starts at the next decision finishes in time."""
    return slack_s(view) - view.interval_s >= view.on_demand.start_s + EXACT_S


def safe_on(view: PolicyView, spot: Spot) -> bool:
    """Return whether that still holds if this spot machine is lost at the next decision."""
    staying = spot.name == view.held
    start = view.start_left_s if staying else spot.start_s
    if view.work_left_s + start <= view.interval_s - EXACT_S and not view.unsaved_s:
        # The work ends before the next decision, and a loss is only noticed there.
        assert view.time_left_s is not None
        return view.work_left_s + start <= view.time_left_s
    lost = min(start, view.interval_s)
    # Staying gives up nothing new, so rounding must not end it.
    exact = -EXACT_S if staying else EXACT_S
    return slack_s(view) - lost - view.unsaved_s >= view.on_demand.start_s + exact


def reserve_s(view: PolicyView) -> float:
    """Return the slack below which a job without spot goes on demand: expected restarts plus a fraction of the work."""
    return RESERVE_FRACTION * view.work_left_s + _start_s(view) * (_cycles(view) + STARTS)


def scarcity(view: PolicyView) -> float:
    """Return the ratio of expected restart time to slack, with two restarts per cycle of capacity."""
    return 2 * _start_s(view) * _cycles(view) / max(slack_s(view), 1.0)


def break_even_s(view: PolicyView, spot: Spot) -> float:
    """Return the lifetime from which a spot machine pays for leaving on demand and for the return."""
    saved = view.on_demand.price - spot.price
    if saved <= 0:
        return float("inf")
    # The job makes no progress during the start; the start of the return is billed on demand.
    starts = spot.start_s * spot.price + view.on_demand.start_s * view.on_demand.price
    # With too little slack for every spot machine to come, take only those that pay this many times over.
    scarce = 1.0 if view.time_left_s is None else max(1.0, scarcity(view))
    return (starts * scarce + spot.move_usd * 3600.0) / saved


def pays(view: PolicyView, spot: Spot) -> bool:
    return life_s(spot, view.interval_s) >= break_even_s(view, spot)


def value(view: PolicyView, spot: Spot) -> float:
    """Return the value of a zone in dollars per hour: progress at the on-demand price, minus its cost."""
    life = max(life_s(spot, view.interval_s), view.interval_s, 1e-9)
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
    """Return the held spot machine, unless another is cheap enough to pay for the move several times over."""
    if best is None or best.name == held.name:
        return held
    # Prices last longer than machines: a newborn one counts with the mean, because another is likely to follow.
    lives = (max(life_s(spot, view.interval_s), mean_life_s(spot)) for spot in (held, best))
    life = min(*lives, view.work_left_s)
    saved = (held.price - best.price) * life
    cost = best.start_s * (best.price + view.on_demand.price) + best.move_usd * 3600.0
    return best if saved > MOVE_PAYBACK * cost and saved > 0 else held


def _cheapest(view: PolicyView, best: Spot | None) -> Choice:
    """Return the choice without a deadline: the cheapest progress, or wait if no spot is available."""
    if best is not None and (view.held != ON_DEMAND or pays(view, best)):
        return Choice("spot", best.name)
    return DEMAND if view.held == ON_DEMAND or not _cheaper(view) else WAIT


def worthwhile(view: PolicyView, spot: Spot) -> bool:
    """Return whether progress costs less there than on demand, at the observed lifetimes."""
    life = mean_life_s(spot)
    if life <= spot.start_s:
        return False
    return (spot.price * life + spot.move_usd * 3600.0) / (life - spot.start_s) < view.on_demand.price


def _cheaper(view: PolicyView) -> bool:
    """Return whether any spot zone is worth waiting for."""
    return any(worthwhile(view, spot) for spot in view.spots)


def _may_wait(view: PolicyView) -> bool:
    if not safe_to_wait(view):
        return False
    if slack_s(view) - view.interval_s >= reserve_s(view):
        return True
    # Most outages are short, and waiting for as long as a start takes costs no more time than the start. But do not
    # wait if the slack is already too small for one start per cycle.
    if scarcity(view) >= 2.0:
        return False
    down_s = min((spot.age_s for spot in view.spots if not spot.up), default=float("inf"))
    return down_s + view.interval_s <= view.on_demand.start_s


def _cycles(view: PolicyView) -> float:
    """Return how often capacity is expected to come and go until the work is done."""
    return view.work_left_s / cycle_s(view.spots)


def _start_s(view: PolicyView) -> float:
    """Return the mean start time of on demand and spot: each cycle has one of each."""
    if not view.spots:
        return view.on_demand.start_s
    return (view.on_demand.start_s + sum(spot.start_s for spot in view.spots) / len(view.spots)) / 2
