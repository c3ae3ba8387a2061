"""The limits of a run, its user and the workspace, and the end of runs that make no progress. Pure.

A limit is reached early enough to pay for the last save. Spend exceeds a limit by at most (live machines × price ×
detection delay).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outlast.billing.egress import attempt_egress_usd
from outlast.billing.ledger import part_in
from outlast.clouds.cloud import LABEL_MACHINE, Machine
from outlast.clouds.traits import traits_of
from outlast.runs.members import owned
from outlast.runs.state import Attempt, RunState
from outlast.spec.quantity import describe_s
from outlast.supervisor.deadline import due_at
from outlast.supervisor.group_rules import follows, peer_losses
from outlast.supervisor.world import Budget, Fail, RunView, StopAtLimit, Wait, Warn, World

# The part of a limit after which a warning is written.
NEAR = 0.8


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one limit of a run."""

    limit: str
    used: float
    reached: bool
    # The messages when it is near and when it is reached.
    near: str
    why: str
    hint: str


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one budget by all runs and machines that it covers."""

    budget: Budget
    used_usd: float
    used_s: float
    # The cost until all live runs have saved and stopped.
    reserve_usd: float
    machines: int

    def covers(self, view: RunView) -> bool:
        return not self.budget.limits.who or self.budget.limits.who == view.state.who


def grace_s(cloud: str) -> float:
    return traits_of(cloud).grace_s


def report_s(cloud: str) -> float:
    return traits_of(cloud).report_s


def ran_s(world: World, state: RunState, attempt: Attempt) -> float:
    """Return how long an attempt's machines were billed, as their cloud reports it.

    If the cloud is unreachable, the time since `Placed` counts. A machine that the cloud does not list costs nothing
    yet, or its cost becomes known with `Released`.
    """
    if attempt.released:
        return attempt.seconds
    return sum(_machine_ran_s(world, attempt, name) for name in owned(state, attempt))


def _machine_ran_s(world: World, attempt: Attempt, name: str) -> float:
    machine = world.machines.get(name)
    if machine is not None:
        return machine.ran_s
    return max(0.0, world.now - attempt.placed_at) if world.is_silent(attempt.cloud, attempt.zone) else 0.0


def attempt_usd(world: World, state: RunState, attempt: Attempt) -> float:
    if attempt.released:
        return attempt.cost_usd
    traffic_usd = attempt_egress_usd(state, attempt)
    return traffic_usd + sum(_machine_usd(world, attempt, name) for name in owned(state, attempt))


def _machine_usd(world: World, attempt: Attempt, name: str) -> float:
    machine = world.machines.get(name)
    ran_s = _machine_ran_s(world, attempt, name)
    address_usd = ran_s * attempt.address_usd_per_hour / 3600.0
    if machine is not None:
        return machine.cost_usd + address_usd
    return ran_s * attempt.price_usd_per_hour / 3600.0 + address_usd


def spent_usd(world: World, view: RunView, since: float = 0.0) -> float:
    """Return the cost of a run until now; an estimate for attempts that are not released."""
    return sum(
        attempt_usd(world, view.state, a) * part_in(a.placed_at, _until(world, a), since) for a in view.state.attempts
    )


def reserve_usd(world: World, view: RunView) -> float:
    """Return the cost of the run's machines while they save and stop.

    A waiting run reserves it for its next machine: one that had to stop right after its start would be a waste.
    """
    live = [a for a in view.state.attempts if not a.released]
    rates = [a.price_usd_per_hour * len(owned(view.state, a)) for a in live]
    if not live and view.state.alive:
        offers = view.spot_offers or view.on_demand_offers
        rates = [view.spec.machine.nodes * min((offer.price_usd_per_hour for offer in offers), default=0.0)]
    cloud = view.spec.machine.cloud
    return sum(rates) * (grace_s(cloud) + report_s(cloud)) / 3600.0


def _until(world: World, attempt: Attempt) -> float:
    return (attempt.placed_at + attempt.seconds) if attempt.released else world.now


def tallies(world: World) -> tuple[Tally, ...]:
    """Return the use of each budget by closed pages, live runs and machines that no run owns."""
    return tuple(_tally(world, budget) for budget in world.budgets)


def _tally(world: World, budget: Budget) -> Tally:
    who, since = budget.limits.who, budget.since
    views = [view for view in world.runs if not who or view.state.who == who]
    attempts = [(view.state, attempt) for view in views for attempt in view.state.attempts]
    others = [machine for machine in world.machines.values() if _counts_for(world, machine, who)]
    used_usd = budget.closed_usd + sum(spent_usd(world, view, since) for view in views)
    used_usd += sum(m.cost_usd * part_in(m.created_at, m.seen_at, since) for m in others)
    used_s = budget.closed_s + sum(
        ran_s(world, s, a) * part_in(a.placed_at, _until(world, a), since) for s, a in attempts
    )
    used_s += sum(m.ran_s * part_in(m.created_at, m.seen_at, since) for m in others)
    return Tally(
        budget=budget,
        used_usd=used_usd,
        used_s=used_s,
        reserve_usd=sum(reserve_usd(world, view) for view in views if view.state.attempts and not view.state.closed),
        # A machine with a notice does not count: its successor may start.
        machines=sum(a.nodes for _, a in attempts if a.phase in ("placed", "started"))
        + sum(m.status != "stopped" for m in others),
    )


def _counts_for(world: World, machine: Machine, who: str) -> bool:
    """Return whether a machine belongs to this user (empty: any) and to no run."""
    if LABEL_MACHINE not in machine.labels:
        return False
    machine_record = world.machine_records.get(machine.name)
    return not who or (machine_record is not None and machine_record.who == who)


def limit_uses(world: World, view: RunView, shared: tuple[Tally, ...]) -> Iterator[LimitUse]:
    """Yield the use of every limit of a run, its own first."""
    yield from _run_limit_uses(world, view)
    for tally in shared:
        if tally.covers(view):
            yield from _budget_uses(tally)


def _run_limit_uses(world: World, view: RunView) -> Iterator[LimitUse]:
    limits, state = view.spec.limits, view.state
    kept = "its checkpoints are kept; submit it again with "
    due = due_at(view.spec, state)
    if due:
        age_s, given_s = world.now - state.submitted_at, max(1.0, due - state.submitted_at)
        length = describe_s(given_s)
        yield LimitUse(
            limit="deadline",
            used=age_s / given_s,
            reached=world.now > due,
            near=f"{describe_s(age_s)} of the deadline of {length} have passed",
            why=f"the deadline of {length} has passed",
            hint=kept + "a later `[limits] deadline`",
        )
    if limits.max_s:
        did_s = sum((a.over_at or world.now) - a.started_at for a in state.attempts if a.started_at)
        ran, hours = describe_s(did_s), f"{limits.max_s / 3600:g}"
        yield LimitUse(
            limit="max_hours",
            used=did_s / limits.max_s,
            reached=did_s > limits.max_s,
            near=f"it has run for {ran}, and `max_hours` is {hours}",
            why=f"it has run for {ran}, and `max_hours` is {hours}",
            hint=kept + "more",
        )
    if limits.cost_usd:
        spent = spent_usd(world, view)
        yield LimitUse(
            limit="cost_usd",
            used=spent / limits.cost_usd,
            reached=spent + reserve_usd(world, view) >= limits.cost_usd,
            near=f"${spent:.4g} of the budget of ${limits.cost_usd:g} is spent",
            why=f"the budget of ${limits.cost_usd:g} is spent",
            hint=kept + "a larger `[limits] cost_usd`",
        )


def _budget_uses(tally: Tally) -> Iterator[LimitUse]:
    limits = tally.budget.limits
    hint = "its checkpoints are kept; see `outlast limits` and `outlast cost`, and submit it again with more"
    span = {"day": " a day", "month": " a month", "total": ""}[limits.per]
    if limits.cost_usd:
        budget = f"the budget of {limits.whose} of ${limits.cost_usd:g}{span}"
        yield LimitUse(
            limit=f"{limits.scope} cost_usd",
            used=tally.used_usd / limits.cost_usd,
            reached=tally.used_usd + tally.reserve_usd >= limits.cost_usd,
            near=f"${tally.used_usd:.4g} of {budget} is spent",
            why=f"{budget} is spent",
            hint=hint,
        )
    if limits.max_hours:
        hours = f"the {limits.max_hours:g} machine hours{span} of {limits.whose}"
        yield LimitUse(
            limit=f"{limits.scope} max_hours",
            used=tally.used_s / 3600.0 / limits.max_hours,
            reached=tally.used_s >= limits.max_hours * 3600.0,
            near=f"{tally.used_s / 3600:.4g} of {hours} are used",
            why=f"{hours} are used",
            hint=hint,
        )


def limit_step(world: World, view: RunView, shared: tuple[Tally, ...]) -> StopAtLimit | Warn | None:
    """Return the step that a limit requires now: stop, or a warning that was not written yet."""
    found = list(limit_uses(world, view, shared))
    for use in found:
        if use.reached:
            grace = grace_s(view.spec.machine.cloud)
            return StopAtLimit(run=view.run, limit=use.limit, why=use.why, hint=use.hint, grace_s=grace)
    for use in found:
        if use.used >= NEAR and use.limit not in view.state.near:
            return Warn(run=view.run, limit=use.limit, why=use.near)
    return None


def machine_limit(view: RunView, shared: tuple[Tally, ...]) -> Wait | None:
    """Return why no machine may be added for this run now: the number of machines is limited."""
    nodes = view.spec.machine.nodes
    for tally in shared:
        limits = tally.budget.limits
        if limits.max_machines and tally.covers(view) and tally.machines + nodes > limits.max_machines:
            count = "1 machine" if limits.max_machines == 1 else f"{limits.max_machines} machines"
            return Wait(run=view.run, why=f"{limits.whose} may have {count} at a time, see `outlast limits`")
    return None


def add_machine(view: RunView, shared: tuple[Tally, ...]) -> tuple[Tally, ...]:
    return tuple(
        msgspec.structs.replace(tally, machines=tally.machines + view.spec.machine.nodes)
        if tally.covers(view)
        else tally
        for tally in shared
    )


def failure(world: World, view: RunView) -> Fail | None:
    """Return the end of a run that crashed too often, or made no progress in too many attempts."""
    state, limits = view.state, view.spec.limits
    last = state.last
    lost = list(peer_losses(world, view))
    crashes = state.crashes - sum(
        a.outcome in ("crashed", "killed") and (a.exit_code in limits.retry_on_exit or follows(a, lost))
        for a in state.attempts
    )
    if last is not None and crashes >= limits.crashes and not last.preempted:
        times = "once" if crashes == 1 else f"{crashes} times"
        return Fail(
            run=view.run,
            why=f"it crashed {times}; the last time: {last.why or last.outcome}",
            hint=f"see `outlast logs {view.run}`",
            exit_code=last.exit_code,
        )
    # A run that serves others and has no checkpoints makes its progress in those.
    serves = view.spec.member is not None and view.spec.member.until and not view.spec.checkpoint.path
    count = state.attempts_without_progress
    if count >= limits.no_progress and not serves:
        if last is not None and not any(a.started_at for a in state.attempts):
            return Fail(
                run=view.run,
                why=f"its command was never started in {count} attempts; the last time: {last.why}",
                hint=f"check image, network and disk of the machines; see `outlast show {view.run}`",
            )
        return Fail(
            run=view.run,
            why=f"no new checkpoint in {count} attempts",
            hint="save more often than machines live: set `[checkpoint] path`, or run it with `spot = false`",
        )
    return None
