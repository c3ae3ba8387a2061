"""`outlast sweep list`, `show` and `best`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace, note, report_damaged, table
from outlast.cli.sweep.table import outcome, params, rows, sweep_argument, trials_text
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.formatting.run_row import unread
from outlast.store.lease import Lease
from outlast.sweep.objective import measured
from outlast.sweep.record import SweepStory, find, read, sweeps
from outlast.sweep.state import best as best_of
from outlast.sweep.study import Search
from outlast.sweep.trial import trial_spec

if TYPE_CHECKING:
    from outlast.app.types import Sweep, SweepState, Trial, Workspace


def find_sweep(workspace: Workspace, name: str) -> tuple[Sweep, SweepState]:
    sweep = find(workspace, name)
    return sweep, SweepStory(workspace.bucket, sweep.name).refresh()


@command("list", interrupt=READ_ONLY, json="list[SweepRow]")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List every sweep of the workspace."""
    workspace = find_workspace(workspace_url)
    found: list[dict[str, Any]] = []
    damaged: dict[str, str] = {}
    for name in sweeps(workspace):
        try:
            sweep, state = read(workspace, name), SweepStory(workspace.bucket, name).refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            damaged[name] = problem.message
            found.append({"sweep": name, "state": unread(problem), "trials": 0, "wanted": 0, "goals": [], "best": []})
            continue
        if not state.exists:
            continue
        leaders = best_of(state, sweep.search.goals)
        found.append(
            {
                "sweep": name,
                "state": "stopped" if state.stopped else "over" if state.over else "running",
                "trials": len(state.ended),
                "wanted": state.wanted,
                "goals": list(sweep.search.goals),
                "best": list(leaders[0].values) if leaders else [],
            }
        )
    if as_json:
        click.echo(json.dumps(found, indent=2))
    elif not found:
        note("no sweeps yet; start one with `outlast sweep`")
    else:
        cells = [
            [
                row["sweep"],
                row["state"],
                f"{row['trials']}/{row['wanted']}",
                ", ".join(row["goals"]),
                " ".join(f"{value:.6g}" for value in row["best"]),
            ]
            for row in found
        ]
        click.echo(table(cells, header=["SWEEP", "STATE", "TRIALS", "GOAL", "BEST"]))
    return report_damaged(damaged)


@command(progress="reading trials", interrupt=READ_ONLY, json="SweepShown")
@sweep_argument
@click.option("--importance", "with_importance", is_flag=True, help="Include the importance of each parameter.")
@json_option
@workspace_option
def show(sweep_name: str, with_importance: bool, as_json: bool, workspace_url: str) -> int:
    """Show the trials of a sweep, the best first."""
    workspace = find_workspace(workspace_url)
    sweep, state = find_sweep(workspace, sweep_name)
    click.echo(trials_text(workspace, sweep, state, as_json=as_json))
    if as_json:
        return 0
    if with_importance:
        found = search_of(sweep, state).importance()
        cells = [[name, f"{part:.3f}", "█" * round(30 * part)] for name, part in found.items()]
        click.echo(table(cells, header=["PARAMETER", "IMPORTANCE", ""]) if found else "importance: too few trials yet")
    if not state.over:
        holder = Lease(workspace.bucket, f"sweep-{sweep.name}", who="", ttl_s=10.0).holder()
        who = f"driven by {holder.who}" if holder else f"no process drives it: `outlast sweep resume {sweep.name}`"
        note(who)
    return 0


def search_of(sweep: Sweep, state: SweepState) -> Search:
    study = Search(sweep.name, sweep.search)
    study.follow(state)
    return study


@command(progress="reading trials", interrupt=READ_ONLY, json="list[TrialRow]")
@sweep_argument
@click.option("--rerun", is_flag=True, help="Repeat the best trial, and compare the results.")
@json_option
@workspace_option
def best(sweep_name: str, rerun: bool, as_json: bool, workspace_url: str) -> int:
    """Show the best trial; with several goals, all Pareto-optimal ones."""
    workspace = find_workspace(workspace_url)
    sweep, state = find_sweep(workspace, sweep_name)
    leaders = best_of(state, sweep.search.goals)
    if not leaders:
        raise OutlastError(f"{sweep.name} has no complete trial yet", hint=f"see `outlast sweep show {sweep.name}`")
    if rerun:
        return _rerun(workspace, sweep, leaders[0])
    numbers = {trial.number for trial in leaders}
    found = [row for row in rows(workspace, sweep, state) if row["trial"] in numbers]
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        for trial in leaders:
            click.echo(f"trial {trial.number}: {outcome(trial, sweep)}  {params(trial)}  ({trial.run})")
    return 0


def _rerun(workspace: Workspace, sweep: Sweep, trial: Trial) -> int:
    """Repeat a trial as a new run with the same parameters, code and image, and compare the results."""
    from outlast.cli.run.foreground import follow_to_end
    from outlast.submit.run import resubmit

    request = resubmit(
        workspace,
        clouds(workspace),
        trial_spec(sweep, trial.params),
        sweep.code,
        what=f"trial {trial.number} of {sweep.name}",
        environment=os.environ,
    )
    code = follow_to_end(workspace, request)
    if code:
        return code
    state = workspace.story(request.run).refresh()
    metrics = measured(workspace.bucket, request.run, state, sweep.search.metrics)
    for goal, before in zip(sweep.search.goals, trial.values, strict=True):
        name = goal.partition(":")[2]
        now = f"{metrics[name]:.10g}" if name in metrics else "nothing"
        click.echo(f"{request.run}: {name} {now}; trial {trial.number} had {before:.10g}")
    return 0
