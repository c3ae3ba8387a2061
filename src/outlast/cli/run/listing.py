"""Runs as a listing: what runs, where, since when, for how much, and what it waits for. Does without click."""

from __future__ import annotations

import sys
import time

from outlast.cli.shared.terminal import dim, find_workspace, money, note, table, tell_damaged
from outlast.errors import WorkspaceError
from outlast.formatting.run_row import DAMAGED, UNREADABLE, ended_row, run_row, unread
from outlast.records.machines import MachineRecords, supervisor_name
from outlast.spec.quantity import describe_s
from outlast.store.lease import supervisors
from outlast.workspace import Workspace, natural

# How many ended runs `--all` lists, if `--limit` does not say.
ENDED_SHOWN = 100

_UNREAD = (DAMAGED, UNREADABLE)


def list_runs(*, everything: bool, as_json: bool) -> int:
    """`outlast ps` without a parser: for the plain words that it is nearly always called with."""
    damaged: dict[str, str] = {}
    sys.stdout.write(page(find_workspace(""), damaged, everything=everything, as_json=as_json))
    return tell_damaged(damaged)


def page(
    workspace: Workspace,
    damaged: dict[str, str],
    *,
    everything: bool,
    as_json: bool,
    who: str = "",
    limit: int = ENDED_SHOWN,
) -> str:
    """The listing; runs whose story is damaged or cannot be read now are in it, and noted in `damaged`. With
    `everything` also the last `limit` runs that ended (0: all)."""
    runs = sorted({*workspace.heartbeats(), *workspace.wakeups()})
    found = workspace.each(lambda run: _row(workspace, run), runs)
    rows = [one for one in found if one is not None and who in ("", one.get("user"))]
    if everything:
        rows = _sorted([*rows, *_ended(workspace, runs, who=who, limit=limit)])
    damaged.update({str(one["run"]): str(one["why"]) for one in rows if one["state"] in _UNREAD})
    if as_json:
        import json

        return json.dumps(rows, indent=2) + "\n"
    if not rows:
        return _nothing(everything, who) + _who_supervises(workspace, rows)
    header = ["RUN", "STATE", "ATTEMPT", "WHERE", "STEP", "AGE", "COST", ""]
    cells = [_cells(one) for one in rows]
    if len({one.get("user") for one in rows}) > 1:
        header.insert(1, "USER")
        for one, line in zip(rows, cells, strict=True):
            line.insert(1, str(one.get("user") or "?"))
    page = table(cells, header=header) + "\n" + _limits(workspace)
    return page + _who_supervises(workspace, rows)


def _limits(workspace: Workspace) -> str:
    """What may be spent, if that was said; how much of it is used takes longer, and is in `outlast limits`."""
    if not workspace.bucket.children("limits/"):
        return ""
    from outlast.billing.limits import read_limits

    try:
        found = read_limits(workspace.bucket)
    except WorkspaceError as problem:
        return dim(f"limits: {problem.message}") + "\n"
    return "".join(dim(f"limit of {limits.whose}: {limits.told}") + "\n" for limits in found)


def _nothing(everything: bool, who: str) -> str:
    if not (everything and who):
        none = "there is no run yet; start one with `outlast run`"
        note(none if everything else "nothing runs; `--all` shows the rest")
    return ""


def _ended(workspace: Workspace, live: list[str], *, who: str, limit: int) -> list[dict[str, object]]:
    """The runs that ended last, from the index. `live` was listed before it is read: a run that ends meanwhile is in
    one of the two."""
    from outlast.runs.ended import EndedRuns

    index = EndedRuns(workspace, each=workspace.each)
    # A user's runs may be anywhere among the others.
    found, more = index.newest(0 if who else limit, but=live)
    found = [one for one in found if who in ("", one.state.who)]
    more = more or 0 < limit < len(found)
    if more:
        note(f"ended runs are limited to the newest {limit}: `--limit N` lists more, `--limit 0` all")
    now = time.time()
    rows = [ended_row(one, url=workspace.url, now=now) for one in found[: limit or None]]
    return rows + [_unread(run, problem) for run, problem in index.unread.items()]


def _sorted(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda one: natural(str(one["run"])))


def _unread(run: str, problem: WorkspaceError) -> dict[str, object]:
    found = unread(problem)
    # Whether a run that cannot be read now has ended is not known.
    return {"run": run, "state": found, "why": problem.message, "ending": DAMAGED if found == DAMAGED else ""}


def _who_supervises(workspace: Workspace, rows: list[dict[str, object]]) -> str:
    """One that is there though nothing runs is told of as well, if it is a machine that costs."""
    try:
        machine_record = MachineRecords(workspace).find(supervisor_name(workspace)) if "://" in workspace.url else None
        if machine_record is None and all(one["ending"] for one in rows):
            return ""
        holder = supervisors(workspace.bucket, workspace.url).holder()
    except WorkspaceError:
        return ""  # the age of a lease is asked by writing, and who may only read may list runs all the same
    if holder is not None:
        who = holder.who
    elif machine_record is not None:
        who = f"{machine_record.name} on {machine_record.cloud} is there and does not supervise (yet)"
    else:
        who = "nobody supervises: start `outlast supervise`"
    return dim(f"supervisor: {who}") + "\n"


def _row(workspace: Workspace, run: str) -> dict[str, object] | None:
    try:
        state = workspace.story(run).refresh()
        if not state.exists:
            return None
        heartbeat = workspace.heartbeat(run) if state.alive else None
    except WorkspaceError as problem:
        return _unread(run, problem)
    return run_row(run, state, heartbeat, url=workspace.url, now=time.time())


def _cells(told: dict[str, object]) -> list[str]:
    if told["state"] in _UNREAD:
        return [str(told["run"]), str(told["state"]), "", "", "", "", "", str(told["why"])]
    cost, age = told["cost_usd"], told["age_s"]
    assert isinstance(cost, float)
    assert isinstance(age, float)
    kind = "" if told["spot"] in (None, True) else " on demand"
    return [
        str(told["run"]),
        str(told["state"]),
        str(told["attempt"] or ""),
        f"{told['type']} {told['zone']}{kind}".strip(),
        "" if told["step"] is None else str(told["step"]),
        describe_s(age),
        money(cost),
        str(told["why"] or told["note"] or _from_the_machine(told)),
    ]


def _from_the_machine(told: dict[str, object]) -> str:
    """What the agent reports of itself."""
    if told["unsaved"]:
        return f"no checkpoint: {told['unsaved']}"
    return f"has {told['holds']}" if told["holds"] else ""
