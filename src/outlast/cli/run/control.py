"""`outlast cancel`, `outlast handover` and `outlast preempt`: changes to a live run."""

from __future__ import annotations

import secrets
import time

import click

from outlast.app.actions import cancel_run, preempt_run
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import run_argument, workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.clouds.registry import clouds
from outlast.errors import NotFound, OutlastError, UsageError
from outlast.runs.events import OwnerChanged
from outlast.runs.state import Attempt
from outlast.workspace import Workspace


@command(
    section="runs",
    progress="cancelling",
    interrupt="the cancellation may or may not be recorded: see `outlast ps`, or repeat the command",
)
@run_argument
@workspace_option
def cancel(run_name: str, workspace_url: str) -> int:
    """End a run and delete its machine.

    Checkpoints, logs and outputs stay. RUN may be a group.
    """
    from outlast.app.background import start_supervisor

    workspace = find_workspace(workspace_url)
    from outlast.runs.group import Groups

    if Groups(workspace).exists(run_name):
        from outlast.cli.run.group import cancel_group

        runs = cancel_group(workspace, run_name)
        start_supervisor(workspace)
        click.echo(f"cancelled {', '.join(runs)}" if runs else f"{run_name} has already ended")
        return 0
    run = workspace.find(run_name)
    if not cancel_run(workspace, run):
        state = workspace.story(run).refresh()
        note(f"{run} has already ended: {state.ending}")
        return 0
    start_supervisor(workspace)
    click.echo(f"cancelled {run}")
    return 0


@command(section="runs", progress="handing over", interrupt=UNCERTAIN)
@run_argument
@click.argument("user", metavar="USER")
@workspace_option
def handover(run_name: str, user: str, workspace_url: str) -> int:
    """Give a run to another user, with its costs and limits.

    The run must be live. It counts for USER from now on, and its story records the change.
    """
    from outlast.user import current_user

    if not user.strip() or not user.isprintable() or len(user) > 100:
        raise UsageError(f"USER: {user!r} is not a user name")
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    story = workspace.story(run)
    if story.refresh().who == user:
        click.echo(f"{run} already belongs to {user}")
        return 0
    event = OwnerChanged(who=user, at=time.time(), by=current_user())
    if not story.append(event, nonce=secrets.token_hex(8)):
        raise UsageError(f"{run} has ended ({story.state.ending}); its owner cannot change")
    # The supervisor must count it for the new user.
    workspace.wake(run)
    click.echo(f"{run} now belongs to {user}")
    return 0


# The time within which a machine boots, on every cloud.
_WAIT_S = 90.0
_POLL_S = 0.2


@command(
    section="runs",
    progress="preempting the machine",
    interrupt="the machine may already be going away; its run continues on another one: `outlast show last`",
)
@run_argument
@click.option("--no-notice", is_flag=True, help="Cut the power at once, without a notice.")
@workspace_option
def preempt(run_name: str, no_notice: bool, workspace_url: str) -> int:
    """Preempt the machine of a run, as a cloud would.

    The machine gets a notice, then a grace period, then loses power.
    """
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    attempt = _preempt(workspace, run, notice=not no_notice)
    how = "without notice" if no_notice else "with notice"
    click.echo(f"preempted attempt {attempt.number} of {run} in {attempt.zone}, {how}")
    return 0


def _preempt(workspace: Workspace, run: str, *, notice: bool) -> Attempt:
    """Preempt the machine that the run has or gets next: one that is going away cannot be preempted again."""
    until = time.monotonic() + _WAIT_S
    while True:
        _await_machine(workspace, run, until)
        try:
            return preempt_run(workspace, run, notice=notice)
        except OutlastError:
            if time.monotonic() > until or not _is_going(workspace, run):
                raise
            time.sleep(_POLL_S)


def _is_going(workspace: Workspace, run: str) -> bool:
    """Return whether the run is between two machines."""
    state = workspace.story(run).refresh()
    if state.current is None:
        return state.alive and not state.waiting
    try:
        return clouds()[state.current.cloud].machine(state.current.machine).status != "running"
    except NotFound:
        return True


def _await_machine(workspace: Workspace, run: str, until: float) -> None:
    """Wait for the first machine, right after `submit`; return at once if the run is held or over."""
    story, reported = workspace.story(run), False
    while time.monotonic() < until:
        state = story.refresh()
        if not state.alive or state.waiting or state.current is not None:
            return
        if not reported:
            note(f"{run} has no running machine yet: waiting for one; Ctrl-C changes nothing")
            reported = True
        time.sleep(_POLL_S)
