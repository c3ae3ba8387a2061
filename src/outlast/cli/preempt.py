"""`outlast preempt`: what the cloud does to you, on purpose."""

from __future__ import annotations

import time

import click

from outlast.app.actions import preempt_run
from outlast.cli.options import run_argument, workspace_option
from outlast.cli.terminal import find_workspace, note
from outlast.clouds.registry import clouds
from outlast.errors import NotFound, OutlastError
from outlast.runs.state import Attempt
from outlast.workspace import Workspace

# A machine that was asked for boots within this long, on every cloud.
_WAIT_S = 90.0
_LOOK_S = 0.2


@click.command()
@run_argument
@click.option("--no-notice", is_flag=True, help="Take the machine away at once, without a warning.")
@workspace_option
def preempt(run_name: str, no_notice: bool, workspace_url: str) -> int:
    """Take the machine of a run away, as a cloud would: a notice, a grace, then the power is cut."""
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
