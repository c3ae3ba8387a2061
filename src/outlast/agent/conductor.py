"""The order of effects of one attempt, from the boot to its last event: a state machine without IO.

Events and answers come in, effects go out (`effects.py`). The real agent and the simulation both run this code, so
that the simulation proves the order in which a real machine acts.
"""

from __future__ import annotations

import msgspec

from outlast.agent.attempt import Verdict, how_it_ended, verdict
from outlast.agent.effects import (
    AgentEvent,
    AttemptAborted,
    CommandExited,
    CommandHung,
    ExclusiveLost,
    NodeFailed,
    NoticeReceived,
    Performer,
    RunOver,
    Script,
    WarningReceived,
    do,
)
from outlast.agent.instance import Notice
from outlast.agent.joint_conductor import RESERVE_S, JointConductor, message_of, plain_verdict, verdict_of
from outlast.errors import OutlastError, StoreUnreachable
from outlast.runs.state import Checkpoint

# A command that must exit because it hung, or because the run is over, is killed after this time.
_EXIT_S = 10.0
# Limits for the work after the command's end, where no grace is running out.
_COMMIT_S = 300.0
_OUTPUTS_S = 1800.0
_FLUSH_S = 60.0
# An attempt ended by one of these may be kept for debugging.
_FAILURES = ("crashed", "killed", "hung")


class Conductor(JointConductor):
    """Conducts one attempt. `now` is a monotonic clock; `poll_s` the pause between two reads of the story."""

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
            why = f"the agent failed: {message_of(problem)}"
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
            raise AttemptAborted("this machine was restarted", plain_verdict("killed", "the machine was restarted"))
        if report.turn == "over":
            raise self._not_needed(report, f"attempt {self.number} is not needed: {report.why}")

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
            raise AttemptAborted(message_of(problem), plain_verdict("broken", message_of(problem))) from problem
        return code, resumed

    def _await_turn(self) -> Script[None]:
        """Handoff: wait for the noticed predecessor's last event, or for the end of its grace."""
        announced = False
        while True:
            yield from self._check_events()
            report = yield from do(Performer.read_turn)
            if report.turn == "over":
                raise self._not_needed(report, report.why or "this attempt is not needed any more")
            if report.turn == "mine" or (yield from do(Performer.predecessor_deadline_passed)):
                return
            if not announced:
                announced = True
                yield from do(Performer.announce_ready)
            # The predecessor commits while this machine waits: restore each checkpoint, so that the last one is quick.
            yield from do(Performer.restore)
            yield from self._check_events(wait_s=self.poll_s)

    # The command

    def _run(self, code: str, resumed: Checkpoint | None) -> Script[CommandExited | None]:
        """Start the command and follow it to its end; None if it could not be started."""
        yield from self._check_events()
        resumed = yield from self._join(code, resumed) if self.rank else self._lead(code, resumed)
        self.phase, self.started_at = "running", self.now()
        if why := (yield from do(Performer.start_command, resumed)):
            yield from do(Performer.stop_following, 0.0)
            yield from do(Performer.flush_logs, _FLUSH_S)
            exit_code = 126 if "Permission denied" in why else 127  # as a shell reports it
            permanent = yield from do(Performer.permanent_failure, exit_code, 0.0)
            result = plain_verdict("crashed", why) if permanent is None else msgspec.structs.replace(permanent, why=why)
            yield from self._append_end(result, exit_code=exit_code)
            return None
        while True:
            until = self.kill_at
            if self.leave_at is not None:
                until = min(self.leave_at, self.now() + self.poll_s)
            event = yield from do(Performer.next_event, until)
            if isinstance(event, CommandExited):
                return event
            yield from self._handle(event)

    def _handle(self, event: AgentEvent | None) -> Script[None]:
        """Handle one event while the command runs; None: its time is up."""
        if event is None and self.leave_at is not None:
            if self.now() >= self.leave_at or (yield from do(Performer.successor_ready)):
                yield from self._leave()
        elif event is None:
            self.kill_at = None
            yield from do(Performer.kill_command)
        elif isinstance(event, NoticeReceived):
            # After the cloud's notice no other one brings news: a second SIGTERM would make many programs abort.
            if self.notice is None or (self.notice.from_story and not event.notice.from_story):
                yield from self._take_notice(event.notice)
            elif not event.notice.from_story:
                yield from self._hurry(event.notice)
            elif event.notice.limit and self.leave_at is not None:
                yield from self._leave()
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
        elif isinstance(event, NodeFailed):
            if self.failed is None and event.end.outcome != "preempted":
                self.failed = event
                yield from do(Performer.log, f"node {event.rank}: {event.end.why}")
                yield from self._request_exit()
        elif isinstance(event, RunOver):
            self.over = event.why
            yield from do(Performer.log, event.why)
            yield from self._request_exit()

    def _take_notice(self, notice: Notice) -> Script[None]:
        """Pass the notice on, at once or when the command must save. At a limit no successor takes over."""
        self.notice, self.noticed_at = notice, self.now()
        # The machines of a distributed run leave together.
        alone = self.nodes == 1 and not notice.limit
        needed_s = (yield from do(Performer.saving_s, notice)) if alone else None
        end_at = self.noticed_at + notice.grace_s - _reserve_s(notice)
        if needed_s is not None and end_at - needed_s > self.now():
            # The successor boots while the command goes on.
            self.leave_at = end_at - needed_s
        else:
            # The command receives the notice first: it needs the grace most.
            yield from self._leave()
        yield from do(Performer.append_noticed, notice)
        yield from do(Performer.log, f"notice: {notice.why}, {notice.grace_s:.0f} s")

    def _leave(self) -> Script[None]:
        """Pass the notice to the command, with the rest of its grace."""
        assert self.notice is not None
        self.leave_at = None
        end_at = self.noticed_at + self.notice.grace_s
        rest = msgspec.structs.replace(self.notice, grace_s=max(0.0, end_at - self.now()))
        yield from do(Performer.write_notice_file, rest)
        # Many programs die of SIGTERM: commit their newest checkpoint first if that is quick.
        yield from do(Performer.commit_quickly, _reserve_s(rest))
        if self.failed is None:  # else it has the signal already
            yield from self._terminate()
        self.kill_at = end_at - _reserve_s(self.notice)

    def _hurry(self, notice: Notice) -> Script[None]:
        """Shorten the grace: the machine shuts down earlier than its first notice promised."""
        assert self.notice is not None
        left_s = self.noticed_at + self.notice.grace_s - self.now()
        if notice.grace_s >= left_s:
            return
        self.notice, self.noticed_at = msgspec.structs.replace(notice, why=self.notice.why), self.now()
        yield from do(Performer.log, f"notice: {notice.why}, {notice.grace_s:.0f} s")
        if self.leave_at is not None:
            yield from self._leave()
            return
        yield from do(Performer.write_notice_file, self.notice)
        if self.kill_at is not None:  # otherwise the command has been killed already
            self.kill_at = self.now() + notice.grace_s - _reserve_s(notice)

    def _request_exit(self) -> Script[None]:
        self.leave_at = None
        yield from self._terminate()
        kill_at = self.now() + _EXIT_S
        self.kill_at = kill_at if self.kill_at is None else min(self.kill_at, kill_at)

    def _terminate(self) -> Script[None]:
        handles = yield from do(Performer.send_sigterm)
        if handles is not None:
            self.signalled, self.handles_sigterm = True, handles

    # After the command

    def _conclude(self, exited: CommandExited) -> Script[None]:
        """Commit the last checkpoint, copy the outputs, append the end: in this order, so that the end is true."""
        self.phase = "leaving"
        yield from do(Performer.stop_following, self._time_left(_FLUSH_S))
        if self.over:
            yield from do(Performer.flush_logs, _EXIT_S)
            return  # the story accepts nothing more of this attempt
        others = 0
        if self.nodes > 1 and not self.rank:
            others = yield from self._await_nodes(exited)
            if self._is_over():
                return
        elif self.rank and exited.code:
            yield from self._await_notice()
            if self._is_over():
                return
        result = yield from self._verdict(exited)
        noticed = (self.notice is not None and self.leave_at is None) or self._left_with_peers()
        # A command that stopped together with its peers, before the notice reached this machine, received no signal.
        handled = self.handles_sigterm or (self.nodes > 1 and not self.signalled)
        ending = how_it_ended(exited.code, noticed=noticed, handles_sigterm=handled)
        unsaved = yield from do(Performer.commit_last, ending, exited.at, self._time_left(_COMMIT_S))
        outputs = yield from do(Performer.send_outputs, self._time_left(_OUTPUTS_S))
        if outputs.missing and result.finished:
            # Its results exist on this machine only, which is about to be deleted: that is not success.
            result = plain_verdict("broken", outputs.missing)
        yield from do(Performer.flush_logs, self._time_left(_FLUSH_S))
        keeps = result.outcome in _FAILURES and not result.finished
        keep_s = self.request.spec.limits.keep_on_failure_s if keeps else 0.0
        result = msgspec.structs.replace(result, ending=ending)
        sent = outputs.sent + others
        yield from self._append_end(result, exit_code=exited.code, outputs=sent, keep_s=keep_s, unsaved=unsaved)
        if self.rank:
            yield from self._await_over()
        elif keep_s:
            yield from do(Performer.keep_machine, keep_s)

    def _verdict(self, exited: CommandExited) -> Script[Verdict]:
        if self.exclusive_lost:
            return plain_verdict("preempted", self.exclusive_lost)
        if self.failed is not None and self.notice is None:
            return verdict_of(self.failed)
        done = yield from do(Performer.declared_done)
        # A command that had not received the notice yet, and succeeded, is finished.
        unaware = self.leave_at is not None and exited.code == 0
        result = verdict(exited.code, notice=None if unaware else self.notice, done=done, hung=bool(self.hung))
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
        if self.rank:
            yield from do(Performer.report_end, result, exit_code, outputs, result.ending == "cut", bool(unsaved))
        else:
            yield from do(Performer.append_end, result, exit_code, outputs, keep_s, unsaved)
        yield from do(Performer.log, f"ended: {'finished' if result.finished else result.why}")

    def _time_left(self, otherwise_s: float) -> float:
        """Return the time for the next effect: the rest of the grace, or `otherwise_s` without a notice."""
        if self.notice is None:
            return otherwise_s
        return max(0.5, self.noticed_at + self.notice.grace_s - self.now() - 1.0)


def _reserve_s(notice: Notice) -> float:
    return min(RESERVE_S, notice.grace_s / 4)
