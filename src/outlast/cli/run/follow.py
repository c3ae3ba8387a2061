"""Follows a run live: its output to stdout, what happens to it to stderr."""

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

# What a follower need not be told: it is in `outlast show`.
_SILENT = (ev.Saved, ev.Released)
_ASK_S = 3.0
# Between looks. Output comes to a bucket a second or two after it was printed; every look is billed there.
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
        self.told = 0
        self.reader: LogReader | None = None
        self.at_line_start = True
        # Whose output it is, where several are shown; then whole lines are.
        self.prefix = prefix
        self._rest = b""
        self.output = Output(whole_lines=bool(prefix))
        # What is done once, by whoever follows, before the output is shown.
        self.before: Callable[[], None] | None = None

    def follow(self) -> RunState:
        """Until the run is over; what was shown before is not shown again when it is called anew."""
        least_s, most_s = _NEAR_S if "://" not in self.workspace.url else _FAR_S
        wait_s, asked_at = least_s, time.monotonic()
        while True:
            try:
                moved = self.advance()
                if not moved and time.monotonic() > asked_at + _ASK_S:
                    asked_at = time.monotonic()
                    # A workspace that somebody deleted has no news for ever.
                    self.workspace.find(self.run)
            except StoreUnreachable as problem:
                self._narrate(f"{problem.message}; trying again")
                moved = False
                time.sleep(1.0)
            if self.story.state.ending and not moved:
                return self.story.state
            wait_s = least_s if moved else min(most_s, wait_s * 1.5)
            time.sleep(wait_s)

    def advance(self) -> bool:
        """Show what is new, in the order in which it happened as far as that can be known."""
        self.story.refresh()
        moved = self._read_logs()
        for event in self.story.events[self.told :]:
            self.told += 1
            if isinstance(event, ev.Started):
                self._read_logs()
                self.reader = LogReader(self.workspace.bucket, self.run, event.attempt)
            elif isinstance(event, ev.Stopped | ev.Lost | ev.Finished):
                self._read_logs()
                if not self.story.state.attempts[event.attempt - 1].started_at:
                    self._show_early(event.attempt)
                if self._rest:
                    self._show(b"\n")  # its last line, which had no end
            if not isinstance(event, _SILENT):
                self._narrate(self._line(event))
            moved = True
        # What was just started has printed by now, as a rule.
        return self._read_logs() or moved

    def _read_logs(self) -> bool:
        moved = False
        for body in self.reader.read() if self.reader else ():
            self._show(body)
            moved = True
        return moved

    def _show_early(self, attempt: int) -> None:
        """What the agent said of an attempt whose command never began. The one before it may still be talking."""
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
                return f"{sentence(event)}; back after {describe_s(max(0.0, event.at - since))}"
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
        """Until the machines are gone, too, so that nothing is left when we say that it is over; but for those that are
        kept for debugging on purpose."""
        deadline = time.monotonic() + within_s
        while (left := _left(self.story.refresh())) and time.monotonic() < deadline:
            time.sleep(0.05)
        state = self.story.state
        # Its secrets and its heartbeat go last; whoever looks right after us should find neither.
        while state.closed and self.workspace.heartbeat(self.run) and time.monotonic() < deadline:
            time.sleep(0.02)
        if left:
            click.echo("outlast: machines are still being deleted; `outlast supervise` sees to it", err=True)
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
        """The command's own code where it had the last word."""
        state = self.story.state
        if state.ending == "finished":
            return 0
        if state.ending == "cancelled":
            return RunCancelled.exit_code
        if state.limit is not None:
            return OverLimit.exit_code
        return state.exit_code or RunFailed.exit_code


def _left(state: RunState) -> bool:
    """Is a machine left that is to be deleted at once?"""
    return any(not (a.released or a.keep_s) for a in state.attempts)
