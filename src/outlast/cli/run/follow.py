"""A run followed live: its output on stdout, its events on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from outlast.cli.shared.sanitize import Output
from outlast.errors import OverLimit, RunCancelled, RunFailed, StoreUnreachable
from outlast.formatting.event_text import sentence
from outlast.formatting.run_row import status_text
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.logs import LogReader
from outlast.runs.state import RunState
from outlast.spec.quantity import describe_s
from outlast.workspace import Workspace

# Events that are only in `outlast show`.
_SILENT = (ev.Saved, ev.Released)
_ASK_S = 3.0
# Poll intervals. Output reaches a bucket a second or two after it was printed, and every request there is billed.
_NEAR_S, _FAR_S = (0.02, 0.05), (0.5, 2.0)


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
        self.reader: LogReader | None = None
        self.at_line_start = True
        # The name before each line, where several runs are followed.
        self.prefix = prefix
        self._rest = b""
        self.output = Output(whole_lines=bool(prefix))
        # Called once, before the output is shown.
        self.before: Callable[[], None] | None = None

    def follow(self) -> RunState:
        """Follow until the run is over. A second call continues where the first one stopped."""
        least_s, most_s = _FAR_S if self.workspace.store.remote else _NEAR_S
        wait_s, asked_at = least_s, time.monotonic()
        while True:
            try:
                moved = self.advance()
                if not moved and time.monotonic() > asked_at + _ASK_S:
                    asked_at = time.monotonic()
                    # Raises if the workspace was deleted, which would otherwise be waited for forever.
                    self.workspace.find(self.run)
            except StoreUnreachable as problem:
                self._narrate(f"{problem.message}; retrying")
                moved = False
                time.sleep(1.0)
            if self.story.state.ending and not moved:
                return self.story.state
            wait_s = least_s if moved else min(most_s, wait_s * 1.5)
            time.sleep(wait_s)

    def advance(self) -> bool:
        """Show new output and events, in order as far as it is known; return whether there were any."""
        self.story.refresh()
        moved = self._read_logs()
        for event in self.story.events[self.shown_events :]:
            self.shown_events += 1
            if isinstance(event, ev.Started):
                self._read_logs()
                self.reader = LogReader(self.workspace.bucket, self.run, event.attempt)
            elif isinstance(event, ev.Stopped | ev.Lost | ev.Finished):
                self._read_logs()
                if not self.story.state.attempts[event.attempt - 1].started_at:
                    self._show_early(event.attempt)
                if self._rest:
                    self._show(b"\n")  # the last line had no line break
            if not isinstance(event, _SILENT):
                self._narrate(self._line(event))
            moved = True
        # A new attempt has usually printed something by now.
        return self._read_logs() or moved

    def _read_logs(self) -> bool:
        moved = False
        for body in self.reader.read() if self.reader else ():
            self._show(body)
            moved = True
        return moved

    def _show_early(self, attempt: int) -> None:
        """Show the agent's output for an attempt whose command never started."""
        for body in LogReader(self.workspace.bucket, self.run, attempt).read():
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
        self._narrate(f"{self.run} {status_text(state)}: {attempts}, {took}, {money(state.cost_usd)}")
        if state.ending == "failed":
            click.echo(click.style("error:", fg="red", bold=True) + f" {state.why}", err=True)
            if state.hint:
                click.echo(click.style("hint:", fg="cyan") + f" {state.hint}", err=True)

    def exit_code(self) -> int:
        """Return the exit code of the command if it ended the run, else the code of the reason."""
        state = self.story.state
        if state.ending == "finished":
            return 0
        if state.ending == "cancelled":
            return RunCancelled.exit_code
        if state.limit is not None:
            return OverLimit.exit_code
        return state.exit_code or RunFailed.exit_code


def _has_machines(state: RunState) -> bool:
    """Return whether a machine is left that is not kept for debugging."""
    return any(not (a.released or a.keep_s) for a in state.attempts)
