"""`outlast cancel` ends runs; `outlast wait` waits for their end. Both take several runs and groups."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outlast.app.actions import cancel_run
from outlast.app.background import supervise_live_runs
from outlast.app.endings import exit_code_of
from outlast.app.groups import runs_behind
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import runs_argument, workspace_option
from outlast.cli.shared.sanitize import one_line
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import StoreUnreachable
from outlast.formatting.run_row import status_text
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import RunState, Workspace

# Poll intervals of `wait`: for a folder, for a bucket.
_NEAR_S, _FAR_S = 0.2, 2.0


@command(
    section="runs",
    progress="cancelling",
    interrupt="the cancellation may or may not be recorded: see `outlast ps`, or repeat the command",
)
@runs_argument
@workspace_option
def cancel(run_names: tuple[str, ...], workspace_url: str) -> int:
    """End runs and delete their machines.

    Checkpoints, logs and outputs stay. RUN may be a group. If one of the names is unknown, nothing is cancelled.
    """
    from outlast.app.background import start_supervisor

    workspace = find_workspace(workspace_url)
    cancelled: list[str] = []
    for name, runs in runs_behind(workspace, run_names).items():
        ended = [run for run in runs if cancel_run(workspace, run)]
        cancelled += ended
        if not ended:
            note(f"{name} has already ended" + _ending(workspace, runs))
    if cancelled:
        start_supervisor(workspace)
        click.echo(f"cancelled {', '.join(cancelled)}")
    return 0


def _ending(workspace: Workspace, runs: list[str]) -> str:
    return f": {status_text(workspace.story(runs[0]).refresh())}" if len(runs) == 1 else ""


@command(section="runs", interrupt=READ_ONLY)
@runs_argument
@click.option("--quiet", "-q", is_flag=True, help="Print nothing.")
@workspace_option
def wait(run_names: tuple[str, ...], quiet: bool, workspace_url: str) -> int:
    """Wait until runs are over, and exit with their exit code.

    Prints one line per run as it ends. With several runs, the exit code is that of the first one in the command line
    that failed. RUN may be a group.
    """
    workspace = find_workspace(workspace_url)
    members = runs_behind(workspace, run_names)
    stories = {run: workspace.story(run) for runs in members.values() for run in runs}
    # A run without a supervisor would never end. A surplus one exits by itself.
    supervise_live_runs(workspace)
    pending, codes = dict(stories), dict.fromkeys(stories, 0)
    while pending:
        try:
            ended = {run: story.state for run, story in pending.items() if story.refresh().ending}
        except StoreUnreachable as problem:
            note(f"{problem.message}; retrying")
            ended = {}
        for run, state in ended.items():
            del pending[run]
            codes[run] = exit_code_of(state)
            if not quiet:
                click.echo(_line(run, state))
        if pending:
            time.sleep(_FAR_S if workspace.store.remote else _NEAR_S)
    return next((code for code in codes.values() if code), 0)


def _line(run: str, state: RunState) -> str:
    took = describe_s(state.ended_at - state.submitted_at)
    why = f": {state.why}" if state.ending == "failed" else ""
    return one_line(f"{run} {status_text(state)} after {took}, {money(state.cost_usd)}{why}")
