"""`outlast sync`: a folder here and a folder on a machine, the same, from now on."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.completion import complete_path_on_machine
from outlast.cli.shared.command import command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.sanitize import send_sequence
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.sync.events import SyncEvent
    from outlast.sync.session import SyncStatus


@command(
    section="machines",
    interrupt="stopped syncing; files that were copied stay on the machine",
    json_text="one line of JSON for each event: see sync.md",
)
@click.argument(
    "argv", nargs=-1, required=True, metavar="[SRC] MACHINE|RUN:DEST", shell_complete=complete_path_on_machine
)
@click.option("--watch", is_flag=True, help="Go on: every save is there a moment later.")
@click.option("--delete", is_flag=True, help="Delete there what was synced before and is here no more.")
@click.option("--pull", is_flag=True, help="The other way: from the machine to SRC.")
@click.option("--json", "as_json", is_flag=True, help="Print what happens as lines of JSON.")
@workspace_option
def sync(argv: tuple[str, ...], watch: bool, delete: bool, pull: bool, as_json: bool, workspace_url: str) -> int:
    """Copy a folder to a machine and keep it in sync.

    What git ignores stays here, and so do secrets. DEST is relative to the home folder of the machine, or to the code
    of the run. Only what changed is sent. Nothing that was not synced is ever deleted.
    """
    from outlast.sync.remote_dir import RemoteDir, origin_of
    from outlast.sync.session import Sync, check_source
    from outlast.sync.target import find_target

    source, name, folder = parse_words(argv)
    if not pull:
        check_source(source)
    target = find_target(name, clouds(), lambda: find_workspace(workspace_url))
    here = os.path.realpath(source)
    place = RemoteDir(
        folder=folder,
        base=target.base,
        origin=origin_of(here, *((name, folder) if pull else ())),
        delete=delete,
        pull=pull,
    )
    teller = _Json() if as_json else _Teller(here if pull else "", quiet=not sys.stderr.isatty())
    session = Sync(here, target, place, watch=watch, emit=teller)
    # A closed terminal ends it as Ctrl-C does: with everything that was started.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        session.run()
    except KeyboardInterrupt:
        teller.end()
        _say_goodbye(session.status, pull=pull)
        return 0 if watch and session.status.complete else 130
    teller.end()
    return 1 if teller.problems else 0


def parse_words(argv: tuple[str, ...]) -> tuple[str, str, str]:
    """SRC, the name before the colon, the folder after it. Raises UsageError."""
    if len(argv) > 2:
        raise UsageError("say at most a folder here and one place there", hint="outlast sync [SRC] MACHINE|RUN:DEST")
    source, there = (argv[0], argv[1]) if len(argv) == 2 else (".", argv[0])
    name, colon, folder = there.partition(":")
    if not colon or not name:
        raise UsageError(
            f"`{there}` names no machine or run with a folder there",
            hint="write MACHINE:DEST or RUN:DEST, e.g. `outlast sync trainer:project`",
        )
    return source, name, folder


def _say_goodbye(standing: SyncStatus, *, pull: bool) -> None:
    if not standing.machine:
        note("interrupted before the machine was reached; nothing was copied")
        return
    files = "1 file" if standing.files == 1 else f"{standing.files:,} files"
    there = "here" if pull else f"in {standing.machine}:{standing.folder}"
    if standing.complete:
        note(f"stopped; everything is {there}: {files}")
    elif standing.unsent:
        note(f"stopped; {standing.unsent:,} changes are not {there} yet. Sync again to go on")
    else:
        note(f"stopped in the middle; what arrived {there} is whole. Sync again to go on")


class _Json:
    """What happens, a line each, to stdout."""

    def __init__(self) -> None:
        self.problems = 0

    def __call__(self, happening: SyncEvent) -> None:
        import json

        import msgspec

        from outlast.sync.events import Problem

        self.problems += isinstance(happening, Problem)
        table = {**msgspec.to_builtins(happening), "at": time.time()}
        # Names that are no text are escaped, as nothing but ASCII leaves here.
        click.echo(json.dumps(table))
        sys.stdout.flush()

    def end(self) -> None:
        pass


class _Teller:
    """Sentences to stderr; in a terminal also a line that shows how things stand."""

    def __init__(self, pulling_to: str, *, quiet: bool) -> None:
        self.problems = 0
        self._pulling_to = pulling_to
        self._quiet = quiet
        self._shown = 0
        self._files: set[str] = set()
        self._count = 0
        self._left_out: list[str] = []

    def __call__(self, happening: SyncEvent) -> None:
        from outlast.sync import events as told

        if isinstance(happening, told.Arrived):
            self._files.add(happening.path)
            self._status(happening.path, happening.ms)
            return
        if isinstance(happening, told.Deleted):
            self._status(f"{happening.path} deleted", 0.0)
            return
        if isinstance(happening, told.FileSkipped):
            self._left_out.append(happening.path)
            return
        self.problems += isinstance(happening, told.Problem)
        text = self._sentence(happening)
        if text:
            self.end()
            note(text)

    def _sentence(self, happening: Any) -> str:
        from outlast.sync import events as told

        if isinstance(happening, told.Connected):
            arrow = f"{self._pulling_to} ← " if self._pulling_to else "→ "
            return f"outlast: {arrow}{happening.machine}:{happening.folder}"
        if isinstance(happening, told.Copied):
            self._count = max(self._count, happening.files)
            return self._copied(happening.files, happening.sent, happening.bytes, happening.seconds)
        if isinstance(happening, told.Problem):
            return f"problem: {_shown(happening.path)}{': ' if happening.why else ''}{happening.why}"
        if isinstance(happening, told.Watching):
            return f"outlast: watching by looking every second: {happening.why}" if happening.why else ""
        if isinstance(happening, told.ConnectionLost):
            return f"outlast: connection lost: {happening.why}; connecting again"
        return f"outlast: {happening.why}"

    def _copied(self, files: int, sent: int, size: int, seconds: float) -> str:
        from outlast.formatting.quantities import size as shown_size

        many = "1 file" if files == 1 else f"{files:,} files"
        text = f"outlast: {many} the same, {sent:,} sent ({shown_size(size)}) in {describe_s(seconds)}"
        if self._left_out:
            names = ", ".join(f"`{_shown(path)}`" for path in self._left_out[:3])
            more = f" and {len(self._left_out) - 3} more" if len(self._left_out) > 3 else ""
            text += f"; left here: {names}{more}"
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
    """A name in a line that is written again and again: nothing in it is wider than it counts."""
    return "".join(c if c.isprintable() else "?" for c in path)
