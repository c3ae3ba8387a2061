"""A run in the foreground: supervised and followed to its end, or detached."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

import click

from outlast.app.background import supervise_live_runs
from outlast.cli.run.embedded_supervisor import Detached, embedded_supervisor
from outlast.cli.run.follow import Follower
from outlast.cli.run.group import GroupFollower
from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.app.types import RunRequest, Workspace


def follow_to_end(
    workspace: Workspace, request: RunRequest, *, destination: str = "", pull: bool = True, quiet: bool = False
) -> int:
    """Supervise and follow a run to its end, fetch its outputs, and return the exit code."""
    follower = Follower(workspace, request.run, quiet=quiet)
    if request.spec.interactive and sys.stdin.isatty() and sys.stdout.isatty():
        follower.before = lambda: _enter_terminal(workspace, request.run)
    if not _follow_supervised(workspace, request.run, follower):
        with contextlib.suppress(OSError):  # the terminal may be closed
            note(f"detached; `{request.run}` continues. Follow it with `outlast logs -f {request.run}`")
        return 130
    if request.spec.notify is not None and request.spec.notify.desktop:
        from outlast.app.notifications import show_on_desktop

        show_on_desktop(f"outlast: {request.run}", f"{request.run} {follower.story.state.ending or 'continues'}")
    if pull and follower.story.state.ending == "finished":
        from outlast.cli.run.pull import pull_outputs

        pull_outputs(workspace, request.run, destination or os.path.join("outputs", request.run), quiet=quiet)
    return follower.exit_code()


def _follow_supervised(workspace: Workspace, run: str, follower: Follower | GroupFollower) -> bool:
    """Supervise and follow until the run is over; return False if the user detaches.

    On every way out (closed terminal, closed pipe, bug) a background supervisor takes over.
    """
    try:
        with embedded_supervisor(workspace, then=lambda: supervise_live_runs(workspace)):
            _follow(run, follower)
            follower.wait_until_closed()
    except (Detached, KeyboardInterrupt):
        return False
    return True


def _follow(run: str, follower: Follower | GroupFollower) -> None:
    """Follow to the end; Ctrl-C asks whether to detach or to cancel."""
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
            # Output fails when the terminal was closed or a disk is full.
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
    """Attach to the terminal of the command as soon as it has one; after detaching, the output is followed."""
    from outlast.app.terminals import enter_terminal_of_run

    try:
        enter_terminal_of_run(workspace, run, report=lambda text: note(f"outlast: {text}"))
    except OutlastError as problem:
        note(f"outlast: no terminal: {problem.message}")


def _ask(run: str) -> str:
    try:
        note("")
        return str(
            click.prompt(
                f"`{run}` is running. [d]etach and let it continue, or [c]ancel it?",
                type=click.Choice(["d", "c"]),
                default="d",
                show_choices=False,
                err=True,
            )
        )
    except (click.Abort, KeyboardInterrupt):
        note("")
        return "d"  # a second Ctrl-C: detach, which loses nothing
