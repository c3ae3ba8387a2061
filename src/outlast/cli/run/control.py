"""`outlast cancel`."""

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
    """End a run and delete its machine."""
    from outlast.app.background import start_supervisor

    workspace = find_workspace(workspace_url)
    from outlast.runs.group import Groups

    if Groups(workspace).exists(run_name):
        from outlast.cli.run.group import cancel_group

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


@command(section="runs", progress="handing over", interrupt=UNCERTAIN)
@run_argument
@click.argument("user", metavar="USER")
@workspace_option
def handover(run_name: str, user: str, workspace_url: str) -> int:
    """Give a run to another user, with its costs and limits."""
    from outlast.user import current_user

    if not user.strip() or not user.isprintable() or len(user) > 100:
        raise UsageError(f"USER: {user!r} is no name of a user")
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    story = workspace.story(run)
    if story.refresh().who == user:
        click.echo(f"{run} is {user}'s already")
        return 0
    event = OwnerChanged(who=user, at=time.time(), by=current_user())
    if not story.append(event, nonce=secrets.token_hex(8)):
        raise UsageError(f"{run} is over: {story.state.ending}; whose it was stays as it is")
    # Whoever supervises counts it for another from now on.
    workspace.wake(run)
    click.echo(f"{run} is {user}'s now")
    return 0


# A machine that was asked for boots within this long, on every cloud.
_WAIT_S = 90.0
_LOOK_S = 0.2


@command(
    section="runs",
    progress="preempting the machine",
    interrupt="the machine may already be going away; its run continues on another one: `outlast show last`",
)
@run_argument
@click.option("--no-notice", is_flag=True, help="Take the machine away at once, without a warning.")
@workspace_option
def preempt(run_name: str, no_notice: bool, workspace_url: str) -> int:
    """Preempt the machine of a run, as a cloud would."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    attempt = _preempt(workspace, run, notice=not no_notice)
    how = "without notice" if no_notice else "with notice"
    click.echo(f"preempted attempt {attempt.number} of {run} in {attempt.zone}, {how}")
    return 0


def _preempt(workspace: Workspace, run: str, *, notice: bool) -> Attempt:
    """The machine that the run has, or gets next: one that is just going away cannot be taken away once more."""
    until = time.monotonic() + _WAIT_S
    while True:
        _await_machine(workspace, run, until)
        try:
            return preempt_run(workspace, run, notice=notice)
        except OutlastError:
            if time.monotonic() > until or not _is_going(workspace, run):
                raise
            time.sleep(_LOOK_S)


def _is_going(workspace: Workspace, run: str) -> bool:
    """Whether the run is between two machines: that of its attempt runs no more, or the attempt is over by now."""
    state = workspace.story(run).refresh()
    if state.current is None:
        return state.alive and not state.held
    try:
        return clouds()[state.current.cloud].machine(state.current.machine).status != "running"
    except NotFound:
        return True


def _await_machine(workspace: Workspace, run: str, until: float) -> None:
    """Who types this right after `submit` means the machine that is about to come. One that is held gets none soon."""
    story, told = workspace.story(run), False
    while time.monotonic() < until:
        state = story.refresh()
        if not state.alive or state.held or state.current is not None:
            return
        if not told:
            note(f"{run} has no machine yet that runs its command: waiting for it; Ctrl-C leaves it as it is")
            told = True
        time.sleep(_LOOK_S)
