"""Totals of a run: work, lost work, recovery times, cost. Pure."""

from __future__ import annotations

import itertools

import msgspec

from outlast.billing.ledger import end_of as end_of
from outlast.billing.ledger import kept_until as kept_until
from outlast.billing.ledger import lines_of
from outlast.runs.state import RunState


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of a run."""

    wall_s: float
    machine_s: float
    work_s: float
    lost_s: float
    recoveries_s: tuple[float, ...]
    cost_usd: float
    on_demand_usd: float
    preemptions: int
    crashes: int
    # A machine is not deleted yet: its part of time and cost is computed from its price.
    estimated: bool = False

    @property
    def goodput(self) -> float:
        """The share of the paid time that became progress."""
        return self.work_s / self.machine_s if self.machine_s else 0.0


def summarize(state: RunState, now: float) -> RunSummary:
    started = [a for a in state.attempts if a.started_at]
    lost = sum(end_of(a, state, now) - kept_until(a, state, now) for a in started)
    work = sum(kept_until(a, state, now) - a.started_at for a in started)
    recoveries = tuple(
        max(0.0, after.started_at - (before.noticed_at or before.over_at))
        for before, after in itertools.pairwise(started)
        if before.over_at or before.noticed_at
    )
    machines = lines_of("", state, now)
    return RunSummary(
        wall_s=(state.ended_at or now) - state.submitted_at,
        machine_s=sum(line.seconds for line in machines),
        work_s=max(0.0, work),
        lost_s=max(0.0, lost),
        recoveries_s=recoveries,
        cost_usd=sum(line.cost_usd for line in machines),
        on_demand_usd=sum(line.on_demand_usd for line in machines),
        preemptions=sum(a.preempted for a in state.attempts),
        crashes=state.crashes,
        estimated=any(line.estimated for line in machines),
    )
