"""Text of a sweep: its progress as lines, its trials as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from outlast.app.sweeps import best, sweeps
from outlast.cli.shared.terminal import find_workspace, money, note, table
from outlast.errors import OutlastError, WorkspaceError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import RunState, Sweep, SweepState, Trial, Workspace

F = TypeVar("F", bound=Callable[..., Any])


def _complete(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        names = sweeps(find_workspace(ctx.params.get("workspace_url", "")))
    except OutlastError:
        return []
    return [name for name in [*names, "last"] if name.startswith(beginning)]


def sweep_argument(command: F) -> F:
    return click.argument("sweep_name", metavar="SWEEP", shell_complete=_complete)(command)


class Narrator:
    """Progress of a sweep on stderr, one line per ended trial."""

    def __init__(self, sweep: Sweep, *, quiet: bool) -> None:
        self.sweep = sweep
        self.quiet = quiet
        self.reported = 0

    def report(self, text: str) -> None:
        if not self.quiet:
            note(f"outlast: {self.sweep.name}: {text}")

    def begin(self, state: SweepState) -> None:
        search = self.sweep.search
        self.reported = len(state.ended)
        self.report(
            f"{state.wanted} trials, {search.parallel} at a time, {search.sampler}, {', '.join(search.goals)}"
            + (f"; {len(state.ended)} have ended" if state.ended else "")
        )

    def report_trials(self, state: SweepState) -> None:
        leaders = {trial.number for trial in best(state, self.sweep.search.goals)}
        for place, number in enumerate(state.ended[self.reported :], self.reported + 1):
            trial = state.trials[number]
            mark = "  the best so far" if number in leaders else ""
            count = f"{place}/{state.wanted}"
            self.report(f"trial {number} ({count}): {outcome(trial, self.sweep)}  {params(trial)}{mark}")
        self.reported = len(state.ended)


def outcome(trial: Trial, sweep: Sweep) -> str:
    if trial.outcome == "complete":
        names = [goal.partition(":")[2] for goal in sweep.search.goals]
        return "  ".join(f"{name} {value:.6g}" for name, value in zip(names, trial.values, strict=True))
    return trial.outcome + (f": {trial.why}" if trial.why else "")


def params(trial: Trial) -> str:
    return " ".join(f"{name}={short(value)}" for name, value in trial.params.items())


def short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _run_state(workspace: Workspace, sweep: Sweep, trial: Trial) -> RunState | None:
    if sweep.packed:
        return None
    try:
        return workspace.story(trial.run).refresh()
    except WorkspaceError:
        return None  # the story of the trial is damaged, that of the sweep is not


def rows(workspace: Workspace, sweep: Sweep, state: SweepState) -> list[dict[str, Any]]:
    """Return every trial as a row, for the table and for `--json`."""
    leaders = {trial.number for trial in best(state, sweep.search.goals)}
    found = []
    for trial in state.trials:
        run = _run_state(workspace, sweep, trial)
        row: dict[str, Any] = {
            "trial": trial.number,
            "state": trial.outcome or "running",
            "best": trial.number in leaders,
            "params": trial.params,
            "values": list(trial.values),
            "metrics": trial.metrics,
            "run": trial.run,
            "why": trial.why,
            "seconds": trial.seconds,
        }
        if run is not None:
            row |= {
                "attempts": len(run.attempts),
                "preemptions": sum(attempt.preempted for attempt in run.attempts),
                "cost_usd": run.cost_usd,
            }
        found.append(row)
    return found


def trials_text(workspace: Workspace, sweep: Sweep, state: SweepState, *, as_json: bool, most: int = 0) -> str:
    """Return the trials, the best first; at most `most` if it is given."""
    found = rows(workspace, sweep, state)
    if as_json:
        data = {"sweep": sweep.name, "goals": list(sweep.search.goals), "wanted": state.wanted, "over": state.over}
        data |= {"stopped": state.stopped, "why": state.why, "trials": msgspec.to_builtins(found)}
        return json.dumps(data, indent=2)
    names = list(sweep.search.params)
    goals = [goal.partition(":")[2] for goal in sweep.search.goals]
    sign = -1.0 if sweep.search.goals[0].startswith("max:") else 1.0
    ranked = sorted(found, key=lambda row: (not row["values"], sign * row["values"][0] if row["values"] else 0.0))
    header = ["TRIAL", "STATE", *(goal.upper() for goal in goals), *names, "TIME", "ATTEMPTS", "COST", ""]
    lines = table([_cells(row, goals, names) for row in ranked[: most or len(ranked)]], header=header)
    workers = sum(workspace.story(run).refresh().cost_usd for run in state.workers)
    return f"{lines}\n{summary(sweep, state, found, workers)}"


def _cells(row: dict[str, Any], goals: list[str], names: list[str]) -> list[str]:
    values = [f"{value:.6g}" for value in row["values"]] or [""] * len(goals)
    return [
        str(row["trial"]),
        row["state"] + (" *" if row["best"] else ""),
        *values,
        *(short(row["params"][name]) for name in names),
        describe_s(row["seconds"]) if row["seconds"] else "",
        str(row.get("attempts", "")),
        money(row["cost_usd"]) if "cost_usd" in row else "",
        row["why"],
    ]


def summary(sweep: Sweep, state: SweepState, found: list[dict[str, Any]], workers_usd: float) -> str:
    counts = {word: sum(row["state"] == word for row in found) for word in dict.fromkeys(row["state"] for row in found)}
    states = ", ".join(f"{count} {word}" for word, count in counts.items()) or "none yet"
    cost = workers_usd + sum(row.get("cost_usd", 0.0) for row in found)
    line = f"{sweep.name}: {len(found)} of {state.wanted} trials: {states}" + (f"; {money(cost)}" if cost else "")
    return line + (f"; stopped: {state.why}" if state.stopped else "")
