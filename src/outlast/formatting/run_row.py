"""A run as one row: state, machine, age, cost, and the reason for waiting. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outlast.billing.egress import attempt_egress_usd, egress_usd
from outlast.errors import Damaged, NoSuchRun, OutlastError
from outlast.runs.events import MetricRange
from outlast.runs.members import owned
from outlast.runs.state import RunState, merged
from outlast.workspace import Heartbeat

if TYPE_CHECKING:
    from outlast.runs.ended import EndedRun

DAMAGED, UNREADABLE = "damaged", "unreadable"


def unread(problem: OutlastError) -> str:
    """The state of a record that raised this error: damaged for good, or unreadable until the store answers again."""
    return DAMAGED if isinstance(problem, Damaged | NoSuchRun) else UNREADABLE


def run_row(run: str, state: RunState, heartbeat: Heartbeat | None, *, now: float) -> dict[str, object]:
    """Return a run as data, for the table, `--json` and the dashboard."""
    last = state.last
    step = newest_step(state, heartbeat)
    sample = heartbeat.usage if heartbeat and state.alive else None
    return {
        "run": run,
        "user": state.who,
        "state": status_text(state),
        "ending": state.ending,
        "attempt": last.number if last else 0,
        "cloud": last.cloud if last else "",
        "zone": last.zone if last else "",
        "type": last.type if last else "",
        "spot": last.spot if last else None,
        "step": step,
        "checkpoints": len(state.checkpoints),
        "submitted_at": state.submitted_at,
        "age_s": (state.ended_at or now) - state.submitted_at,
        "cost_usd": spent_usd(state, now),
        "egress_usd": egress_usd(state),
        "exit_code": state.exit_code,
        "why": why(state),
        "warnings": list(state.near.values()),
        "limit": state.limit.name if state.limit else "",
        "nodes": last.nodes if last else 0,
        "nodes_alive": heartbeat.nodes if heartbeat and state.alive else 0,
        "note": heartbeat.note if heartbeat and heartbeat.phase in ("fetching", "waiting") else "",
        "holds": heartbeat.holds if heartbeat else "",
        "unsaved": heartbeat.unsaved if heartbeat else "",
        "metrics": {name: one.last for name, one in metrics_of(state, heartbeat).items()},
        "cpu": sample.cpu if sample else None,
        "memory_bytes": sample.memory_bytes if sample else None,
        "gpu": sum(sample.gpu) / len(sample.gpu) if sample and sample.gpu else None,
    }


def ended_row(record: EndedRun, *, now: float) -> dict[str, object]:
    """Return an ended run as data. Its record has the number of checkpoints instead of the list."""
    shown = run_row(record.run, record.state, None, now=now)
    return {**shown, "checkpoints": record.checkpoints, "egress_usd": record.egress_usd}


def spent_usd(state: RunState, now: float) -> float:
    """Return the cost so far; running machines are estimated from their price."""
    open_usd = (
        attempt_egress_usd(state, a)
        + max(0.0, now - a.placed_at) * (a.price_usd_per_hour + a.address_usd_per_hour) * len(owned(state, a)) / 3600
        for a in state.attempts
        if not a.released
    )
    return state.cost_usd + sum(open_usd)


def why(state: RunState) -> str:
    """Return why the run ended, stops or waits; else the limits that are near."""
    if state.ending:
        return state.why
    if state.limit is not None:
        return state.limit.why
    return state.waiting or "; ".join(state.near.values())


def newest_step(state: RunState, heartbeat: Heartbeat | None) -> int | None:
    if heartbeat is not None and heartbeat.step is not None:
        return heartbeat.step
    if state.step is not None:
        return state.step
    return state.checkpoints[-1].step if state.checkpoints else None


def metrics_of(state: RunState, heartbeat: Heartbeat | None) -> dict[str, MetricRange]:
    """Return the last, lowest and highest value of each metric, those of the live attempt included."""
    return merged(state.metrics, heartbeat.metrics) if heartbeat is not None else state.metrics


def status_text(state: RunState) -> str:
    """Return the state of a run as shown to users."""
    if state.ending:
        if state.released:
            return "released"
        return "stopped" if state.ending == "failed" and state.limit else state.ending
    if state.limit is not None:
        return "stopping"
    last = state.last
    if state.waiting or last is None or last.phase == "over":
        return "waiting"
    if last.phase == "noticed":
        return "leaving"
    if last.phase == "placed":
        return "handing over" if any(a.phase == "noticed" for a in state.attempts) else "booting"
    return "running"
