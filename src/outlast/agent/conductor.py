"""The order of effects of one attempt, from the boot to its last event: a state machine without IO.

Events and answers come in, effects go out (`effects.py`). The real agent and the simulation both run this code, so
that the simulation proves the order in which a real machine acts.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlast.agent.attempt import Verdict, how_it_ended, interrupted, verdict
from outlast.agent.effects import (
    AgentEvent,
    AttemptAborted,
    CommandExited,
    CommandHung,
    ExclusiveLost,
    NoticeReceived,
    Performer,
    RunOver,
    Script,
    WarningReceived,
    do,
)
from outlast.agent.instance import Notice
from outlast.errors import OutlastError, StoreUnreachable
from outlast.runs.events import Outcome
from outlast.runs.state import Checkpoint
from outlast.workspace import RunRequest

# Before the power cut: enough to append `Stopped`, so that the successor need not wait for the deadline.
_RESERVE_S = 2.0
# A command that must exit because it hung, or because the run is over, is killed after this time.
_EXIT_S = 10.0
# A lock that another run holds is polled less often than the story.
_EXCLUSIVE_POLLS = 5
# Limits for the work after the command's end, where no grace is running out.
_COMMIT_S = 300.0
_OUTPUTS_S = 1800.0
_FLUSH_S = 60.0
# An attempt ended by one of these may be kept for debugging.
_FAILURES = ("crashed", "killed", "hung")


class Conductor:
    """Conducts one attempt. `now` is a monotonic clock; `poll_s` the pause between two reads of the story."""

    def __init__(self, *, number: int, now: Callable[[], float], poll_s: float) -> None:
        self.number = number
        self.now = now
        self.poll_s = poll_s
        # For the heartbeat: booting, fetching, waiting, running, leaving.
        self.phase = "booting"
        self.request: RunRequest
        self.notice: Notice | None = None
        self.noticed_at = 0.0
        # When the command started.
        self.started_at = 0.0
        # Whether the program handles SIGTERM itself; known once it was sent.
        self.handles_sigterm = False
        # When the command is killed unless it has exited by then.
        self.kill_at: float | None = None
        # Why the command had to exit, where there was no notice.
        self.hung = self.over = self.exclusive_lost = ""

    def conduct(self) -> Script[None]:
        """Conduct the attempt from the first check to its last event."""
        try:
            try:
                self.request = yield from do(Performer.read_request)
                yield from self._check_first_boot()
                code, resumed = yield from self._prepare()
                exited = yield from self._run(code, resumed)
            except AttemptAborted as aborted:
                yield from self._abort(aborted)
                return
            if exited is not None:
                yield from self._conclude(exited)
        except StoreUnreachable:
            raise  # the story is unreachable, too: the attempt ends without a last event
        except (OutlastError, OSError) as problem:
            why = f"the agent failed: {_message(problem)}"
            yield from self._append_end(Verdict(finished=False, outcome="broken", why=why))

    def _abort(self, aborted: AttemptAborted) -> Script[None]:
        yield from do(Performer.log, aborted.why)
        yield from do(Performer.stop_following, 0.0)
        if aborted.verdict is not None:
            yield from do(Performer.flush_logs, _FLUSH_S)
            yield from self._append_end(aborted.verdict)

    # Before the start

    def _check_first_boot(self) -> Script[None]:
        report = yield from do(Performer.read_turn)
        if report.restarted:
            # The cloud stopped and started this machine: the command that ran here is gone.
            raise AttemptAborted("this machine was restarted", _verdict("killed", "the machine was restarted"))
        if report.turn == "over":
            raise AttemptAborted(f"attempt {self.number} is not needed: {report.why}")

    def _prepare(self) -> Script[tuple[str, Checkpoint | None]]:
        """Fetch everything and wait for the turn. Returns the code's identity and the restored checkpoint."""
        try:
            self.phase = "fetching"
            code = yield from do(Performer.prepare)
            resumed = yield from do(Performer.restore)
            self.phase = "waiting"
            yield from self._await_turn()
            resumed = yield from do(Performer.restore)
            yield from do(Performer.read_secrets)
        except (OutlastError, OSError) as problem:
            raise AttemptAborted(_message(problem), _verdict("broken", _message(problem))) from problem
        return code, resumed

    def _await_turn(self) -> Script[None]:
        """Handoff: wait for the noticed predecessor's last event, or for the end of its grace."""
        while True:
            yield from self._check_events()
            report = yield from do(Performer.read_turn)
            if report.turn == "over":
                raise AttemptAborted(report.why or "this attempt is not needed any more")
            if report.turn == "mine" or (yield from do(Performer.predecessor_deadline_passed)):
                return
            # The predecessor commits while this machine waits: restore each checkpoint, so that the last one is quick.
            yield from do(Performer.restore)
            yield from self._check_events(wait_s=self.poll_s)

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
            if isinstance(event, ExclusiveLost):
                raise AttemptAborted(event.why, _verdict("preempted", event.why))

    # The command

    def _run(self, code: str, resumed: Checkpoint | None) -> Script[CommandExited | None]:
        """Start the command and follow it to its end; None if it could not be started."""
        yield from self._check_events()
        while not (yield from do(Performer.try_exclusive)):
            yield from self._check_events(wait_s=_EXCLUSIVE_POLLS * self.poll_s)
        if why := (yield from do(Performer.append_started, resumed, code)):
            raise AttemptAborted(why)
        # A predecessor whose grace was over could commit until this very `Started`, which fenced it.
        resumed = yield from do(Performer.restore)
        self.phase, self.started_at = "running", self.now()
        if why := (yield from do(Performer.start_command, resumed)):
            yield from do(Performer.stop_following, 0.0)
            yield from do(Performer.flush_logs, _FLUSH_S)
            permanent = yield from do(Performer.permanent_failure, 127, 0.0)
            result = _verdict("crashed", why) if permanent is None else msgspec.structs.replace(permanent, why=why)
            yield from self._append_end(result, exit_code=127)
            return None
        while True:
            event = yield from do(Performer.next_event, self.kill_at)
            if isinstance(event, CommandExited):
                return event
            yield from self._handle(event)

    def _handle(self, event: AgentEvent | None) -> Script[None]:
        """Handle one event while the command runs; None: its time is up."""
        if event is None:
            self.kill_at = None
            yield from do(Performer.kill_command)
        elif isinstance(event, NoticeReceived):
            # After the cloud's notice, one from the story brings no news.
            if self.notice is None or not event.notice.from_story:
                yield from self._take_notice(event.notice)
        elif isinstance(event, WarningReceived):
            # Commit now, so that little is lost if no notice follows; the command continues.
            yield from do(Performer.commit_quickly, 0.0)
            yield from do(Performer.append_warned, event.notice)
        elif isinstance(event, ExclusiveLost):
            self.exclusive_lost = event.why
            yield from do(Performer.log, event.why)
        elif isinstance(event, CommandHung):
            self.hung = event.why
            yield from self._request_exit()
        elif isinstance(event, RunOver):
            self.over = event.why
            yield from do(Performer.log, event.why)
            yield from self._request_exit()

    def _take_notice(self, notice: Notice) -> Script[None]:
        """Pass the notice on. The command receives it first: it needs the grace most."""
        self.notice, self.noticed_at = notice, self.now()
        reserve_s = min(_RESERVE_S, notice.grace_s / 4)
        yield from do(Performer.write_notice_file, notice)
        # Many programs die of SIGTERM: commit their newest checkpoint first if that is quick.
        yield from do(Performer.commit_quickly, reserve_s)
        self.handles_sigterm = yield from do(Performer.send_sigterm)
        yield from do(Performer.append_noticed, notice)
        yield from do(Performer.log, f"notice: {notice.why}, {notice.grace_s:.0f} s")
        self.kill_at = self.noticed_at + notice.grace_s - reserve_s

    def _request_exit(self) -> Script[None]:
        self.handles_sigterm = yield from do(Performer.send_sigterm)
        kill_at = self.now() + _EXIT_S
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    # After the command

    def _conclude(self, exited: CommandExited) -> Script[None]:
        """Commit the last checkpoint, copy the outputs, append the end: in this order, so that the end is true."""
        self.phase = "leaving"
        yield from do(Performer.stop_following, self._time_left(_FLUSH_S))
        if self.over:
            yield from do(Performer.flush_logs, _EXIT_S)
            return  # the story accepts nothing more of this attempt
        result = yield from self._verdict(exited)
        ending = how_it_ended(exited.code, noticed=self.notice is not None, handles_sigterm=self.handles_sigterm)
        unsaved = yield from do(Performer.commit_last, ending, exited.at, self._time_left(_COMMIT_S))
        outputs = yield from do(Performer.send_outputs, self._time_left(_OUTPUTS_S))
        if outputs.missing and result.finished:
            # Its results exist on this machine only, which is about to be deleted: that is not success.
            result = _verdict("broken", outputs.missing)
        yield from do(Performer.flush_logs, self._time_left(_FLUSH_S))
        keeps = result.outcome in _FAILURES and not result.finished
        keep_s = self.request.spec.limits.keep_on_failure_s if keeps else 0.0
        yield from self._append_end(result, exit_code=exited.code, outputs=outputs.sent, keep_s=keep_s, unsaved=unsaved)
        if keep_s:
            yield from do(Performer.keep_machine, keep_s)

    def _verdict(self, exited: CommandExited) -> Script[Verdict]:
        if self.exclusive_lost:
            return _verdict("preempted", self.exclusive_lost)
        done = yield from do(Performer.declared_done)
        result = verdict(exited.code, notice=self.notice, done=done, hung=bool(self.hung))
        if result.outcome == "hung":
            return msgspec.structs.replace(result, why=f"it hung: {self.hung}")
        if result.outcome in _FAILURES and not result.finished:
            permanent = yield from do(Performer.permanent_failure, exited.code, self.now() - self.started_at)
            if permanent is not None:
                return permanent
            context = yield from do(Performer.failure_context)
            return msgspec.structs.replace(result, why=result.why + context)
        return result

    def _append_end(
        self, result: Verdict, *, exit_code: int | None = None, outputs: int = 0, keep_s: float = 0.0, unsaved: str = ""
    ) -> Script[None]:
        yield from do(Performer.append_end, result, exit_code, outputs, keep_s, unsaved)
        yield from do(Performer.log, f"ended: {'finished' if result.finished else result.why}")

    def _time_left(self, otherwise_s: float) -> float:
        """Return the time for the next effect: the rest of the grace, or `otherwise_s` without a notice."""
        if self.notice is None:
            return otherwise_s
        return max(0.5, self.noticed_at + self.notice.grace_s - self.now() - 1.0)


def _verdict(outcome: Outcome, why: str) -> Verdict:
    return Verdict(finished=False, outcome=outcome, why=why)


def _message(problem: Exception) -> str:
    return problem.message if isinstance(problem, OutlastError) else str(problem)
