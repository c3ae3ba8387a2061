"""A run followed live: its output on stdout, its events on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from outlast.app.endings import exit_code_of
from outlast.app.following import events as ev
from outlast.app.following import open_log
from outlast.cli.shared.sanitize import Output
from outlast.errors import StoreUnreachable
from outlast.formatting.event_text import sentence
from outlast.formatting.run_row import spent_usd, status_text
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Event, LogReader, NodesLogReader, RunState, Workspace

# Events that are only in `outlast show`.
_SILENT = (ev.Saved, ev.Released)
# How often a silent run is checked to exist, in a folder and in a bucket.
_NEAR_ASK_S, _FAR_ASK_S = 3.0, 30.0
# Poll intervals. Output reaches a bucket a second or two after it was printed, and every request there is billed.
_NEAR_S, _FAR_S = (0.02, 0.05), (0.5, 2.0)
# Polls for the first output of an attempt: apart by this part of the time since the last change, and at least this.
_FIRST_PART, _FIRST_S = 0.05, 0.1
# The events of a run in a bucket that has been silent for this long are read less often than its output.
_QUIET_S, _EVENTS_S = 10.0, 4.0
# The agent's own lines in the output.
_REMARK = b"outlast: "


class Follower:
    """One run, followed from its beginning."""

    def __init__(
        self, workspace: Workspace, run: str, *, quiet: bool = False, narrate: bool = True, prefix: str = ""
    ) -> None:
        self.workspace = workspace
        self.run = run
        self.quiet = quiet or not narrate
        self.story = workspace.story(run)
        self.shown_events = 0
        self.reader: LogReader | NodesLogReader | None = None
        self.at_line_start = True
        # Whether the newest attempt that started has printed something.
        self.printed = False
        self._moved_at, self._events_read_at = time.monotonic(), -math.inf
        # The name before each line, where several runs are followed.
        self.prefix = prefix
        self._rest = b""
        self.output = Output(whole_lines=bool(prefix))
        # Called once, before the output is shown.
        self.before: Callable[[], None] | None = None

    def follow(self) -> RunState:
        """Follow until the run is over. A second call continues where the first one stopped."""
        remote = self.workspace.store.remote
        wait_s, asked_at = 0.0, time.monotonic()
        while True:
            try:
                moved = self.advance()
                if not moved and time.monotonic() > asked_at + (_FAR_ASK_S if remote else _NEAR_ASK_S):
                    asked_at = time.monotonic()
                    # Raises if the workspace was deleted, which would otherwise be waited for forever.
                    self.workspace.find(self.run)
            except StoreUnreachable as problem:
                self._narrate(f"{problem.message}; retrying")
                moved = False
                time.sleep(1.0)
            if self.story.state.ending and not moved:
                return self.story.state
            quiet_s = time.monotonic() - self._moved_at
            wait_s = next_poll_s(wait_s, remote=remote, moved=moved, quiet_s=quiet_s, printed=self.printed)
            time.sleep(wait_s)

    def advance(self) -> bool:
        """Show new output and events, in order as far as it is known; return whether there were any."""
        self._read_events()
        moved = self._read_logs()
        events = self.story.events[self.shown_events :]
        for event in events:
            self.shown_events += 1
            if isinstance(event, ev.Started):
                self._read_logs()
                nodes = self.story.state.attempts[event.attempt - 1].nodes
                self.reader = open_log(self.workspace.bucket, self.run, event.attempt, nodes=nodes)
                self.printed = False
            elif isinstance(event, ev.Stopped | ev.Lost | ev.Finished):
                self._read_logs()
                if not self.story.state.attempts[event.attempt - 1].started_at:
                    self._show_early(event.attempt)
                if self._rest:
                    self._show(b"\n")  # the last line had no line break
            if not isinstance(event, _SILENT):
                self._narrate(self._line(event))
        # A new attempt may have printed something by now.
        moved = (bool(events) and self._read_logs()) or moved or bool(events)
        self._moved_at = time.monotonic() if moved else self._moved_at
        return moved

    def _read_events(self) -> None:
        """Read new events. Each poll reads the output, and in a long silence only some of them the events."""
        now = time.monotonic()
        silent = self.printed and self.workspace.store.remote and now - self._moved_at > _QUIET_S
        if not silent or now - self._events_read_at > _EVENTS_S - _FAR_S[0]:
            self._events_read_at = now
            self.story.refresh()

    def _read_logs(self) -> bool:
        moved = False
        for body in self.reader.read() if self.reader else ():
            self._show(body)
            self.printed = self.printed or not all(line.startswith(_REMARK) for line in body.splitlines())
            moved = True
        return moved

    def _show_early(self, attempt: int) -> None:
        """Show the agent's output for an attempt whose command never started."""
        nodes = self.story.state.attempts[attempt - 1].nodes
        for body in open_log(self.workspace.bucket, self.run, attempt, nodes=nodes).read():
            self._show(body if self.at_line_start else b"\n" + body)

    def _show(self, body: bytes) -> None:
        if self.prefix:
            *lines, self._rest = (self._rest + body).split(b"\n")
            body = b"".join(f"[{self.prefix}] ".encode() + line + b"\n" for line in lines)
        self.output.show(body)
        self.at_line_start = not body or body.endswith(b"\n")

    def cancel(self) -> None:
        from outlast.app.actions import cancel_run

        cancel_run(self.workspace, self.run)

    def _line(self, event: Event) -> str:
        if isinstance(event, ev.Started) and event.attempt > 1:
            before = self.story.state.attempts[event.attempt - 2]
            since = before.noticed_at or before.over_at
            if since:
                return f"{sentence(event)}; recovered after {describe_s(max(0.0, event.at - since))}"
        return sentence(event)

    def _narrate(self, text: str) -> None:
        if self.quiet:
            return
        if not self.at_line_start and sys.stdout.isatty():
            click.echo(err=True)
            self.at_line_start = True
        whose = f"[{self.prefix}] " if self.prefix else ""
        click.echo(click.style(f"outlast: {whose}{text}", fg="cyan"), err=True)

    def wait_until_closed(self, *, within_s: float = 20.0) -> RunState:
        """Wait until the machines are deleted, except those kept for debugging; then print the summary."""
        deadline = time.monotonic() + within_s
        while (left := _has_machines(self.story.refresh())) and time.monotonic() < deadline:
            time.sleep(0.05)
        state = self.story.state
        # The secrets and the heartbeat are deleted last.
        while state.closed and self.workspace.heartbeat(self.run) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            click.echo("outlast: machines are still being deleted; `outlast supervise` deletes them", err=True)
        if not self.quiet:
            self._summary(state)
        for attempt in state.attempts:
            if attempt.keep_s and not attempt.released:
                self._narrate(f"{attempt.machine} is kept for debugging for {describe_s(attempt.keep_s)}, then deleted")
        return state

    def _summary(self, state: RunState) -> None:
        from outlast.cli.shared.terminal import money

        attempts = "1 attempt" if len(state.attempts) == 1 else f"{len(state.attempts)} attempts"
        took = describe_s(state.ended_at - state.submitted_at)
        self._narrate(f"{self.run} {status_text(state)}: {attempts}, {took}, {money(spent_usd(state, time.time()))}")
        if state.ending == "failed":
            click.echo(click.style("error:", fg="red", bold=True) + f" {state.why}", err=True)
            for hint in filter(None, (self._left_behind(), state.hint)):
                click.echo(click.style("hint:", fg="cyan") + f" {hint}", err=True)

    def _left_behind(self) -> str:
        from outlast.app.left_behind import left_behind_hint

        return left_behind_hint(self.workspace, self.run)

    def exit_code(self) -> int:
        return exit_code_of(self.story.state)


def next_poll_s(last_s: float, *, remote: bool, moved: bool, quiet_s: float, printed: bool) -> float:
    """Return the pause until the next poll, after one of `last_s`; `quiet_s` is the time since the last change.

    The first output of an attempt is expected soon, and is polled for more often.
    """
    least_s, most_s = _FAR_S if remote else _NEAR_S
    if printed or not remote:
        return least_s if moved else min(most_s, max(least_s, last_s * 1.5))
    return min(most_s, max(_FIRST_S, _FIRST_PART * quiet_s))


def _has_machines(state: RunState) -> bool:
    """Return whether a machine is left that is not kept for debugging."""
    return any(not (a.released or a.keep_s) for a in state.attempts)
