"""`outlast preempt`: what the cloud does to you, on purpose."""

from __future__ import annotations

import click

from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace
from outlast.front.actions import preempt_run


@click.command()
@run_argument
@click.option("--no-notice", is_flag=True, help="Take the machine away at once, without a warning.")
@workspace_option
def preempt(run_name: str, no_notice: bool, workspace_url: str) -> int:
    """Take the machine of a run away, as a cloud would: a notice, a grace, then the power is cut."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    attempt = preempt_run(workspace, run, notice=not no_notice)
    how = "without notice" if no_notice else "with notice"
    click.echo(f"preempted attempt {attempt.number} of {run} in {attempt.zone}, {how}")
    return 0
