"""The deadline policy's view of a run, and the steps that follow from its choice. Pure.

Start times, lifetimes and outages of zones are measured from the stories of live runs of the workspace. Defaults for
unseen zones are in `outlast.policy.lifetimes` and here.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace

from outlast.billing.egress import TrafficRates, rates, saving_usd_per_hour, start_usd
from outlast.clouds.cloud import Offer
from outlast.clouds.traits import traits_of
from outlast.policy import Choice, OnDemand, PolicyView, Spot, decide
from outlast.policy.decide import break_even_s
from outlast.policy.lifetimes import CYCLE_S, CYCLES, mean_life_s
from outlast.policy.view import ON_DEMAND
from outlast.runs.state import Attempt, RunState
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec
from outlast.supervisor.world import Move, RunView, Wait, World, cooldown_until

# How often a run with a machine requests another one in a zone that lacked capacity. A refusal costs nothing.
ASK_S = 600.0
# Two refusals that are further apart belong to different outages: capacity may have come and gone in between.
OUTAGE_GAP_S = 2 * ASK_S

# While only the user's word says how long the command works: assume this part more, but at most that part of the slack.
WORK_MARGIN, WORK_MARGIN_OF_SLACK = 0.05, 0.25

# Start times and lifetimes are measured from the stories of this many other runs.
STORIES = 50

# Without figures, so that one event stays true for as long as the run waits.
WAITS = "waits for spot: the deadline leaves time to spare"


def decision_interval_s(cloud: str) -> float:
    """Return how often the policy decides about a run."""
    return traits_of(cloud).decision_s


def due_at(spec: Spec, state: RunState) -> float:
    """Return the time of the deadline; 0 without one."""
    limits = spec.limits
    return limits.deadline_at or (state.submitted_at + limits.deadline_s if limits.deadline_s else 0.0)


def done_s(state: RunState, now: float) -> tuple[float, float]:
    """Return the seconds of work that are done, and how many of them a loss of the machine would cost."""
    done = unsaved = 0.0
    for attempt in state.attempts:
        if not attempt.started_at:
            continue
        if attempt.phase == "over":
            # The next attempt repeats the work after the last checkpoint.
            done += max(0.0, attempt.saved_at - attempt.started_at) if attempt.saves else 0.0
        else:
            done += max(0.0, now - attempt.started_at)
            unsaved = max(0.0, now - max(attempt.saved_at, attempt.started_at))
    return done, unsaved


def gap_s(state: RunState) -> float:
    """Return the longest time that this run has worked between checkpoints."""
    longest = 0.0
    for attempt in state.attempts:
        if not attempt.started_at:
            continue
        until = attempt.noticed_at or attempt.over_at
        saves = [point.at for point in state.checkpoints if point.attempt == attempt.number]
        # A save after a notice does not count: without the notice it would have come later.
        moments = [attempt.started_at, *(at for at in saves if not until or at < until), *([until] if until else [])]
        longest = max([longest, *(b - a for a, b in itertools.pairwise(moments))])
    return longest


@dataclass(frozen=True, slots=True)
class WorkForecast:
    """How long the command still has to work, and how that is known."""

    left_s: float
    # Part of `left_s`: more than `work` says, because that is an estimate.
    margin_s: float = 0.0
    # The number of pairs of checkpoints that gave the pace; 0: it is not measured.
    measured: int = 0

    def describe(self) -> str:
        if self.measured:
            return f"{describe_s(self.left_s)} of work left, at the pace between {self.measured + 1} checkpoints"
        sure = "checkpoints with steps, and `[limits] steps`, would measure it"
        margin = f", with {describe_s(self.margin_s)} in reserve" if self.margin_s >= 1 else ""
        return f"{describe_s(self.left_s)} of work left by `work`{margin}; {sure}"


def forecast(spec: Spec, state: RunState, now: float) -> WorkForecast | None:
    """Return how long the command still has to work; None if unknown. Measured steps take precedence over `work`."""
    done, unsaved = done_s(state, now)
    by_steps = _by_steps_s(spec.limits.steps, state)
    if by_steps is not None:
        left_s, pairs = by_steps
        return WorkForecast(max(1.0, left_s - unsaved), measured=pairs)
    if not spec.limits.work_s:
        return None
    margin_s = _margin_s(spec, state)
    return WorkForecast(max(1.0, spec.limits.work_s + margin_s - done), margin_s=margin_s)


def _margin_s(spec: Spec, state: RunState) -> float:
    """Return the time by which `work` may be too low. A tight deadline leaves less: time for spot is worth more."""
    due = due_at(spec, state)
    if not due:
        return 0.0
    slack_s = max(0.0, due - state.submitted_at - spec.limits.work_s)
    return min(WORK_MARGIN * spec.limits.work_s, WORK_MARGIN_OF_SLACK * slack_s)


def work_left_s(spec: Spec, state: RunState, now: float) -> float | None:
    known = forecast(spec, state, now)
    return known.left_s if known is not None else None


def _by_steps_s(steps: int, state: RunState) -> tuple[float, int] | None:
    """Return the time from the last checkpoint to the last step, at the pace between earlier ones, and their pairs."""
    saved = [point for point in state.checkpoints if point.step is not None]
    pairs = [(a, b) for a, b in itertools.pairwise(saved) if a.attempt == b.attempt]
    passed = sum(b.at - a.at for a, b in pairs)
    made = sum((b.step or 0) - (a.step or 0) for a, b in pairs)
    if not steps or passed <= 0 or made <= 0:
        return None
    return max(0, steps - (saved[-1].step or 0)) * passed / made, len(pairs)


def policy_view(world: World, view: RunView) -> PolicyView | None:
    """Return the policy's view of a run; None without on-demand offers, or if the remaining work is unknown."""
    demands = _best_of(world, view, view.on_demand_offers)
    work_left = work_left_s(view.spec, view.state, world.now)
    if not demands or work_left is None:
        return None
    cloud, now = view.spec.machine.cloud, world.now
    due = due_at(view.spec, view.state)
    # A sample of other stories is enough, and keeps the cost of a decision constant.
    others = (each for each in itertools.islice(world.runs, STORIES) if each.run != view.run)
    clouds = view.spec.machine.clouds
    history = [a for each in (*others, view) for a in each.state.attempts if a.cloud in clouds]
    _, unsaved = done_s(view.state, now)
    held = _held(view)
    if held is None or not held.spot:
        # A spot machine could lose as much work as this run has had unsaved before. Without this the run would move
        # back and forth.
        unsaved = gap_s(view.state)
    on_demand = OnDemand(price=demands[0].bills_usd_per_hour, start_s=_start_s(history, cloud, worst=True))
    return PolicyView(
        work_left_s=work_left,
        time_left_s=due - now if due else None,
        on_demand=on_demand,
        spots=tuple(_spot(world, view, offer, history) for offer in _best_of(world, view, view.spot_offers)),
        held="" if held is None else held.zone if held.spot else ON_DEMAND,
        start_left_s=0.0 if held is None or held.started_at else _left_s(held, on_demand.start_s, now),
        interval_s=decision_interval_s(cloud),
        unsaved_s=unsaved + traits_of(cloud).unnoticed_s,
    )


def progress_usd(world: World, view: RunView, offer: Offer) -> float:
    """Return the cost of an hour of progress: the price, plus the measured cost of restarts and data transfer."""
    traffic = _traffic(world, view, offer)
    hour_usd = offer.bills_usd_per_hour + saving_usd_per_hour(view.state, traffic)
    if not offer.spot:
        return hour_usd
    history = [a for a in view.state.attempts if a.cloud == offer.cloud]
    here = [a for a in history if a.spot and (a.zone, a.type) == (offer.zone, offer.type) and a.outcome != "refused"]
    start_s = _start_s(here if _starts(here) else history, offer.cloud)
    lived_s = sum((a.over_at or world.now) - a.placed_at for a in here)
    # Each preemption costs a start. Zones without history get the lifetimes that the policy assumes.
    life_s = (CYCLES * CYCLE_S / 2 + lived_s) / (CYCLES + sum(_was_preempted(a) for a in here))
    moving_usd = start_usd(view.state, traffic) * 3600.0
    return hour_usd * (1 + start_s / max(life_s, 1.0)) + moving_usd / max(life_s, 1.0)


def _traffic(world: World, view: RunView, offer: Offer) -> TrafficRates:
    return rates(world.workspace_url, view.spec.machine.near, offer.cloud, offer.region)


def next_place(world: World, view: RunView) -> Offer | Wait | None:
    """Return where a run without a machine goes; None if the policy has no view of it."""
    policy = policy_view(world, view)
    if policy is None:
        return None
    choice = decide(policy)
    if choice.kind == "wait":
        return Wait(run=view.run, why=WAITS)
    return _offer(world, view, choice)


def next_move(world: World, view: RunView) -> Offer | None:
    """Return where a run with a working machine should move, once that pays; None to stay."""
    last = view.state.last
    if last is None or last.phase != "started" or not view.spec.uses_policy:
        return None
    policy = policy_view(world, view)
    if policy is None or policy.work_left_s <= policy.on_demand.start_s:
        return None  # the work ends before another machine would have started
    choice = decide(policy)
    if choice.kind == "wait" or choice.held == policy.held:
        return None
    if choice.kind == "spot" and world.now - last.started_at < _payback_s(policy, choice):
        return None
    return _offer(world, view, choice)


def leaves_boot(world: World, view: RunView) -> bool:
    """Return whether a spot machine that still boots must be given up for an on-demand machine, to be in time."""
    booting = view.state.launching
    if booting is None or not booting.spot or booting.nodes > 1 or not view.spec.uses_policy:
        return False
    policy = policy_view(world, view)
    if policy is None or policy.time_left_s is None:
        return False
    choice = decide(policy)
    return choice.kind == "on demand" and policy.held != ON_DEMAND and _offer(world, view, choice) is not None


def move_of(view: RunView, attempt: Attempt, *, spot: bool, zone: str) -> Move:
    """Return the step that lets a working attempt save and stop, because the run has a better machine."""
    where = f"spot in {zone}" if spot else "on demand, to be in time"
    grace_s = traits_of(view.spec.machine.cloud).grace_s
    return Move(run=view.run, attempt=attempt.number, why=f"moves to {where}", grace_s=grace_s)


def _payback_s(policy: PolicyView, choice: Choice) -> float:
    """Return how long a machine must have worked before a move to a cheaper one is worth it."""
    spot = next(spot for spot in policy.spots if spot.name == choice.place)
    return break_even_s(policy, spot)


def _held(view: RunView) -> Attempt | None:
    """Return the attempt whose machine the run keeps; None if it has none or is about to lose it."""
    last = view.state.last
    return last if last is not None and last.phase in ("placed", "started") else None


def _best_of(world: World, view: RunView, offers: Iterable[Offer]) -> list[Offer]:
    """Return the cheapest offer of each zone, cheapest first. A zone that refuses one GPU may have an alternative."""
    machine, found = view.spec.machine, dict[str, Offer]()

    def rank(offer: Offer) -> tuple[bool, float, int]:
        rests = bool(machine.other_gpus) and cooldown_until(world, offer, machine.nodes) > world.now
        return rests, offer.price_usd_per_hour, machine.gpu_place(offer.gpu, offer.gpus)

    for offer in sorted(offers, key=rank):
        found.setdefault(offer.zone, offer)
    return list(found.values())


def _offer(world: World, view: RunView, choice: Choice) -> Offer | None:
    offers = view.spot_offers if choice.kind == "spot" else view.on_demand_offers
    best, nodes = _best_of(world, view, offers), view.spec.machine.nodes
    ready = [offer for offer in best if cooldown_until(world, offer, nodes) <= world.now]
    if choice.kind == "spot":
        ready = [offer for offer in ready if offer.zone == choice.place]
    return ready[0] if ready else None


def _spot(world: World, view: RunView, offer: Offer, history: list[Attempt]) -> Spot:
    now = world.now
    here = [a for a in history if a.spot and (a.cloud, a.zone, a.type) == (offer.cloud, offer.zone, offer.type)]
    seen = seen_capacity(here, now)
    mine = _held(view)
    holds = mine is not None and mine.spot and mine.zone == offer.zone
    # A zone that is about to take a machine away counts as full.
    noticed = any(a.phase == "noticed" and not a.moved for a in here)
    up = holds or (cooldown_until(world, offer, view.spec.machine.nodes) <= now and not noticed)
    if up and not holds and mine is not None and now - seen.bad_at < ASK_S:
        up = False
    traffic = _traffic(world, view, offer)
    spot = Spot(
        name=offer.zone,
        price=offer.bills_usd_per_hour + saving_usd_per_hour(view.state, traffic),
        up=up,
        start_s=_start_s(here, offer.cloud) if any(a.started_at for a in here) else _start_s(history, offer.cloud),
        ups=seen.losses,
        up_s=seen.up_s,
        seen_s=seen.up_s + seen.down_s,
        move_usd=start_usd(view.state, traffic),
        advised_life_s=offer.advised_life_s,
    )
    return replace(spot, age_s=max(0.0, _age_s(spot, seen, now)))


def _age_s(spot: Spot, seen: SeenCapacity, now: float) -> float:
    if not spot.up:
        return now - seen.down_since if math.isfinite(seen.down_since) else 0.0
    if seen.lives:
        return now - seen.up_since
    # Without a machine there, the age of its capacity is unknown: the mean, or less if there was none since.
    return min(mean_life_s(spot), now - seen.bad_at)


@dataclass(frozen=True, slots=True)
class SeenCapacity:
    """What attempts in one zone have shown about its capacity."""

    # Whether a machine lives there, and since when.
    lives: bool
    up_since: float
    # The last refusal or preemption, and the begin of that outage; minus infinity if a machine lived there since.
    bad_at: float
    down_since: float
    up_s: float
    down_s: float
    # How often capacity was lost.
    losses: int


def seen_capacity(here: Iterable[Attempt], now: float) -> SeenCapacity:
    """Return what these attempts have shown. Between two that are far apart nothing is known."""
    lives, up_since, bad_at, down_since = False, now, -math.inf, -math.inf
    up_s = down_s = 0.0
    losses = 0
    for attempt in sorted(here, key=lambda attempt: attempt.placed_at):
        at = attempt.placed_at
        if at - bad_at <= OUTAGE_GAP_S:
            down_s += max(0.0, at - bad_at)
        elif attempt.outcome == "refused":
            down_since = attempt.over_at
        if attempt.outcome == "refused":
            bad_at = max(bad_at, attempt.over_at)
            continue
        ends = attempt.noticed_at if _was_preempted(attempt) and attempt.noticed_at else attempt.over_at
        up_s += max(0.0, (ends or now) - at)
        if attempt.phase in ("placed", "started"):
            lives, up_since = True, min(up_since, at)
        losses += _was_preempted(attempt)
        bad_at = down_since = (ends or now) if _was_preempted(attempt) else -math.inf
    return SeenCapacity(lives, up_since, bad_at, down_since, up_s, down_s, losses)


def _was_preempted(attempt: Attempt) -> bool:
    return attempt.preempted and not attempt.moved


def _start_s(history: list[Attempt], cloud: str, *, worst: bool = False) -> float:
    """Return the measured time from `Placed` to `Started`, or the default of the cloud."""
    measured = _starts(history)
    if not measured:
        return traits_of(cloud).start_s
    return max(measured) if worst else statistics.median(measured)


def measured_start_s(history: list[Attempt]) -> float | None:
    """Return the median start time; None if none was measured."""
    measured = _starts(history)
    return statistics.median(measured) if measured else None


def _starts(history: list[Attempt]) -> list[float]:
    # A successor that waited for its predecessor (handoff) does not count.
    return [
        a.started_at - a.placed_at
        for before, a in zip([None, *history], history, strict=False)
        if a.started_at > a.placed_at and (before is None or not before.noticed_at)
    ]


def _left_s(held: Attempt, start_s: float, now: float) -> float:
    return max(0.0, start_s - (now - held.placed_at))
