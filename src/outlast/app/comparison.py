"""The comparison of runs: parameters, metrics, cost, code and curves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.code.diff import CodeDiff, code_diff
from outlast.errors import UsageError
from outlast.formatting.code_text import code_text
from outlast.formatting.run_row import status_text
from outlast.formatting.run_summary import summarize
from outlast.runs.metrics import Point, stitched
from outlast.workspace import Workspace


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the comparison."""

    run: str
    state: str
    params: dict[str, Any]
    metrics: dict[str, float]
    code: str
    image: str
    machine: str
    attempts: int
    preemptions: int
    seconds: float
    cost_usd: float
    curves: dict[str, tuple[Point, ...]]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Several runs, and how the code of each differs from that of the first."""

    runs: tuple[Compared, ...]
    code: dict[str, CodeDiff]


def compare_runs(workspace: Workspace, names: Sequence[str]) -> Comparison:
    """Compare runs by their names, prefixes or `last`. Raises NoSuchRun, and UsageError for fewer than two."""
    runs = list(dict.fromkeys(workspace.find(name) for name in names))
    if len(runs) < 2:
        raise UsageError("compare needs at least two runs", hint="`outlast ps --all` lists them")
    found = tuple(_compared(workspace, run) for run in runs)
    first = workspace.request(runs[0]).code
    changes = {run: code_diff(workspace.bucket, first, workspace.request(run).code) for run in runs[1:]}
    return Comparison(runs=found, code=changes)


def _compared(workspace: Workspace, run: str) -> Compared:
    request, state = workspace.request(run), workspace.story(run).refresh()
    curves = stitched(workspace.bucket, run, state).series
    total = summarize(state, time.time())
    last = state.last
    return Compared(
        run=run,
        state=status_text(state),
        params=dict(request.spec.params),
        metrics={name: points[-1].value for name, points in curves.items()},
        code=code_text(request.code),
        image=request.spec.machine.image,
        machine=f"{last.type} {last.zone}" if last else "",
        attempts=len(state.attempts),
        preemptions=total.preemptions,
        seconds=total.wall_s,
        cost_usd=total.cost_usd,
        curves=curves,
    )
