"""Runs as a listing: what runs, where, since when, for how much, and what it waits for. Does without click."""

from __future__ import annotations

import sys
import time

from outlast.cli.terminal import dim, find_workspace, money, note, table
from outlast.errors import WorkspaceError
from outlast.spec.quantity import describe_s
from outlast.workspace.hand import Hands, supervisor_name
from outlast.workspace.lease import Lease
from outlast.workspace.state import RunState
from outlast.workspace.transfer import transfer_usd
from outlast.workspace.workspace import Pulse, Workspace


def list_runs(*, everything: bool, as_json: bool) -> int:
    """`outlast ps` without a parser: for the plain words that it is nearly always called with."""
    sys.stdout.write(page(find_workspace(""), everything=everything, as_json=as_json))
    return 0


def page(workspace: Workspace, *, everything: bool, as_json: bool, who: str = "") -> str:
    runs = list(workspace.runs()) if everything else sorted({*workspace.pulses(), *workspace.bells()})
    rows = [row for run in runs if (row := _row(workspace, run)) is not None and who in ("", row.get("user"))]
    if as_json:
        import json

        return json.dumps(rows, indent=2) + "\n"
    if not rows:
        return ("" if everything and runs else _nothing(everything)) + _who_supervises(workspace, rows)
    header = ["RUN", "STATE", "ATTEMPT", "WHERE", "STEP", "AGE", "COST", ""]
    cells = [_cells(row) for row in rows]
    if len({row.get("user") for row in rows}) > 1:
        header.insert(1, "USER")
        for row, line in zip(rows, cells, strict=True):
            line.insert(1, str(row.get("user") or "?"))
    page = table(cells, header=header) + "\n" + _limits(workspace)
    return page + _who_supervises(workspace, rows)


def _limits(workspace: Workspace) -> str:
    """What may be spent, if that was said; how much of it is used takes longer, and is in `outlast limits`."""
    if not workspace.bucket.children("limits/"):
        return ""
    from outlast.workspace.limits import read_limits

    try:
        found = read_limits(workspace.bucket)
    except WorkspaceError as problem:
        return dim(f"limits: {problem.message}") + "\n"
    return "".join(dim(f"limit of {limits.whose}: {limits.told}") + "\n" for limits in found)


def _nothing(everything: bool) -> str:
    note("there is no run yet; start one with `outlast run`" if everything else "nothing runs; `--all` shows the rest")
    return ""


def _who_supervises(workspace: Workspace, rows: list[dict[str, object]]) -> str:
    """One that is there though nothing runs is told of as well, if it is a machine that costs."""
    try:
        hand = Hands(workspace).find(supervisor_name(workspace)) if "://" in workspace.url else None
        if hand is None and all(row["ending"] for row in rows):
            return ""
        holder = Lease(workspace.bucket, "supervisor", who="", ttl_s=6.0).holder()
    except WorkspaceError:
        return ""  # the age of a lease is asked by writing, and who may only read may list runs all the same
    if holder is not None:
        who = holder.who
    elif hand is not None:
        who = f"{hand.name} on {hand.cloud} is there and does not supervise (yet)"
    else:
        who = "nobody supervises: start `outlast supervise`"
    return dim(f"supervisor: {who}") + "\n"


def _row(workspace: Workspace, run: str) -> dict[str, object] | None:
    """One run as data; the same for people and for `--json`."""
    try:
        state = workspace.story(run).refresh()
    except WorkspaceError as problem:
        return {"run": run, "state": "damaged", "why": problem.message, "ending": "damaged"}
    if not state.exists:
        return None
    pulse = workspace.pulse(run) if state.alive else None
    last = state.last
    now = time.time()
    spent = state.cost_usd + sum(
        max(0.0, now - a.placed_at) * a.price_usd_per_hour / 3600 for a in state.attempts if not a.released
    )
    step = _newest_step(state, pulse)
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
        "cost_usd": spent,
        "transfer_usd": transfer_usd(state, workspace.url),
        "exit_code": state.exit_code,
        "why": _why(state),
        "warnings": list(state.near.values()),
        "limit": state.limit.name if state.limit else "",
        "note": pulse.note if pulse and pulse.phase in ("fetching", "waiting") else "",
        "holds": pulse.holds if pulse else "",
    }


def _why(state: RunState) -> str:
    """Why it ended, stops or waits; else which limits are near."""
    if state.ending:
        return state.why
    if state.limit is not None:
        return state.limit.why
    return state.held or "; ".join(state.near.values())


def _newest_step(state: RunState, pulse: Pulse | None) -> int | None:
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


def _cells(row: dict[str, object]) -> list[str]:
    if row["state"] == "damaged":
        return [str(row["run"]), "damaged", "", "", "", "", "", str(row["why"])]
    cost, age = row["cost_usd"], row["age_s"]
    assert isinstance(cost, float)
    assert isinstance(age, float)
    kind = "" if row["spot"] in (None, True) else " on demand"
    return [
        str(row["run"]),
        str(row["state"]),
        str(row["attempt"] or ""),
        f"{row['type']} {row['zone']}{kind}".strip(),
        "" if row["step"] is None else str(row["step"]),
        describe_s(age),
        money(cost),
        str(row["why"] or row["note"] or (f"has {row['holds']}" if row["holds"] else "")),
    ]
