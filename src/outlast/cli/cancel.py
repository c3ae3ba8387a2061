"""`outlast cancel`."""

from __future__ import annotations

import secrets
import time

import click

from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace, note
from outlast.workspace.events import Cancelled
from outlast.workspace.workspace import Workspace


def cancel_run(workspace: Workspace, run: str) -> bool:
    """Append `Cancelled` and ring; False if the run was over already."""
    from outlast.supervisor.submit import who_am_i

    event = Cancelled(who=who_am_i(), at=time.time())
    # The bell first: if we die in between, somebody looks and finds nothing changed.
    workspace.ring(run)
    cancelled = workspace.story(run).append(event, nonce=secrets.token_hex(8))
    workspace.ring(run)
    return cancelled


@click.command()
@run_argument
@workspace_option
def cancel(run_name: str, workspace_url: str) -> int:
    """End a run. Its machine is deleted; its checkpoints, logs and outputs stay."""
    from outlast.cli.background import start_supervisor

    workspace = find_workspace(workspace_url)
    from outlast.workspace.group import Groups

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
