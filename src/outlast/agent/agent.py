"""Performs the conductor's effects on a real machine: processes, threads, files and the workspace."""

from __future__ import annotations

import os
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from outlast.agent import container, mounts
from outlast.agent.attempt import AttemptWriter, Ending, Verdict, hopeless, mean_life_s
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.code import fetch_code
from outlast.agent.conductor import Conductor
from outlast.agent.effects import AgentEvent, AttemptAborted, CommandExited, OutputsReport, TurnReport, drive
from outlast.agent.environment import machine_installer, store_environment
from outlast.agent.gpus import GpuMissing, check_gpus
from outlast.agent.group_member import GroupMember
from outlast.agent.instance import Instance, Notice
from outlast.agent.metrics import MetricsPump
from outlast.agent.output import Mask, OutputPump, Remarks, report
from outlast.agent.paths import AttemptPaths, argv_for, environment_for, paths_for
from outlast.agent.permanent import permanent_failure
from outlast.agent.process import Command
from outlast.agent.retry import retry
from outlast.agent.watch import AgentWatch
from outlast.clouds.traits import traits_of
from outlast.code.record import CodeRecord
from outlast.environments.install import EnvironmentFailed
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.runs import logs, metrics
from outlast.runs.checkpoints import restore
from outlast.runs.state import Checkpoint
from outlast.workspace import RunRequest, Workspace

_UNREACHABLE_S = 1800.0
# How long a store may be unreachable while the machine prepares.
_PREPARE_S = 300.0

T = TypeVar("T")


class Agent:
    """One attempt on this machine: the conductor's performer (`effects.Performer` has the contract of each method)."""

    def __init__(self, workspace: Workspace, run: str, number: int, *, instance: Instance, home: str) -> None:
        self.workspace = workspace
        self.run = run
        self.number = number
        self.instance = instance
        self.home = home
        remote = workspace.store.remote
        self.flush_s = 2.0 if remote else 0.2
        self.conductor = Conductor(number=number, now=time.monotonic, poll_s=1.0 if remote else 0.05)
        self.attempt = self._attempt_writer()
        beat_s = workspace.store.heartbeat_s
        self.watch = AgentWatch(self._attempt_writer(), instance, beat_s=beat_s, unreachable_s=_UNREACHABLE_S)
        self.watch.phase = lambda: self.conductor.phase
        self.request: RunRequest
        self.paths: AttemptPaths
        self.checkpointer: Checkpointer
        self.group_member: GroupMember | None = None
        self.engine: container.Engine | None = None
        self.secrets: dict[str, str] = {}
        self.environment_path = ""
        self.command: Command | None = None
        self.output: OutputPump | None = None
        self.metrics: MetricsPump | None = None
        self.remarks = Remarks()
        # The checkpoint in the folder, and the newest one that was tried.
        self.resumed: Checkpoint | None = None
        self.tried = ""

    def _attempt_writer(self) -> AttemptWriter:
        return AttemptWriter(
            self.workspace,
            self.run,
            self.number,
            clock=time.time,
            ids=lambda: secrets.token_hex(8),
            persist=lambda act: retry(act, for_s=_UNREACHABLE_S, report=report, stubborn=True),
        )

    def carry_out(self) -> None:
        """Carry out the attempt. Returns when this machine can be deleted."""
        self.watch.start()
        try:
            drive(self.conductor.conduct(), self)
        except StoreUnreachable:
            raise  # the story is unreachable, too
        except BaseException as problem:
            # A bug of the agent: without this event the supervisor could only report that the machine stopped.
            self._report_crash(problem)
            raise
        finally:
            self.watch.stop()
            if self.group_member is not None:
                self.group_member.leave()

    def _report_crash(self, problem: BaseException) -> None:
        why = f"the agent failed: {type(problem).__name__}: {problem}"
        try:
            self.attempt.end(Verdict(finished=False, outcome="broken", why=why), exit_code=None)
        except OutlastError as another:
            report(f"error: {another.message}")

    # Before the start

    def read_request(self) -> RunRequest:
        self.request = _with_retries(lambda: self.workspace.request(self.run))
        return self.request

    def read_turn(self) -> TurnReport:
        turn = _with_retries(self.attempt.turn)
        if turn != "over":
            return TurnReport(turn=turn)
        mine = self.attempt.mine
        ran_here = mine is not None and mine.phase in ("started", "noticed") and self.attempt.story.state.alive
        return TurnReport(turn=turn, why=_with_retries(self.attempt.over), restarted=ran_here)

    def prepare(self) -> str:
        self.paths = paths_for(self.request, self.home, cache=self.instance.attribute("outlast-cache"))
        self.group_member = GroupMember(self._attempt_writer(), self.request, instance=self.instance, paths=self.paths)
        _with_retries(self.group_member.join)
        record = _with_retries(self._fetch)
        self._install_environment()
        try:
            if self.request.spec.machine.gpus and traits_of(self.instance.attribute("outlast-cloud")).remote:
                check_gpus(self.request.spec.machine.gpus)
            self.engine = container.engine_for(self.request, self._note)
        except (container.ContainerUnavailable, GpuMissing) as problem:
            raise AttemptAborted(problem.message, hopeless(problem)) from problem
        rule = self.request.spec.checkpoint
        self.checkpointer = Checkpointer(self._attempt_writer(), paths=self.paths, rule=rule, report=self._log_remark)
        return record.commit or record.sha256

    def _fetch(self) -> CodeRecord:
        """Code and data. May be repeated."""
        shutil.rmtree(self.paths.code, ignore_errors=True)
        record = fetch_code(self.workspace.bucket, self.request.code, self.paths.code)
        self.paths.make()
        mounts.bring(self.request, self.paths, self.instance, self._note)
        return record

    def _install_environment(self) -> None:
        """Install the packages of the command. Raises AttemptAborted."""
        record = self.request.code.environment
        uv_url = self.instance.attribute("outlast-uv")
        if record is None or not uv_url:
            return
        bucket = self.workspace.bucket
        installer = machine_installer(bucket, record, home=self.home, uv_url=uv_url, report=self._note)
        try:
            self.environment_path = _with_retries(installer.install)
        except EnvironmentFailed as problem:
            if problem.permanent:
                raise AttemptAborted(problem.message, hopeless(problem)) from problem
            raise OSError(problem.message) from problem
        if installer.built:
            # Storing may take minutes, and the command need not wait for it.
            self.watch.spawn(lambda: store_environment(installer, report))

    def _note(self, text: str) -> None:
        self.watch.note = text
        report(text)

    def _log_remark(self, text: str) -> None:
        """Write to the serial console, which is deleted with the machine, and to the run's log."""
        report(text)
        self.remarks.add(text)

    def restore(self) -> Checkpoint | None:
        candidates = _with_retries(self.attempt.checkpoints)
        if not candidates or candidates[0].id == self.tried:
            return self.resumed
        bucket, folder, names = self.workspace.bucket, self.paths.checkpoints, self.checkpointer.scanner.names
        manifest, problems = _with_retries(lambda: restore(bucket, self.run, candidates, folder, names=names))
        # The newest, even if it is damaged: the next restore would find it damaged, too.
        self.tried = candidates[0].id
        for problem in problems:
            self._log_remark(problem)
        if manifest is not None:
            self.paths.make()  # the outputs may be inside the folder that was replaced
            self.checkpointer.restored(manifest)
            self.resumed = next(c for c in candidates if c.id == manifest.checkpoint)
        return self.resumed

    def predecessor_deadline_passed(self) -> bool:
        return _with_retries(self.attempt.predecessor_deadline_passed)

    def next_event(self, until: float | None) -> AgentEvent | None:
        try:
            return self.watch.events.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def read_secrets(self) -> None:
        spec = self.request.spec
        if not spec.secrets and not spec.databases:
            return
        try:
            values = self.instance.secrets(self.instance.attribute("outlast-secrets"))
            self.secrets = mounts.with_certificates(values, spec, os.path.dirname(self.paths.notice_file))
        except OSError as problem:
            raise OSError(f"secrets: {problem}") from problem

    def try_exclusive(self) -> bool:
        assert self.group_member is not None
        return self.group_member.try_acquire(self.watch, self._note)

    def append_started(self, resumed: Checkpoint | None, code: str) -> str:
        if self.attempt.start(resumed=resumed, code=code):
            return ""
        return self.attempt.over() or "this attempt is not needed any more"

    # The command

    def start_command(self, resumed: Checkpoint | None) -> str:
        assert self.group_member is not None
        if lost := self.group_member.lost:
            raise AttemptAborted(lost, Verdict(finished=False, outcome="preempted", why=lost))
        argv = argv_for(self.request.spec)
        environment = self._environment(resumed)
        try:
            command = container.command_for(self.engine, self.request, self.paths, self.number, argv, environment)
        except (OSError, ValueError) as problem:
            why = f"cannot run `{argv[0]}`: {problem.strerror if isinstance(problem, OSError) else problem}"
            self.remarks.add(why)
            return why
        self._follow(command)
        return ""

    def _follow(self, command: Command) -> None:
        """Start the threads that follow the command: output, checkpoints, metrics, hang, peers, exit."""
        assert self.group_member is not None
        self.command, checkpointer = command, self.checkpointer
        mask = Mask(mounts.hidden(self.secrets, self.request.spec))
        output = OutputPump(command.output, self._write_log, mask=mask, every_s=self.flush_s, remarks=self.remarks)
        checkpointer.follow(command)
        pump = MetricsPump(self.paths.metrics_file, self._write_metrics, every_s=max(1.0, self.flush_s))
        self.output, self.metrics = output, pump
        self.watch.progress = lambda: checkpointer.committer.step if pump.step is None else pump.step
        self.watch.unsaved = lambda: checkpointer.unsaved.text
        self.watch.watch_for_hang(
            self.request.spec,
            signs=lambda: (output.last_output_at, checkpointer.last_change_at, pump.sign()),
            processor_s=command.processor_s,
        )
        self.group_member.begin(self.watch, self.paths.code, kill=lambda: checkpointer.kill(command))
        self.watch.spawn(lambda: self.watch.events.put(CommandExited(command.wait(), time.time())))

    def _environment(self, resumed: Checkpoint | None) -> dict[str, str]:
        assert self.group_member is not None
        environment = environment_for(
            self.request,
            self.paths,
            attempt=self.number,
            resumed=resumed is not None,
            machine=os.environ,
            secrets=self.secrets,
            packages=self.environment_path,
            local=not traits_of(self.instance.attribute("outlast-cloud")).remote,
            mean_life_s=mean_life_s(self.attempt.story.state),
        )
        return environment | self.group_member.environment()

    def _write_log(self, number: int, body: bytes) -> None:
        if body:
            self._retry_write(lambda: logs.write_piece(self.workspace.bucket, self.run, self.number, number, body))

    def _write_metrics(self, number: int, body: bytes) -> None:
        self._retry_write(lambda: metrics.write_piece(self.workspace.bucket, self.run, self.number, number, body))

    def _retry_write(self, act: Callable[[], None]) -> None:
        retry(act, for_s=_UNREACHABLE_S, report=report, stubborn=True)

    def write_notice_file(self, notice: Notice) -> None:
        try:
            self.paths.put_notice(notice.why, notice.grace_s, now=time.time())
        except OSError as problem:
            report(f"notice file: {problem}")  # a full disk; the program still gets the signal

    def commit_quickly(self, within_s: float) -> None:
        assert self.command is not None
        # In a thread: an unresponsive store must not use up the command's grace.
        quick = threading.Thread(target=self.checkpointer.commit_quickly, args=(self.command,), daemon=True)
        quick.start()
        quick.join(within_s)

    def send_sigterm(self) -> bool:
        assert self.command is not None
        self.checkpointer.record_open_files(self.command)
        return self.command.terminate()

    def kill_command(self) -> None:
        assert self.command is not None
        self.checkpointer.kill(self.command)

    def append_noticed(self, notice: Notice) -> None:
        self.attempt.notice(notice)

    def append_warned(self, notice: Notice) -> None:
        report(f"warning: {notice.why}")
        self.attempt.warn(notice)

    # After the command

    def stop_following(self, within_s: float) -> None:
        if self.group_member is not None:
            self.group_member.leave()
        if self.command is not None and self.output is not None and self.metrics is not None:
            self.metrics.stop()
            self.output.finish(within_s=within_s)
            self.checkpointer.stop()

    def declared_done(self) -> bool:
        return os.path.exists(self.paths.done_file)

    def commit_last(self, ending: Ending, died_at: float, within_s: float) -> str:
        unsaved = self.checkpointer.commit_last(ending, died_at=died_at, within_s=within_s)
        if unsaved:
            self._log_remark(f"the last state of the checkpoint folder was not committed: {unsaved}")
        return unsaved

    def permanent_failure(self, exit_code: int, ran_s: float) -> Verdict | None:
        # A program that started before, here or elsewhere, has shown that it can.
        if self.attempt.started_before():
            return None
        output = self.output.tail() if self.output is not None else ""
        found = permanent_failure(exit_code, ran_s=ran_s, output=output)
        if found is None:
            return None
        return Verdict(finished=False, outcome="crashed", why=found.why, hopeless=True, hint=found.hint)

    def failure_context(self) -> str:
        return mounts.failure_context(self.paths, mounts.mounts(self.request, self.instance))

    def send_outputs(self, within_s: float) -> OutputsReport:
        try:
            count = retry(self.checkpointer.outputs.send_all, for_s=within_s, report=report, stubborn=True)
        except (WorkspaceError, OSError) as problem:
            report(f"outputs could not be copied: {problem}")
            return OutputsReport(missing=f"its outputs could not be copied: {problem}")
        for path, why in self.checkpointer.outputs.unsent.items():
            self._log_remark(f"the output `{path}` was not copied: {why}")
        return OutputsReport(sent=count - len(self.checkpointer.outputs.unsent))

    def flush_logs(self, within_s: float) -> None:
        if self.output is None or self.metrics is None:
            self._write_log(1, self.remarks.take())  # without a command, no pump writes the remarks
            return
        self.output.write_remarks()
        self.metrics.finish(within_s=within_s)

    def append_end(self, verdict: Verdict, exit_code: int | None, outputs: int, keep_s: float, unsaved: str) -> None:
        self.attempt.end(verdict, exit_code=exit_code, outputs=outputs, keep_s=keep_s, unsaved=unsaved)
        self.watch.stop()

    def keep_machine(self, for_s: float) -> None:
        report(f"kept for debugging for {for_s:.0f} s")
        time.sleep(for_s)

    def log(self, text: str) -> None:
        report(text)


def _with_retries(act: Callable[[], T]) -> T:
    """Retry while the store is unreachable, for up to `_PREPARE_S`."""
    return retry(act, for_s=_PREPARE_S, report=report)
