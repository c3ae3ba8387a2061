"""Runs as a listing: what runs, where, since when, for how much, and what it waits for. Does without click."""

from __future__ import annotations

import sys
import time

from outlast.cli.terminal import dim, find_workspace, money, note, table, tell_damaged
from outlast.errors import WorkspaceError
from outlast.front.rows import row
from outlast.spec.quantity import describe_s
from outlast.workspace.hand import Hands, supervisor_name
from outlast.workspace.lease import supervisors
from outlast.workspace.workspace import Workspace


def list_runs(*, everything: bool, as_json: bool) -> int:
    """`outlast ps` without a parser: for the plain words that it is nearly always called with."""
    damaged: dict[str, str] = {}
    sys.stdout.write(page(find_workspace(""), damaged, everything=everything, as_json=as_json))
    return tell_damaged(damaged)


def page(workspace: Workspace, damaged: dict[str, str], *, everything: bool, as_json: bool, who: str = "") -> str:
    """The listing; runs whose story cannot be read are in it, and noted in `damaged`."""
    runs = list(workspace.runs()) if everything else sorted({*workspace.pulses(), *workspace.bells()})
    rows = [one for run in runs if (one := _row(workspace, run)) is not None and who in ("", one.get("user"))]
    damaged.update({str(one["run"]): str(one["why"]) for one in rows if one["state"] == "damaged"})
    if as_json:
        import json

        return json.dumps(rows, indent=2) + "\n"
    if not rows:
        return ("" if everything and runs else _nothing(everything)) + _who_supervises(workspace, rows)
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
        if hand is None and all(one["ending"] for one in rows):
            return ""
        holder = supervisors(workspace.bucket, workspace.url).holder()
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
    try:
        state = workspace.story(run).refresh()
    except WorkspaceError as problem:
        return {"run": run, "state": "damaged", "why": problem.message, "ending": "damaged"}
    if not state.exists:
        return None
    pulse = workspace.pulse(run) if state.alive else None
    return row(run, state, pulse, url=workspace.url, now=time.time())


def _cells(told: dict[str, object]) -> list[str]:
    if told["state"] == "damaged":
        return [str(told["run"]), "damaged", "", "", "", "", "", str(told["why"])]
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
        str(told["why"] or told["note"] or (f"has {told['holds']}" if told["holds"] else "")),
    ]
