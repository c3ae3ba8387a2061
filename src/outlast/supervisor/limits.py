"""When a run must end without success: budgets, limits and the brake. Pure."""

from __future__ import annotations

from outlast.spec.quantity import describe_s
from outlast.supervisor.world import Fail, RunView, World


def spent_usd(view: RunView, now: float) -> float:
    """What a run has cost until now: the released attempts, and an estimate for those that still run."""
    running = sum(
        max(0.0, now - a.placed_at) * a.price_usd_per_hour / 3600.0 for a in view.state.attempts if not a.released
    )
    return view.state.cost_usd + running


def over_limit(world: World, view: RunView) -> Fail | None:
    """A limit that the run was given and has reached."""
    limits, state = view.spec.limits, view.state
    age_s = world.now - state.submitted_at
    if limits.deadline_s and age_s > limits.deadline_s:
        return Fail(
            run=view.run,
            why=f"the deadline of {describe_s(limits.deadline_s)} has passed",
            hint="its checkpoints are kept; submit it again with a later `[limits] deadline`",
        )
    ran_s = sum((a.over_at or world.now) - a.started_at for a in state.attempts if a.started_at)
    if limits.max_s and ran_s > limits.max_s:
        return Fail(
            run=view.run,
            why=f"it has run for {describe_s(ran_s)}, and `max_hours` is {limits.max_s / 3600:g}",
            hint="its checkpoints are kept; submit it again with more",
        )
    if limits.cost_usd and spent_usd(view, world.now) >= limits.cost_usd:
        return Fail(
            run=view.run,
            why=f"the budget of ${limits.cost_usd:g} is spent",
            hint="its checkpoints are kept; submit it again with a larger `[limits] cost_usd`",
        )
    return None


def failure(view: RunView) -> Fail | None:
    """Crashes have a small budget; preemptions have none, but for the brake on attempts that get nowhere."""
    state, limits = view.state, view.spec.limits
    last = state.last
    if last is not None and state.crashes >= limits.crashes and not last.preempted:
        times = "once" if state.crashes == 1 else f"{state.crashes} times"
        return Fail(
            run=view.run,
            why=f"it crashed {times}; the last time: {last.why or last.outcome}",
            hint=f"see `outlast logs {view.run}`",
            exit_code=last.exit_code,
        )
    if state.fruitless >= limits.no_progress:
        return Fail(
            run=view.run,
            why=f"no new checkpoint in {state.fruitless} attempts",
            hint="save more often than machines live: set `[checkpoint] path`, or run it with `spot = false`",
        )
    return None
