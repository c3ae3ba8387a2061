"""The part of the conductor that several machines share: waiting for the start, for each other, and for the end."""

from __future__ import annotations

from collections.abc import Callable

from outlast.agent.attempt import Verdict, interrupted
from outlast.agent.effects import (
    AttemptAborted,
    CommandExited,
    ExclusiveLost,
    NodeFailed,
    NoticeReceived,
    Performer,
    RunOver,
    Script,
    TurnReport,
    WarningReceived,
    do,
)
from outlast.agent.instance import Notice
from outlast.errors import OutlastError
from outlast.runs.events import Outcome
from outlast.runs.state import Checkpoint
from outlast.workspace import RunRequest

# Before the power cut: enough to append `Stopped`, so that the successor need not wait for the deadline.
RESERVE_S = 2.0
# A lock that another run holds is polled less often than the story.
_EXCLUSIVE_POLLS = 5
# How long a failed command waits for the notice of another machine.
_NOTICE_POLLS = 8


class JointConductor:
    """Conducts one attempt together with other machines, of which there may be none."""

    def __init__(self, *, number: int, now: Callable[[], float], poll_s: float, rank: int = 0, nodes: int = 1) -> None:
        self.number = number
        # Of several machines the one with rank 0 leads: it alone appends start and end of the attempt.
        self.rank = rank
        self.nodes = nodes
        self.now = now
        self.poll_s = poll_s
        # For the heartbeat: booting, fetching, waiting, running, leaving.
        self.phase = "booting"
        self.request: RunRequest
        self.notice: Notice | None = None
        self.noticed_at = 0.0
        # While the command goes on after a notice: when it must save at the latest.
        self.leave_at: float | None = None
        # When the command started.
        self.started_at = 0.0
        # Whether the program handles SIGTERM itself; known once it was sent.
        self.handles_sigterm = False
        self.signalled = False
        # When the command is killed unless it has exited by then.
        self.kill_at: float | None = None
        # Why the command had to exit, where there was no notice.
        self.hung = self.over = self.exclusive_lost = ""
        # The first failure on another machine.
        self.failed: NodeFailed | None = None

    def _not_needed(self, report: TurnReport, why: str) -> AttemptAborted:
        if report.noticed and not self.rank:
            result = plain_verdict("preempted", "another node was lost before the start")
            return AttemptAborted(result.why, result)
        return AttemptAborted(why)

    def _check_events(self, wait_s: float = 0.0) -> Script[None]:
        """Handle the events that came before the command runs; wait up to `wait_s` for the first."""
        until = self.now() + wait_s
        while (event := (yield from do(Performer.next_event, until))) is not None:
            until = self.now()
            if isinstance(event, NoticeReceived):
                yield from do(Performer.append_noticed, event.notice)
                result = interrupted(event.notice, "it had not started yet")
                raise AttemptAborted(result.why, result)
            if isinstance(event, WarningReceived):
                yield from do(Performer.append_warned, event.notice)
            if isinstance(event, RunOver):
                raise AttemptAborted(event.why)
            if isinstance(event, NodeFailed) and event.end.outcome != "preempted":
                result = verdict_of(event)
                raise AttemptAborted(result.why, result)
            if isinstance(event, ExclusiveLost):
                raise AttemptAborted(event.why, plain_verdict("preempted", event.why))

    def _lead(self, code: str, resumed: Checkpoint | None) -> Script[Checkpoint | None]:
        """Append `Started` when all machines are ready. Returns the checkpoint to resume from."""
        while not (yield from do(Performer.try_exclusive)):
            yield from self._check_events(wait_s=_EXCLUSIVE_POLLS * self.poll_s)
        if self.nodes > 1:
            yield from do(Performer.report_ready)
            while not (yield from do(Performer.all_ready)):
                yield from self._check_events(wait_s=self.poll_s)
            # Before it was ready, another node may have found the newest checkpoint damaged.
            resumed = yield from do(Performer.restore)
        if why := (yield from do(Performer.append_started, resumed, code)):
            raise AttemptAborted(why)
        # A predecessor whose grace was over could commit until this very `Started`, which fenced it.
        resumed = yield from do(Performer.restore)
        if self.nodes > 1:
            yield from do(Performer.report_start, resumed)
        return resumed

    def _join(self, _code: str, _resumed: Checkpoint | None) -> Script[Checkpoint | None]:
        """Wait for the leader's start, and restore the checkpoint that it names."""
        yield from do(Performer.report_ready)
        while (start := (yield from do(Performer.read_start))) is None:
            yield from self._check_events(wait_s=self.poll_s)
        try:
            return (yield from do(Performer.restore_exactly, start.checkpoint))
        except (OutlastError, OSError) as problem:
            raise AttemptAborted(message_of(problem), plain_verdict("broken", message_of(problem))) from problem

    def _await_nodes(self, exited: CommandExited) -> Script[int]:
        """Wait for the other machines, for their files and for the reason of a failure. Returns their outputs.

        A failure right after the loss of a peer is a preemption: it counts as a crash once all others are seen alive.
        """
        since = self.now()
        while True:
            report = yield from do(Performer.read_nodes, since)
            failed = exited.code != 0 or bool(self.hung) or self.failed is not None
            if report.ended or self._is_over():
                # One that was preempted may have stopped all others before its notice reached this machine.
                self.failed = next(iter(report.failed), None)
                return report.outputs
            if self.notice is not None:
                left_s = self.noticed_at + self.notice.grace_s - self.now()
                if not report.responsive or left_s < max(RESERVE_S, self.notice.grace_s / 4):
                    return report.outputs
            elif failed and report.seen:
                return report.outputs
            event = yield from do(Performer.next_event, self.now() + self.poll_s)
            if isinstance(event, NoticeReceived) and self.notice is None:
                self.notice, self.noticed_at = event.notice, self.now()
                yield from do(Performer.append_noticed, event.notice)
            elif isinstance(event, RunOver):
                self.over = event.why
            elif isinstance(event, NodeFailed) and event.end.outcome != "preempted":
                self.failed = self.failed or event

    def _await_notice(self) -> Script[None]:
        """Wait a moment for the notice of a peer, which may have stopped all ranks before it reached this machine."""
        until = self.now() + max(1.0, _NOTICE_POLLS * self.poll_s)
        while self.notice is None and not self._is_over() and self.now() < until:
            event = yield from do(Performer.next_event, until)
            if isinstance(event, NoticeReceived):
                self.notice, self.noticed_at = event.notice, self.now()
                yield from do(Performer.append_noticed, event.notice)
            elif isinstance(event, RunOver):
                self.over = event.why

    def _left_with_peers(self) -> bool:
        """Return whether a preempted machine stopped this command, too: its notice may not have reached this one."""
        return self.nodes > 1 and self.failed is not None and self.failed.end.outcome == "preempted"

    def _is_over(self) -> bool:
        return bool(self.over)

    def _await_over(self) -> Script[None]:
        """Wait until the leader has ended the attempt; this machine may serve the next one."""
        while True:
            event = yield from do(Performer.next_event, None)
            if isinstance(event, RunOver):
                return
            if isinstance(event, NoticeReceived):
                yield from do(Performer.append_noticed, event.notice)


def verdict_of(failed: NodeFailed) -> Verdict:
    """Return the verdict on an attempt that failed on another machine."""
    end = failed.end
    return Verdict(
        finished=False,
        outcome=end.outcome,
        why=f"node {failed.rank}: {end.why}",
        hopeless=end.hopeless,
        hint=end.hint,
    )


def plain_verdict(outcome: Outcome, why: str) -> Verdict:
    return Verdict(finished=False, outcome=outcome, why=why)


def message_of(problem: Exception) -> str:
    return problem.message if isinstance(problem, OutlastError) else str(problem)
