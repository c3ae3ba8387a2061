"""`outlast sync`: keeps a folder on a machine in sync with a local one."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.app.terminals import new_sync
from outlast.cli.completion import complete_path_on_machine
from outlast.cli.shared.command import command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.sanitize import send_sequence
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import SyncEvent, SyncStatus


@command(
    section="machines",
    interrupt="stopped syncing; files that were copied stay on the machine",
    json_text="one line of JSON for each event: see sync.md",
)
@click.argument(
    "argv", nargs=-1, required=True, metavar="[SRC] MACHINE|RUN:DEST", shell_complete=complete_path_on_machine
)
@click.option("--watch", is_flag=True, help="Keep syncing: copy every change at once.")
@click.option("--delete", is_flag=True, help="Delete synced files that no longer exist at the source.")
@click.option("--pull", is_flag=True, help="Copy from the machine to SRC.")
@click.option("--json", "as_json", is_flag=True, help="Print events as lines of JSON.")
@workspace_option
def sync(argv: tuple[str, ...], watch: bool, delete: bool, pull: bool, as_json: bool, workspace_url: str) -> int:
    """Copy a folder to a machine and keep it in sync.

    Copies SRC (the present folder) to DEST on a machine, or on the machine of a run. DEST is relative to the home
    folder of the machine, or to the code of the run. Ignored files and secrets are not copied. Only changes are sent.
    Files that sync did not create are never deleted.
    """
    source, name, folder = parse_arguments(argv)
    here = os.path.realpath(source)
    reporter = _JsonReporter() if as_json else _TextReporter(here if pull else "", quiet=not sys.stderr.isatty())
    session = new_sync(
        source,
        name,
        folder,
        open_workspace=lambda: find_workspace(workspace_url),
        watch=watch,
        delete=delete,
        pull=pull,
        emit=reporter,
    )
    # A closed terminal ends the session like Ctrl-C, with all its processes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        session.run()
    except KeyboardInterrupt:
        reporter.end()
        _report_stop(session.status, pull=pull)
        return 0 if watch and session.status.complete else 130
    reporter.end()
    return 1 if reporter.problems else 0


def parse_arguments(argv: tuple[str, ...]) -> tuple[str, str, str]:
    """Return SRC, the name before the colon and the folder after it. Raises UsageError."""
    if len(argv) > 2:
        raise UsageError(
            "too many arguments: expected at most SRC and MACHINE:DEST", hint="outlast sync [SRC] MACHINE|RUN:DEST"
        )
    source, there = (argv[0], argv[1]) if len(argv) == 2 else (".", argv[0])
    name, colon, folder = there.partition(":")
    if not colon or not name:
        raise UsageError(
            f"invalid destination `{there}`: expected MACHINE:DEST or RUN:DEST",
            hint="for example `outlast sync trainer:project`",
        )
    return source, name, folder


def _report_stop(status: SyncStatus, *, pull: bool) -> None:
    if not status.machine:
        note("interrupted before the machine was reached; nothing was copied")
        return
    files = "1 file" if status.files == 1 else f"{status.files:,} files"
    there = "here" if pull else f"in {status.machine}:{status.folder}"
    if status.complete:
        note(f"stopped; all files are {there}: {files}")
    elif status.unsent:
        note(f"stopped; {status.unsent:,} changes are not {there} yet; repeat the command to continue")
    else:
        note(f"stopped halfway; files {there} are complete; repeat the command to continue")


class _JsonReporter:
    """Events as lines of JSON on stdout."""

    def __init__(self) -> None:
        self.problems = 0

    def __call__(self, event: SyncEvent) -> None:
        import json

        import msgspec

        from outlast.app.sync_events import Problem

        self.problems += isinstance(event, Problem)
        table = {**msgspec.to_builtins(event), "at": time.time()}
        # ASCII only: file names that are not valid text are escaped.
        click.echo(json.dumps(table))
        sys.stdout.flush()

    def end(self) -> None:
        pass


class _TextReporter:
    """Messages on stderr; on a terminal also a status line."""

    def __init__(self, pulling_to: str, *, quiet: bool) -> None:
        self.problems = 0
        self._pulling_to = pulling_to
        self._quiet = quiet
        self._shown = 0
        self._files: set[str] = set()
        self._count = 0
        self._left_out: list[str] = []

    def __call__(self, event: SyncEvent) -> None:
        from outlast.app import sync_events as ev

        if isinstance(event, ev.Arrived):
            self._files.add(event.path)
            self._status(event.path, event.ms)
            return
        if isinstance(event, ev.Deleted):
            self._status(f"{event.path} deleted", 0.0)
            return
        if isinstance(event, ev.FileSkipped):
            self._left_out.append(event.path)
            return
        self.problems += isinstance(event, ev.Problem)
        text = self._sentence(event)
        if text:
            self.end()
            note(text)

    def _sentence(self, event: Any) -> str:
        from outlast.app import sync_events as ev

        if isinstance(event, ev.Connected):
            arrow = f"{self._pulling_to} ← " if self._pulling_to else "→ "
            return f"outlast: {arrow}{event.machine}:{event.folder}"
        if isinstance(event, ev.Copied):
            self._count = max(self._count, event.files)
            return self._copied(event.files, event.sent, event.bytes, event.seconds)
        if isinstance(event, ev.Problem):
            return f"problem: {_shown(event.path)}{': ' if event.why else ''}{event.why}"
        if isinstance(event, ev.Watching):
            return f"outlast: watching by polling every second: {event.why}" if event.why else ""
        if isinstance(event, ev.ConnectionLost):
            return f"outlast: connection lost: {event.why}; reconnecting"
        return f"outlast: {event.why}"

    def _copied(self, files: int, sent: int, size: int, seconds: float) -> str:
        from outlast.formatting.quantities import size as shown_size

        many = "1 file" if files == 1 else f"{files:,} files"
        text = f"outlast: {many} in sync, {sent:,} sent ({shown_size(size)}) in {describe_s(seconds)}"
        if self._left_out:
            names = ", ".join(f"`{_shown(path)}`" for path in self._left_out[:3])
            more = f" and {len(self._left_out) - 3} more" if len(self._left_out) > 3 else ""
            text += f"; not copied: {names}{more}"
            self._left_out = []
        return text

    def _status(self, path: str, ms: float) -> None:
        if self._quiet:
            return
        took = f", {ms:.0f} ms" if ms else ""
        text = f"{time.strftime('%H:%M:%S')} {_shown(path)}{took} · {len(self._files):,} files since the start"
        try:
            width = os.get_terminal_size(sys.stderr.fileno()).columns
        except OSError:
            width = 80
        text = text[: width - 1]
        send_sequence("\r", sys.stderr)
        sys.stderr.write(text + " " * max(0, self._shown - len(text)))
        sys.stderr.flush()
        self._shown = len(text)

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\n")
            self._shown = 0


def _shown(path: str) -> str:
    """Return a printable name, whose length equals its width on the terminal."""
    return "".join(c if c.isprintable() else "?" for c in path)
