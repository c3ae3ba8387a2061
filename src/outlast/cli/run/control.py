"""`outlast handover` and `outlast preempt`: changes to a live run."""

from __future__ import annotations

import click

from outlast.app.actions import hand_over, preempt_named
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import find_workspace, note


@command(section="runs", progress="handing over", interrupt=UNCERTAIN)
@run_argument
@click.argument("user", metavar="USER")
@workspace_option
def handover(run_name: str, user: str, workspace_url: str) -> int:
    """Give a run to another user, with its costs and limits.

    The run must be live. It counts for USER from now on, and its story records the change.
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    if not hand_over(workspace, run, user):
        click.echo(f"{run} already belongs to {user}")
        return 0
    click.echo(f"{run} now belongs to {user}")
    return 0


@command(
    section="runs",
    progress="preempting the machine",
    interrupt="the machine may already be going away; its run continues on another one: `outlast show last`",
)
@run_argument
@click.option("--no-notice", is_flag=True, help="Cut the power at once, without a notice.")
@click.option("--after-checkpoint", is_flag=True, help="Wait until the attempt has committed a checkpoint.")
@click.option("--node", type=int, default=0, metavar="RANK", help="The machine of a distributed run (default: 0).")
@workspace_option
def preempt(run_name: str, no_notice: bool, after_checkpoint: bool, node: int, workspace_url: str) -> int:
    """Preempt the machine of a run, as a cloud would.

    The machine gets a notice, then a grace period, then loses power. RUN may also be a machine of `outlast machine` or
    a worker of a cluster, by the name of the machine.
    """
    workspace = find_workspace(workspace_url)
    how = "without notice" if no_notice else "with notice"
    with naming_options({"after_checkpoint": "--after-checkpoint", "node": "--node"}):
        done = preempt_named(
            workspace, run_name, notice=not no_notice, after_checkpoint=after_checkpoint, node=node, report=note
        )
    click.echo(f"preempted {done.text}, {how}")
    return 0
