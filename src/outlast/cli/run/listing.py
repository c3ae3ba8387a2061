"""The listing of runs: machine, age, cost, and the reason for waiting. Does not import click."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from outlast.app.limits import limits_set
from outlast.app.listing import ENDED_SHOWN, list_rows
from outlast.app.supervision import supervisor_text
from outlast.cli.shared.terminal import dim, find_workspace, money, note, report_damaged, table
from outlast.errors import WorkspaceError
from outlast.formatting.quantities import size
from outlast.formatting.run_row import DAMAGED, UNREADABLE
from outlast.formatting.utilisation import percent
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Workspace

_UNREAD = (DAMAGED, UNREADABLE)
# With `--wide`: the number of metrics.
_METRICS_SHOWN = 3


def list_runs(*, everything: bool, as_json: bool) -> int:
    """Run `outlast ps` with the options that need no parser."""
    damaged: dict[str, str] = {}
    sys.stdout.write(listing_text(find_workspace(""), damaged, everything=everything, as_json=as_json))
    return report_damaged(damaged)


def listing_text(
    workspace: Workspace,
    damaged: dict[str, str],
    *,
    everything: bool,
    as_json: bool,
    who: str = "",
    limit: int = ENDED_SHOWN,
    wide: bool = False,
) -> str:
    """Return the listing. `everything` adds the last `limit` ended runs (0: all).

    Runs whose story cannot be read are listed too, and added to `damaged`.
    """
    found = list_rows(workspace, everything=everything, who=who, limit=limit)
    rows = found.rows
    damaged.update(found.damaged)
    if found.cut:
        note(f"ended runs are limited to the newest {limit}: `--limit N` lists more, `--limit 0` all")
    if as_json:
        import json

        return json.dumps(rows, indent=2) + "\n"
    if not rows:
        return _nothing(everything, who) + _supervisor_line(workspace, rows)
    header = ["RUN", "STATE", "ATTEMPT", "WHERE", "STEP", "AGE", "COST", ""]
    cells = [_cells(one) for one in rows]
    if wide:
        header[5:5] = ["CPU", "MEMORY", "GPU", "METRICS"]
        for one, line in zip(rows, cells, strict=True):
            line[5:5] = _wide_cells(one)
    if len({one.get("user") for one in rows}) > 1:
        header.insert(1, "USER")
        for one, line in zip(rows, cells, strict=True):
            line.insert(1, str(one.get("user") or "?"))
    return table(cells, header=header) + "\n" + _limits(workspace) + _supervisor_line(workspace, rows)


def _limits(workspace: Workspace) -> str:
    """Return the limits that are set. Their usage takes longer to read: see `outlast limits`."""
    try:
        found = limits_set(workspace)
    except WorkspaceError as problem:
        return dim(f"limits: {problem.message}") + "\n"
    return "".join(dim(f"limit of {limits.whose}: {limits.text}") + "\n" for limits in found)


def _nothing(everything: bool, who: str) -> str:
    if not (everything and who):
        none = "no runs yet; start one with `outlast run`"
        note(none if everything else "no live runs; `--all` includes ended ones")
    return ""


def _supervisor_line(workspace: Workspace, rows: list[dict[str, object]]) -> str:
    try:
        who = supervisor_text(workspace, has_live_runs=any(not one["ending"] for one in rows))
    except WorkspaceError:
        return ""  # reading the age of a lease needs write access; listing runs does not
    return dim(f"supervisor: {who}") + "\n" if who else ""


def _cells(row: dict[str, object]) -> list[str]:
    if row["state"] in _UNREAD:
        return [str(row["run"]), str(row["state"]), "", "", "", "", "", str(row["why"])]
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
        str(row["why"] or "; ".join(filter(None, (_nodes(row), str(row["note"]) or _agent_note(row))))),
    ]


def _wide_cells(row: dict[str, object]) -> list[str]:
    """Return utilisation and the last values of the first metrics."""
    if row["state"] in _UNREAD:
        return ["", "", "", ""]
    cpu, memory, gpu, metrics = (row[name] for name in ("cpu", "memory_bytes", "gpu", "metrics"))
    assert isinstance(metrics, dict)
    values = [f"{name} {value:.4g}" for name, value in list(metrics.items())[:_METRICS_SHOWN]]
    return [
        percent(cpu) if isinstance(cpu, float) else "",
        size(memory) if isinstance(memory, int) else "",
        percent(gpu) if isinstance(gpu, float) else "",
        ", ".join(values),
    ]


def _nodes(row: dict[str, object]) -> str:
    """Return how many machines of a distributed run are alive."""
    nodes = row["nodes"]
    if row["ending"] or not isinstance(nodes, int) or nodes < 2:
        return ""
    return f"{row['nodes_alive']}/{nodes} nodes"


def _agent_note(row: dict[str, object]) -> str:
    """Return the note that the agent reports."""
    if row["unsaved"]:
        return f"no checkpoint: {row['unsaved']}"
    return f"holds {row['holds']}" if row["holds"] else ""
