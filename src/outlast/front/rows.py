"""A run in a row: what it does, where, since when, for how much, and what it waits for. From what was read; reads
nothing itself."""

from __future__ import annotations

from outlast.workspace.state import RunState
from outlast.workspace.transfer import transfer_usd
from outlast.workspace.workspace import Pulse


def row(run: str, state: RunState, pulse: Pulse | None, *, url: str, now: float) -> dict[str, object]:
    """One run as data; the same for people, for `--json` and for the page."""
    last = state.last
    step = newest_step(state, pulse)
    return {
        "run": run,
        "user": state.who,
        "state": word(state),
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
        "transfer_usd": transfer_usd(state, url),
        "exit_code": state.exit_code,
        "why": why(state),
        "warnings": list(state.near.values()),
        "limit": state.limit.name if state.limit else "",
        "note": pulse.note if pulse and pulse.phase in ("fetching", "waiting") else "",
        "holds": pulse.holds if pulse else "",
    }


def spent_usd(state: RunState, now: float) -> float:
    """What a run has cost until now; of what still bills by its price."""
    open_usd = (max(0.0, now - a.placed_at) * a.price_usd_per_hour / 3600 for a in state.attempts if not a.released)
    return state.cost_usd + sum(open_usd)


def why(state: RunState) -> str:
    """Why it ended, stops or waits; else which limits are near."""
    if state.ending:
        return state.why
    if state.limit is not None:
        return state.limit.why
    return state.held or "; ".join(state.near.values())


def newest_step(state: RunState, pulse: Pulse | None) -> int | None:
    if pulse is not None and pulse.step is not None:
        return pulse.step
    return state.checkpoints[-1].step if state.checkpoints else None


def word(state: RunState) -> str:
    """The state of a run in a word."""
    if state.ending:
        return "stopped" if state.ending == "failed" and state.limit else state.ending
    if state.limit is not None:
        return "stopping"
    last = state.last
    if state.held or last is None or last.phase == "over":
        return "waiting"
    if last.phase == "noticed":
        return "leaving"
    if last.phase == "placed":
        return "handing over" if any(a.phase == "noticed" for a in state.attempts) else "booting"
    return "running"
