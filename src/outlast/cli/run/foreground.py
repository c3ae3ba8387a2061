"""`outlast run` and `outlast submit`: one asks for a run and stays, the other asks and leaves."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from outlast.cli.run.embedded_supervisor import Detached, _hand_over, supervised_here
from outlast.cli.run.follow import Follower
from outlast.cli.run.group import GroupFollower
from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError
from outlast.workspace import RunRequest, Workspace


def see_through(
    workspace: Workspace, request: RunRequest, *, destination: str = "", pull: bool = True, quiet: bool = False
) -> int:
    """Supervise and follow a run to its end, and fetch its outputs; the exit code."""
    follower = Follower(workspace, request.run, quiet=quiet)
    if request.spec.interactive and sys.stdin.isatty() and sys.stdout.isatty():
        follower.before = lambda: _enter_terminal(workspace, request.run)
    if not _stay(workspace, request.run, follower):
        with contextlib.suppress(OSError):  # the terminal may be gone, and with it whoever could read this
            note(f"detached; `{request.run}` goes on. Back to it: `outlast logs -f {request.run}`")
        return 130
    if pull and follower.story.state.ending == "finished":
        from outlast.cli.run.pull import pull_outputs

        pull_outputs(workspace, request.run, destination or os.path.join("outputs", request.run), quiet=quiet)
    return follower.exit_code()


def _stay(workspace: Workspace, run: str, follower: Follower | GroupFollower) -> bool:
    """Supervise and follow until the run is over; False if we detach before.

    However we leave (a closed terminal, a reader of our output that is gone, a bug), the run is handed over.
    """
    try:
        with supervised_here(workspace, then=lambda: _hand_over(workspace)):
            _follow(run, follower)
            follower.wait_until_closed()
    except (Detached, KeyboardInterrupt):
        return False
    return True


def _follow(run: str, follower: Follower | GroupFollower) -> None:
    """Follow to the end; Ctrl-C asks what to do, and only the answer does anything."""
    while True:
        try:
            enter, follower.before = follower.before, None
            if enter is not None:
                enter()
            follower.follow()
            return
        except BrokenPipeError:
            raise
        except OSError as problem:
            # Our output has nowhere to go: the terminal was closed, or a disk is full.
            with contextlib.suppress(OSError):
                note(f"the output cannot be written: {problem.strerror}")
            raise Detached from None
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise Detached from None
            if _ask(run) == "d":
                raise Detached from None
            follower.cancel()


def _enter_terminal(workspace: Workspace, run: str) -> None:
    """Into the terminal of the command as soon as it has one. Whoever leaves it follows the output from then on."""
    from outlast.sync.attach import attach
    from outlast.sync.target import RunTarget

    try:
        attach(RunTarget(workspace, clouds(workspace), run), report=lambda text: note(f"outlast: {text}"))
    except OutlastError as problem:
        note(f"outlast: no terminal: {problem.message}")


def _ask(run: str) -> str:
    try:
        note("")
        return str(
            click.prompt(
                f"`{run}` is running. [d]etach and let it go on, or [c]ancel it?",
                type=click.Choice(["d", "c"]),
                default="d",
                show_choices=False,
                err=True,
            )
        )
    except (click.Abort, KeyboardInterrupt):
        note("")
        return "d"  # a second Ctrl-C: out of here, and nothing is lost by it
