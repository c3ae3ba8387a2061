"""`outlast handover` and `outlast preempt`: changes to a live run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.actions import hand_over, preempt_when_placed
from outlast.cli.machine.find import find
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import NoSuchRun, NotFound, UsageError
from outlast.records.machines import MachineRecords

if TYPE_CHECKING:
    from outlast.app.types import Workspace


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
    try:
        # The name of a machine comes before the prefix of a run's name.
        run = "" if _names_machine(workspace, run_name) else workspace.find(run_name)
    except NoSuchRun as unknown:
        zone = _preempt_machine(workspace, run_name, notice=not no_notice, otherwise=unknown)
    else:
        if run:
            with naming_options({"after_checkpoint": "--after-checkpoint", "node": "--node"}):
                attempt = preempt_when_placed(
                    workspace, run, notice=not no_notice, after_checkpoint=after_checkpoint, node=node, report=note
                )
            what = f"node {node} of attempt" if attempt.nodes > 1 else "attempt"
            click.echo(f"preempted {what} {attempt.number} of {run} in {attempt.zone}, {how}")
            return 0
        if after_checkpoint:
            raise UsageError(f"--after-checkpoint: `{run_name}` is a machine; only runs commit checkpoints")
        zone = _preempt_machine(workspace, run_name, notice=not no_notice)
    click.echo(f"preempted {run_name} in {zone}, {how}")
    return 0


def _names_machine(workspace: Workspace, name: str) -> bool:
    """Return whether a machine has this name, and no run has."""
    return name in MachineRecords(workspace).names() and not workspace.story(name).refresh().exists


def _preempt_machine(workspace: Workspace, name: str, *, notice: bool, otherwise: NoSuchRun | None = None) -> str:
    """Preempt a machine that no run owns; return its zone. Raises the error `otherwise` if it does not exist."""
    try:
        cloud, machine = find(MachineRecords(workspace), name)
    except (NotFound, UsageError) as problem:
        if otherwise is None:
            raise
        hint = f"{otherwise.hint}; machines: `outlast machine list`"
        raise NoSuchRun(f"no run and no machine `{name}` in {workspace.url}", hint=hint) from problem
    cloud.preempt(name, notice=notice)
    return machine.zone
