"""Carries out one attempt on one machine, from the boot to the last word. Everything it learns goes to the story."""

from __future__ import annotations

import math
import os
import queue
import secrets as dice
import shutil
import threading
import time
from collections.abc import Callable

import msgspec

from outlast.agent import container, stores
from outlast.agent.attempt import Attempt, Verdict, hopeless, interrupted, verdict
from outlast.agent.code import fetch_code
from outlast.agent.company import Company
from outlast.agent.hang import watch_for_hang
from outlast.agent.instance import Instance, Notice
from outlast.agent.lives import mean_life_s
from outlast.agent.metrics import MetricsPump
from outlast.agent.output import Mask, OutputPump, Remarks, say
from outlast.agent.patience import patient
from outlast.agent.place import Place, environment_for, place_for, words_for
from outlast.agent.process import Command
from outlast.agent.save import Saver
from outlast.agent.watch import Exited, Fenced, Happening, Hung, Noticed, Over, Warned, Watch
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.workspace import logs, metrics
from outlast.workspace.checkpoints import restore
from outlast.workspace.record import CodeRecord
from outlast.workspace.state import Checkpoint
from outlast.workspace.workspace import Request, Workspace

# Before the power goes: enough to say `Stopped`, so that the successor need not wait for the deadline.
_RESERVE_S = 2.0
# A command that was told to leave because it hung or the run is over gets so long before it is killed.
_LEAVE_S = 10.0
_UNREACHABLE_S = 1800.0
# A store that is away while the machine gets ready, or when the last checkpoint is due, is waited for so long.
_PREPARE_S = 300.0


class Ended(Exception):
    """This attempt is over before its command could run; `result` is what the story shall say, None if nothing."""

    def __init__(self, why: str, result: Verdict | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.result = result


class Agent:
    """One attempt's conductor."""

    def __init__(self, workspace: Workspace, run: str, number: int, *, instance: Instance, home: str) -> None:
        self.workspace = workspace
        self.run = run
        self.number = number
        self.instance = instance
        self.home = home
        local_store = "://" not in workspace.url
        self.beat_s = 1.0 if local_store else 10.0
        self.flush_s = 0.2 if local_store else 2.0
        self.attempt = self._pen()
        self.watch = Watch(self._pen(), instance, beat_s=self.beat_s, unreachable_s=_UNREACHABLE_S)
        self.request: Request
        self.place: Place
        self.company: Company
        self.engine: container.Engine | None = None
        self.metrics: MetricsPump
        self.remarks = Remarks()
        self.noticed: Notice | None = None
        self.noticed_at = 0.0
        self.fenced = ""
        # The newest checkpoint that a restore was tried with.
        self.tried = ""

    def _pen(self) -> Attempt:
        return Attempt(
            self.workspace,
            self.run,
            self.number,
            clock=time.time,
            ids=lambda: dice.token_hex(8),
            persist=lambda act: patient(act, for_s=_UNREACHABLE_S, say=say, stubborn=True),
        )

    def carry_out(self) -> None:
        """The whole attempt. Returns when nothing is left to do on this machine."""
        self.watch.start()
        try:
            self.request = patient(lambda: self.workspace.request(self.run), for_s=_PREPARE_S, say=say)
            self._check_turn()
            saver, resumed, code = self._prepare()
            try:
                self._run_command(saver, resumed, code)
            finally:
                self.company.leave()
        except Ended as ended:
            say(ended.why)
            if ended.result is not None:
                self._write_log(1, self.remarks.take())  # there was no command, whose output would have brought them
                self.attempt.end(ended.result, exit_code=None)
        except BaseException as problem:
            # Our own bug, or nothing that we know: say so, or the supervisor can only say that a machine went off.
            self._confess(problem)
            raise
        finally:
            self.watch.stop()

    def _confess(self, problem: BaseException) -> None:
        if isinstance(problem, StoreUnreachable):
            return  # nobody to say it to; we have been patient, and the machine must go
        said = problem.message if isinstance(problem, OutlastError) else f"{type(problem).__name__}: {problem}"
        try:
            self.attempt.end(Verdict(finished=False, outcome="broken", why=f"the agent failed: {said}"), exit_code=None)
        except OutlastError as another:
            say(f"error: {another.message}")

    def _check_turn(self) -> None:
        if patient(self.attempt.turn, for_s=_PREPARE_S, say=say) == "over":
            mine = self.attempt.mine
            if mine is not None and mine.phase in ("started", "noticed") and self.attempt.story.state.alive:
                # The machine was stopped and started again under our feet: what ran here is gone.
                raise Ended("this machine was restarted", Verdict(finished=False, outcome="killed", why="restarted"))
            raise Ended(f"attempt {self.number} of {self.run} is not wanted: {self.attempt.over()}")

    # Before the start

    def _prepare(self) -> tuple[Saver, Checkpoint | None, str]:
        try:
            self.place = place_for(self.request, self.home, cache=self.instance.attribute("outlast-cache"))
            self.company = Company(self._pen(), self.request, instance=self.instance, place=self.place)
            patient(self.company.join, for_s=_PREPARE_S, say=say)
            record = patient(self._fetch, for_s=_PREPARE_S, say=say)
            self.engine = container.engine_for(self.request, self._note)
            saver = Saver(self._pen(), place=self.place, rule=self.request.spec.checkpoint, say=self._remark)
            restored = self._restore(saver, None)
            restored = self._await_turn(saver, restored)
        except container.Impossible as problem:
            raise Ended(problem.message, hopeless(problem)) from problem
        except (OutlastError, OSError) as problem:
            message = problem.message if isinstance(problem, OutlastError) else str(problem)
            raise Ended(message, Verdict(finished=False, outcome="broken", why=message)) from problem
        return saver, restored, record.commit or record.sha256

    def _fetch(self) -> CodeRecord:
        """Code and data. May be repeated."""
        self.watch.phase = "fetching"
        shutil.rmtree(self.place.code, ignore_errors=True)
        record = fetch_code(self.workspace.bucket, self.request.code, self.place.code)
        self.place.make()
        stores.bring(self.request, self.place, self.instance, self._note)
        return record

    def _note(self, text: str) -> None:
        self.watch.note = text
        say(text)

    def _remark(self, text: str) -> None:
        """To the serial console, which goes with the machine, and to the log of the run, where its owner looks."""
        say(text)
        self.remarks.add(text)

    def _restore(self, saver: Saver, have: Checkpoint | None) -> Checkpoint | None:
        """The newest good checkpoint into its folder, unless it is there already."""
        candidates = patient(self.attempt.checkpoints, for_s=_PREPARE_S, say=say)
        if not candidates or candidates[0].id == self.tried:
            return have
        manifest, problems = patient(
            lambda: restore(self.workspace.bucket, self.run, candidates, self.place.checkpoints, names=saver.names),
            for_s=_PREPARE_S,
            say=say,
        )
        # Of the newest, even if it did not hold: it will not hold the next time either.
        self.tried = candidates[0].id
        for problem in problems:
            self._remark(problem)
        if manifest is None:
            return have
        self.place.make()  # the outputs may be inside of what was replaced
        saver.restored(manifest)
        return next(c for c in candidates if c.id == manifest.checkpoint)

    def _await_turn(self, saver: Saver, restored: Checkpoint | None) -> Checkpoint | None:
        """Handoff: wait until the noticed predecessor has said its last word, or its time is up."""
        self.watch.phase = "waiting"
        while True:
            self._check_happenings()
            turn = patient(self.attempt.turn, for_s=_PREPARE_S, say=say)
            if turn == "over":
                raise Ended(self.attempt.over() or "not wanted any more")
            if turn == "mine" or patient(self.attempt.predecessor_deadline_passed, for_s=_PREPARE_S, say=say):
                return self._restore(saver, restored)
            restored = self._restore(saver, restored)
            time.sleep(0.05 if self.beat_s <= 1 else 1.0)

    def _check_happenings(self) -> None:
        while not self.watch.happenings.empty():
            happening = self.watch.happenings.get()
            if isinstance(happening, Noticed):
                self.attempt.notice(happening.notice)
                result = interrupted(happening.notice, "it had not started yet")
                raise Ended(result.why, result)
            if isinstance(happening, Warned):
                self.attempt.warn(happening.notice)
            if isinstance(happening, Over):
                raise Ended(happening.why)

    # The command

    def _run_command(self, saver: Saver, resumed: Checkpoint | None, code: str) -> None:
        secrets = self._secrets()
        self._check_happenings()
        self.company.acquire(self.watch, self._check_happenings, self._note)
        if not self.attempt.start(resumed=resumed, code=code):
            raise Ended(self.attempt.over() or "not wanted any more")
        # A predecessor whose time was up may have committed once more until this very `Started`, which fenced it.
        resumed = self._restore(saver, resumed)
        if self.company.lost:
            raise Ended(self.company.lost, Verdict(finished=False, outcome="preempted", why=self.company.lost))
        self.watch.phase = "running"
        words = words_for(self.request.spec)
        try:
            command = container.command_for(
                self.engine, self.request, self.place, self.number, words, self._environment(secrets, resumed)
            )
        except (OSError, ValueError) as problem:
            why = f"cannot run `{words[0]}`: {problem.strerror if isinstance(problem, OSError) else problem}"
            self.remarks.add(why)
            self._write_log(1, self.remarks.take())
            self.attempt.end(Verdict(finished=False, outcome="crashed", why=why), exit_code=127)
            return
        mask = Mask(stores.hidden(secrets, self.request.spec))
        pump = OutputPump(command.output, self._write_log, mask=mask, every_s=self.flush_s, remarks=self.remarks)
        saver.follow(command)
        self.metrics = MetricsPump(self.place.metrics_file, self._write_metrics, every_s=max(1.0, self.flush_s))
        self.watch.progress = lambda: saver.step if self.metrics.step is None else self.metrics.step
        watch_for_hang(self.watch, self.request.spec, command=command, pump=pump, saver=saver, metrics=self.metrics)
        self.company.begin(self.watch, self.place.code, kill=lambda: saver.cut_short(command))
        self.watch.spawn(lambda: self.watch.happenings.put(Exited(command.wait(), time.time())))
        self._until_exit(command, pump, saver)

    def _environment(self, secrets: dict[str, str], resumed: Checkpoint | None) -> dict[str, str]:
        environment = environment_for(
            self.request,
            self.place,
            attempt=self.number,
            resumed=resumed is not None,
            machine=os.environ,
            secrets=secrets,
            local=self.instance.attribute("outlast-cloud") == "local",
            mean_life_s=mean_life_s(self.attempt.story.state),
        )
        return environment | self.company.environment()

    def _secrets(self) -> dict[str, str]:
        spec = self.request.spec
        if not spec.secrets and not spec.databases:
            return {}
        try:
            values = self.instance.secrets(self.instance.attribute("outlast-secrets"))
            return stores.with_certificates(values, spec, os.path.dirname(self.place.notice_file))
        except OSError as problem:
            why = f"secrets: {problem}"
            raise Ended(why, Verdict(finished=False, outcome="broken", why=why)) from problem

    def _write_log(self, number: int, body: bytes) -> None:
        if body:
            self._insist(lambda: logs.write_piece(self.workspace.bucket, self.run, self.number, number, body))

    def _write_metrics(self, number: int, body: bytes) -> None:
        self._insist(lambda: metrics.write_piece(self.workspace.bucket, self.run, self.number, number, body))

    def _insist(self, act: Callable[[], None]) -> None:
        patient(act, for_s=_UNREACHABLE_S, say=say, stubborn=True)

    def _until_exit(self, command: Command, pump: OutputPump, saver: Saver) -> None:
        hung = ""
        over = ""
        kill_at = 0.0
        while True:
            happening = self._next_happening(kill_at)
            if happening is None:
                saver.cut_short(command)
                kill_at = 0.0
            elif isinstance(happening, Exited):
                break
            elif isinstance(happening, Noticed) and not (self.noticed and happening.notice.told):
                kill_at = self._take_notice(happening.notice, command, saver)
            elif isinstance(happening, Warned):
                self._take_warning(happening.notice, command, saver)
            elif isinstance(happening, Fenced):
                self.fenced = happening.why
                say(self.fenced)
            elif isinstance(happening, Hung):
                hung = happening.why
                command.ask_to_leave()
                kill_at = min(kill_at or math.inf, time.monotonic() + _LEAVE_S)
            elif isinstance(happening, Over):
                over = happening.why
                say(over)
                command.ask_to_leave()
                kill_at = min(kill_at or math.inf, time.monotonic() + _LEAVE_S)
        self._conclude(happening, command, pump, saver, hung=hung, over=over)

    def _next_happening(self, kill_at: float) -> Happening | None:
        try:
            return self.watch.happenings.get(timeout=max(0.0, kill_at - time.monotonic()) if kill_at else None)
        except queue.Empty:
            return None

    def _take_notice(self, notice: Notice, command: Command, saver: Saver) -> float:
        """Tell the command first: its seconds are the dearest. When to kill it, by the monotonic clock."""
        self.noticed, self.noticed_at = notice, time.monotonic()
        try:
            self.place.put_notice(notice.why, notice.grace_s, now=time.time())
        except OSError as problem:
            say(f"notice file: {problem}")  # a full disk; the signal still says it
        # In a thread: a store that does not answer must not use up the seconds that the command needs.
        quick = threading.Thread(target=saver.commit_quickly, args=(command,), daemon=True)
        quick.start()
        quick.join(min(_RESERVE_S, notice.grace_s / 4))
        saver.suspect(command)
        command.ask_to_leave()
        self.attempt.notice(notice)
        say(f"notice: {notice.why}, {notice.grace_s:.0f} s")
        reserve_s = min(_RESERVE_S, notice.grace_s / 4)
        return self.noticed_at + notice.grace_s - reserve_s

    def _take_warning(self, notice: Notice, command: Command, saver: Saver) -> None:
        """What is there is saved now, so that little is lost if there is to be no notice; the command goes on."""
        say(f"warning: {notice.why}")
        threading.Thread(target=saver.commit_quickly, args=(command,), daemon=True).start()
        self.attempt.warn(notice)

    # After the command

    def _conclude(
        self, exited: Exited, command: Command, pump: OutputPump, saver: Saver, *, hung: str, over: str
    ) -> None:
        """The last checkpoint, the outputs, the last word; in this order, so that what is said is also there."""
        self.watch.phase = "leaving"
        self.company.leave()
        self.metrics.stop()
        pump.finish(within_s=self._time_left(60.0))
        saver.stop()
        if over:
            self.metrics.finish(within_s=_LEAVE_S)
            return  # nothing that we could say would be heard
        result = verdict(
            exited.code,
            notice=self.noticed,
            done=os.path.exists(self.place.done_file),
            hung=bool(hung),
        )
        by_signal = exited.code > 128
        orderly = exited.code == 0 or (self.noticed is not None and not by_signal)
        saver.commit_last(orderly=orderly, died_at=exited.at, within_s=self._time_left(_PREPARE_S))
        if self.fenced:
            result = Verdict(finished=False, outcome="preempted", why=self.fenced)
        elif hung:
            result = msgspec.structs.replace(result, why=f"it hung: {hung}")
        elif result.outcome in ("crashed", "killed") and not result.finished:
            told = stores.circumstances(self.place, stores.mounts(self.request, self.instance))
            result = msgspec.structs.replace(result, why=result.why + told)
        outputs, missing = self._send_outputs(saver)
        pump.write_remarks()
        if missing and result.finished:
            # Its results are on this machine alone, which is about to go: that is no success.
            result = Verdict(finished=False, outcome="broken", why=missing)
        self.metrics.finish(within_s=self._time_left(60.0))
        keep_s = self.request.spec.limits.keep_on_failure_s if result.outcome in ("crashed", "killed", "hung") else 0.0
        self.attempt.end(result, exit_code=exited.code, outputs=outputs, keep_s=0.0 if result.finished else keep_s)
        say(f"ended: {'finished' if result.finished else result.why}")
        self.watch.stop()
        if keep_s and not result.finished:
            say(f"kept for debugging for {keep_s:.0f} s")
            time.sleep(keep_s)

    def _time_left(self, otherwise_s: float) -> float:
        if self.noticed is None:
            return otherwise_s
        return max(0.5, self.noticed_at + self.noticed.grace_s - time.monotonic() - 1.0)

    def _send_outputs(self, saver: Saver) -> tuple[int, str]:
        """How many were copied, and why the others were not. Files that nobody could copy are named in the log."""
        try:
            count = patient(saver.send_outputs, for_s=self._time_left(_UNREACHABLE_S), say=say, stubborn=True)
        except (WorkspaceError, OSError) as problem:
            say(f"outputs could not be copied: {problem}")
            return 0, f"its outputs could not be copied: {problem}"
        for path, why in saver.unsent.items():
            self._remark(f"the output `{path}` was not copied: {why}")
        return count - len(saver.unsent), ""
