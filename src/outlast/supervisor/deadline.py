"""A run with a deadline and a known amount of work, as the policy sees it; and what follows for the plan. Pure.

What is told of places comes from the stories of all live runs of the workspace: how long machines took to start, how
long they lived, when a zone had none. What nobody has seen yet is assumed in `outlast.policy.lifetimes` and here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable

from outlast.billing.egress import moving_usd
from outlast.clouds.cloud import Offer
from outlast.policy import Choice, OnDemand, PolicyView, Spot, decide
from outlast.policy.decide import break_even_s
from outlast.policy.lifetimes import CYCLE_S, CYCLES
from outlast.policy.view import ON_DEMAND
from outlast.runs.state import Attempt, RunState
from outlast.spec.spec import Spec
from outlast.supervisor.world import Move, RunView, Wait, World

# From `Placed` to `Started`, until it was measured.
START_S = {"local": 2.0}
START_ELSEWHERE_S = 180.0
# How often the policy is asked, and how long a machine that died without a word goes unnoticed.
LOOK_S = {"local": 1.0}
LOOK_ELSEWHERE_S = 30.0
UNNOTICED_S = {"local": 2.0}
UNNOTICED_ELSEWHERE_S = 90.0
# Who moves has so long to save; the successor boots meanwhile.
GRACE_S = {"local": 20.0}
GRACE_ELSEWHERE_S = 120.0

# A machine that works is not left for a place that had none so lately, if nobody has seen one there since: whether
# there is capacity again is only known by asking for a machine, and the answer may be no.
OUTAGE_S = 3600.0

# Of so many other runs the stories are asked what starts took and how long machines lived.
STORIES = 50

# No figures in it: it is said once and stays true, however long it waits.
WAITS = "waits for spot: the deadline leaves time to spare"


def look_s(cloud: str) -> float:
    """How often the policy is asked about a run."""
    return LOOK_S.get(cloud, LOOK_ELSEWHERE_S)


def due_at(spec: Spec, state: RunState) -> float:
    """The moment of the deadline; 0 without one."""
    limits = spec.limits
    return limits.deadline_at or (state.submitted_at + limits.deadline_s if limits.deadline_s else 0.0)


def done_s(state: RunState, now: float) -> tuple[float, float]:
    """Work that is done, and how much of it would be lost with the machine that runs."""
    done = unsaved = 0.0
    for attempt in state.attempts:
        if not attempt.started_at:
            continue
        if attempt.phase == "over":
            # What came after the last checkpoint is done again by the next attempt.
            done += max(0.0, attempt.saved_at - attempt.started_at) if attempt.saves else 0.0
        else:
            done += max(0.0, now - attempt.started_at)
            unsaved = max(0.0, now - max(attempt.saved_at, attempt.started_at))
    return done, unsaved


def gap_s(state: RunState) -> float:
    """The longest time that this run has worked without a save."""
    longest = 0.0
    for attempt in state.attempts:
        if not attempt.started_at:
            continue
        until = attempt.noticed_at or attempt.over_at
        saves = [point.at for point in state.checkpoints if point.attempt == attempt.number]
        # The last save after a notice is not one that would have come without it.
        moments = [attempt.started_at, *(at for at in saves if not until or at < until), *([until] if until else [])]
        longest = max([longest, *(b - a for a, b in itertools.pairwise(moments))])
    return longest


def work_left_s(spec: Spec, state: RunState, now: float) -> float | None:
    """How long the command has still to work; None: nobody can tell yet. Steps that were counted tell it better than
    what was thought before."""
    done, unsaved = done_s(state, now)
    by_steps = _by_steps_s(spec.limits.steps, state)
    if by_steps is not None:
        return max(1.0, by_steps - unsaved)
    return max(1.0, spec.limits.work_s - done) if spec.limits.work_s else None


def _by_steps_s(steps: int, state: RunState) -> float | None:
    """From the last checkpoint to the last step, at the pace between the checkpoints of each attempt."""
    saved = [point for point in state.checkpoints if point.step is not None]
    pairs = [(a, b) for a, b in itertools.pairwise(saved) if a.attempt == b.attempt]
    passed = sum(b.at - a.at for a, b in pairs)
    made = sum((b.step or 0) - (a.step or 0) for a, b in pairs)
    if not steps or passed <= 0 or made <= 0:
        return None
    return max(0, steps - (saved[-1].step or 0)) * passed / made


def policy_view(world: World, view: RunView) -> PolicyView | None:
    """What the policy is told; None if there is nothing to choose on demand, or nobody knows how much is left."""
    demands = _best_of(view.on_demand_offers)
    work_left = work_left_s(view.spec, view.state, world.now)
    if not demands or work_left is None:
        return None
    cloud, now = view.spec.machine.cloud, world.now
    due = due_at(view.spec, view.state)
    # Its own story, and those of some others: of ten thousand runs a few tell enough, and each is decided on by itself.
    others = (each for each in itertools.islice(world.runs, STORIES) if each.run != view.run)
    clouds = view.spec.machine.clouds
    history = [a for each in (*others, view) for a in each.state.attempts if a.cloud in clouds]
    _, unsaved = done_s(view.state, now)
    held = _held(view)
    if held is None or not held.spot:
        # What a spot would have to lose: as much as this run has had unsaved before. Else it would go and come back.
        unsaved = gap_s(view.state)
    on_demand = OnDemand(price=demands[0].price_usd_per_hour, start_s=_start_s(history, cloud, worst=True))
    return PolicyView(
        work_left_s=work_left,
        time_left_s=due - now if due else None,
        on_demand=on_demand,
        spots=tuple(_spot(world, view, offer, history) for offer in _best_of(view.spot_offers)),
        held="" if held is None else held.zone if held.spot else ON_DEMAND,
        start_left_s=0.0 if held is None or held.started_at else _left_s(held, on_demand.start_s, now),
        look_s=look_s(cloud),
        unsaved_s=unsaved + UNNOTICED_S.get(cloud, UNNOTICED_ELSEWHERE_S),
    )


def progress_usd(world: World, view: RunView, offer: Offer) -> float:
    """What an hour of progress costs there: the price, and the starts that short lives make necessary, as was seen."""
    if not offer.spot:
        return offer.price_usd_per_hour
    history = [a for a in view.state.attempts if a.cloud == offer.cloud]
    here = [a for a in history if a.spot and (a.zone, a.type) == (offer.zone, offer.type) and a.outcome != "refused"]
    start_s = _start_s(here if _starts(here) else history, offer.cloud)
    lived_s = sum((a.over_at or world.now) - a.placed_at for a in here)
    # Each life costs a start; a place that nobody has seen is given the lives that the policy assumes.
    life_s = (CYCLES * CYCLE_S / 2 + lived_s) / (CYCLES + sum(_taken(a) for a in here))
    carried_usd = moving_usd(view.state, world.workspace_url, offer.cloud) * 3600.0
    return offer.price_usd_per_hour * (1 + start_s / max(life_s, 1.0)) + carried_usd / max(life_s, 1.0)


def next_place(world: World, view: RunView) -> Offer | Wait | None:
    """Where a run without a machine goes; None: as if there were no policy."""
    seen = policy_view(world, view)
    if seen is None:
        return None
    choice = decide(seen)
    if choice.kind == "wait":
        return Wait(run=view.run, why=WAITS)
    return _offer(world, view, choice)


def next_move(world: World, view: RunView) -> Move | None:
    """Whether a run leaves the machine that it works on. A choice that is not clear yet stays where it is."""
    last = view.state.last
    if last is None or last.phase != "started" or not view.spec.uses_policy:
        return None
    seen = policy_view(world, view)
    if seen is None or seen.work_left_s <= seen.on_demand.start_s:
        return None  # it is done sooner than it would be back at work elsewhere
    choice = decide(seen)
    if choice.kind == "wait" or choice.held == seen.held or _offer(world, view, choice) is None:
        return None
    if choice.kind == "spot" and world.now - last.started_at < _settle_s(seen, choice):
        return None
    cloud = view.spec.machine.cloud
    where = f"spot in {choice.place}" if choice.kind == "spot" else "on demand, to be in time"
    return Move(
        run=view.run,
        attempt=last.number,
        why=f"moves to {where}",
        grace_s=GRACE_S.get(cloud, GRACE_ELSEWHERE_S),
    )


def _settle_s(seen: PolicyView, choice: Choice) -> float:
    """A machine is not left for a cheaper one before it has worked for as long as the move takes to pay."""
    spot = next(spot for spot in seen.spots if spot.name == choice.place)
    return break_even_s(seen, spot)


def _held(view: RunView) -> Attempt | None:
    """The attempt whose machine the run has: not one that is about to lose it."""
    last = view.state.last
    return last if last is not None and last.phase in ("placed", "started") else None


def _best_of(offers: Iterable[Offer]) -> list[Offer]:
    """The cheapest offer of each zone, cheapest first."""
    found: dict[str, Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.price_usd_per_hour):
        found.setdefault(offer.zone, offer)
    return list(found.values())


def _offer(world: World, view: RunView, choice: Choice) -> Offer | None:
    offers = view.spot_offers if choice.kind == "spot" else view.on_demand_offers
    awake = [offer for offer in _best_of(offers) if world.cooldowns.get(offer.key, 0.0) <= world.now]
    if choice.kind == "spot":
        awake = [offer for offer in awake if offer.zone == choice.place]
    return awake[0] if awake else None


def _spot(world: World, view: RunView, offer: Offer, history: list[Attempt]) -> Spot:
    now = world.now
    here = [a for a in history if a.spot and (a.cloud, a.zone, a.type) == (offer.cloud, offer.zone, offer.type)]
    lives = [a for a in here if a.outcome != "refused"]
    rests_until = world.cooldowns.get(offer.key, 0.0)
    mine = _held(view)
    holds = mine is not None and mine.spot and mine.zone == offer.zone
    # A zone that just took a machine back has none, until somebody is told otherwise.
    up = holds or (rests_until <= now and not any(a.phase == "noticed" and not a.moved for a in lives))
    if up and mine is not None and not mine.spot and now - _bad_news_at(here) < OUTAGE_S:
        up = False
    began = [a.placed_at for a in lives if a.phase in ("placed", "started")]
    ended = [a.over_at for a in here if a.phase == "over"]
    if up:
        age_s = now - min(began) if began else 0.0
    else:
        age_s = now - max([*ended, *[a.noticed_at for a in lives if a.noticed_at]], default=now)
    up_s = sum((a.over_at or now) - a.placed_at for a in lives)
    first = min((a.placed_at for a in here), default=now)
    return Spot(
        name=offer.zone,
        price=offer.price_usd_per_hour,
        up=up,
        age_s=max(0.0, age_s),
        start_s=_start_s(here, offer.cloud) if any(a.started_at for a in here) else _start_s(history, offer.cloud),
        ups=sum(_taken(a) for a in lives),
        up_s=up_s,
        seen_s=now - first,
        move_usd=moving_usd(view.state, world.workspace_url, offer.cloud),
    )


def _bad_news_at(here: list[Attempt]) -> float:
    """When a place last took a machine back or had none; long ago if a machine of somebody lives there since."""
    bad = max((a.noticed_at or a.over_at for a in here if a.outcome == "refused" or _taken(a)), default=0.0)
    good = max((a.started_at for a in here if a.phase == "started"), default=0.0)
    return bad if bad > good else -math.inf


def _taken(attempt: Attempt) -> bool:
    return attempt.preempted and not attempt.moved


def _start_s(history: list[Attempt], cloud: str, *, worst: bool = False) -> float:
    """From the intent to the command, as it was measured; a successor that waited for its predecessor tells nothing."""
    measured = _starts(history)
    if not measured:
        return START_S.get(cloud, START_ELSEWHERE_S)
    return max(measured) if worst else statistics.median(measured)


def measured_start_s(history: list[Attempt]) -> float | None:
    """The median of what starts took; None if nobody has seen one."""
    measured = _starts(history)
    return statistics.median(measured) if measured else None


def _starts(history: list[Attempt]) -> list[float]:
    return [
        a.started_at - a.placed_at
        for before, a in zip([None, *history], history, strict=False)
        if a.started_at > a.placed_at and (before is None or not before.noticed_at)
    ]


def _left_s(held: Attempt, start_s: float, now: float) -> float:
    return max(0.0, start_s - (now - held.placed_at))
