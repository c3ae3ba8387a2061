"""`outlast cancel`."""

from __future__ import annotations

import click

from outlast.app.actions import cancel_run
from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace, note


@click.command()
@run_argument
@workspace_option
def cancel(run_name: str, workspace_url: str) -> int:
    """End a run. Its machine is deleted; its checkpoints, logs and outputs stay."""
    from outlast.app.background import start_supervisor

    workspace = find_workspace(workspace_url)
    from outlast.runs.group import Groups

    if Groups(workspace).exists(run_name):
        from outlast.cli.group import cancel_group

        runs = cancel_group(workspace, run_name)
        start_supervisor(workspace)
        click.echo(f"cancelled {', '.join(runs)}" if runs else f"{run_name} is over already")
        return 0
    run = workspace.find(run_name)
    if not cancel_run(workspace, run):
        state = workspace.story(run).refresh()
        note(f"{run} is over already: {state.ending}")
        return 0
    start_supervisor(workspace)
    click.echo(f"cancelled {run}")
    return 0
