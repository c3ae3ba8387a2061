"""`outlast sweep list`, `show` and `best`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click
import msgspec

from outlast.app.sweeps import best_of, driver_of, find_sweep, list_sweeps, metrics_of, rerun_trial, search_of
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import find_workspace, note, report_damaged, table
from outlast.cli.sweep.table import outcome, params, rows, sweep_argument, trials_text

if TYPE_CHECKING:
    from outlast.app.types import Sweep, Trial, Workspace


@command("list", interrupt=READ_ONLY, json="list[SweepRow]")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List every sweep of the workspace."""
    found, damaged = list_sweeps(find_workspace(workspace_url))
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found), indent=2))
    elif not found:
        note("no sweeps yet; start one with `outlast sweep`")
    else:
        cells = [
            [
                row.sweep,
                row.state,
                f"{row.trials}/{row.wanted}",
                ", ".join(row.goals),
                " ".join(f"{value:.6g}" for value in row.best),
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
        driver = driver_of(workspace, sweep)
        who = f"driven by {driver}" if driver else f"no process drives it: `outlast sweep resume {sweep.name}`"
        note(who)
    return 0


@command(progress="reading trials", interrupt=READ_ONLY, json="list[TrialRow]")
@sweep_argument
@click.option("--rerun", is_flag=True, help="Repeat the best trial, and compare the results.")
@json_option
@workspace_option
def best(sweep_name: str, rerun: bool, as_json: bool, workspace_url: str) -> int:
    """Show the best trial; with several goals, all Pareto-optimal ones."""
    workspace = find_workspace(workspace_url)
    sweep, state = find_sweep(workspace, sweep_name)
    leaders = best_of(sweep, state)
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

    request = rerun_trial(workspace, sweep, trial)
    code = follow_to_end(workspace, request)
    if code:
        return code
    metrics = metrics_of(workspace, sweep, request.run)
    for goal, before in zip(sweep.search.goals, trial.values, strict=True):
        name = goal.partition(":")[2]
        now = f"{metrics[name]:.10g}" if name in metrics else "nothing"
        click.echo(f"{request.run}: {name} {now}; trial {trial.number} had {before:.10g}")
    return 0
