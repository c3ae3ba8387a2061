"""Performs the conductor's effects on a real machine: processes, threads, files and the workspace."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from outlast.agent import container, mounts, permanent
from outlast.agent.attempt import LastReport, Verdict, mean_life_s
from outlast.agent.effects import AgentEvent, AttemptAborted, CommandExited, OutputsReport, drive
from outlast.agent.idle_gpu import IdleGpuGuard
from outlast.agent.instance import Notice
from outlast.agent.metrics import MetricsPump
from outlast.agent.node_variables import node_variables
from outlast.agent.output import Mask, OutputPump, report
from outlast.agent.paths import argv_for, environment_for
from outlast.agent.preparation import AgentPreparation, with_retries
from outlast.agent.process import Command
from outlast.agent.retry import retry
from outlast.agent.tracker_variables import tracker_variables
from outlast.agent.usage import sampler_for
from outlast.clouds.traits import traits_of
from outlast.code.bootstrap import when_allowed
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.runs import metrics, usage
from outlast.runs.events import Ending
from outlast.runs.state import Checkpoint

T = TypeVar("T")

# The end of an attempt does not wait longer for its last samples.
_USAGE_S = 5.0


class Agent(AgentPreparation):
    """One attempt on this machine: the conductor's performer (`effects.Performer` has the contract of each method)."""

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
        verdict = Verdict(
            finished=False, outcome="broken", why=f"the agent failed: {type(problem).__name__}: {problem}"
        )
        try:
            if self.place.rank:
                self.report_end(verdict, None, 0, True)
            else:
                self.attempt.end(verdict, exit_code=None)
        except OutlastError as another:
            report(f"error: {another.message}")

    def predecessor_deadline_passed(self) -> bool:
        return with_retries(self.attempt.predecessor_deadline_passed)

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
            name = self.instance.attribute("outlast-secrets")
            # The right to read them was granted when the run was submitted, perhaps a minute ago.
            values = when_allowed(lambda: self.instance.secrets(name))
            self.secrets = mounts.with_certificates(values, spec, os.path.dirname(self.paths.notice_file))
        except OSError as problem:
            raise OSError(f"secrets: {problem}") from problem

    def try_exclusive(self) -> bool:
        assert self.group_member is not None
        return self.group_member.try_acquire(self.watch, self._note, self.secrets)

    def append_started(self, resumed: Checkpoint | None, code: str) -> str:
        if self.attempt.start(resumed=resumed, code=code):
            return ""
        return self.attempt.over() or "this attempt is not needed any more"

    # The command

    def start_command(self, resumed: Checkpoint | None) -> str:
        assert self.group_member is not None
        if lost := self.group_member.lost:
            raise AttemptAborted(lost, Verdict(finished=False, outcome="preempted", why=lost))
        argv = argv_for(self.request.spec, self.paths)
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
        output = OutputPump(
            command.output,
            self._write_log,
            mask=mask,
            every_s=self.flush_s,
            first=self.log_number,
            remarks=self.remarks,
        )
        checkpointer.follow(command)
        pump = MetricsPump(self.paths.metrics_file, self._write_metrics, every_s=max(1.0, self.flush_s))
        self.output, self.metrics = output, pump
        self.watch.progress = lambda: checkpointer.committer.step if pump.step is None else pump.step
        self.watch.unsaved = lambda: checkpointer.unsaved.text
        self.watch.metrics = lambda: pump.ranges
        self._sample_usage(command)
        self.watch.watch_for_hang(
            self.request.spec,
            signs=lambda: (output.last_output_at, checkpointer.last_change_at, pump.sign()),
            processor_s=command.processor_s,
        )
        self.group_member.begin(self.watch, self.paths.code, kill=lambda: checkpointer.kill(command))
        self.watch.spawn(lambda: self.watch.events.put(CommandExited(command.wait(), time.time())))

    def _sample_usage(self, command: Command) -> None:
        alone = traits_of(self.instance.attribute("outlast-cloud")).remote
        piece_s = 60.0 if self.workspace.store.remote else 5.0
        sampler = sampler_for(command.members, self._write_usage, alone=alone, piece_s=piece_s)
        if sampler is not None:
            self.usage, self.watch.usage = sampler, lambda: sampler.latest
            limit_s = self.request.spec.limits.idle_gpu_s
            grace_s = traits_of(self.instance.attribute("outlast-cloud")).grace_s
            if limit_s and not self.place.rank:
                guard = IdleGpuGuard(self._attempt_writer(), limit_s=limit_s, grace_s=grace_s)
                self.watch.spawn(lambda: guard.watch(self.watch.usage, self.watch.pause))

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
            trackers=tracker_variables(self.attempt.workspace, self.request, self.paths.outputs),
            local=not traits_of(self.instance.attribute("outlast-cloud")).remote,
            mean_life_s=mean_life_s(self.attempt.story.state),
            nodes=self._node_variables() if self.node else None,
        )
        return environment | self.group_member.environment()

    def _node_variables(self) -> dict[str, str]:
        return node_variables(self.request, self.place, self.addresses, self.number, self.gpus)

    def _write_metrics(self, number: int, body: bytes) -> None:
        if self.place.rank:
            return  # the metrics of a run are those of rank 0
        self._retry_write(lambda: metrics.write_piece(self.workspace.bucket, self.run, self.number, number, body))

    def _write_usage(self, number: int, body: bytes) -> None:
        if not self.place.rank:
            usage.write_piece(self.workspace.bucket, self.run, self.number, number, body)

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

    def send_sigterm(self) -> bool | None:
        assert self.command is not None
        self.checkpointer.record_open_files(self.command)
        return self.command.terminate()

    def kill_command(self) -> None:
        assert self.command is not None
        self.checkpointer.kill(self.command)

    def append_noticed(self, notice: Notice) -> None:
        self.attempt.notice(notice)

    def _with_retries(self, act: Callable[[], T]) -> T:
        return with_retries(act)

    def _with_long_retries(self, act: Callable[[], None]) -> None:
        self._retry_write(act)

    def _address(self) -> str:
        return self.instance.address()

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
        output = self.output.tail() if self.output is not None else ""
        limits = self.request.spec.limits
        if exit_code in limits.retry_on_exit:
            return None
        if exit_code in limits.fail_on_exit:
            found: permanent.PermanentFailure | None = permanent.named_failure(exit_code, output)
        elif self.attempt.started_before():
            # A program that started before, here or elsewhere, has shown that it can.
            before = self.attempt.fruitless_crash()
            found = permanent.repeated_failure(permanent.last_error(output), before=before, limit=limits.crashes)
        else:
            found = permanent.permanent_failure(exit_code, ran_s=ran_s, output=output)
        if found is None:
            return None
        return Verdict(finished=False, outcome="crashed", why=found.why, hopeless=True, hint=found.hint)

    def failure_context(self) -> str:
        context = mounts.failure_context(self.paths, mounts.mounts(self.request, self.instance))
        return context or permanent.error_text(self.output.tail() if self.output is not None else "")

    def send_outputs(self, within_s: float) -> OutputsReport:
        try:
            count = retry(self.checkpointer.outputs.send_all, for_s=within_s, report=report, despite_refusals=True)
        except (WorkspaceError, OSError) as problem:
            report(f"outputs could not be copied: {problem}")
            return OutputsReport(missing=f"its outputs could not be copied: {problem}")
        for path, why in self.checkpointer.outputs.unsent.items():
            self._log_remark(f"the output `{path}` was not copied: {why}")
        return OutputsReport(sent=count - len(self.checkpointer.outputs.unsent))

    def flush_logs(self, within_s: float) -> None:
        if self.output is None or self.metrics is None:
            self._write_log(self.log_number, self.remarks.take())  # without a command, no pump writes the remarks
            return
        self.output.write_remarks()
        self.metrics.finish(within_s=within_s)
        if self.usage is not None:
            self.usage.finish(within_s=min(within_s, _USAGE_S))

    def append_end(self, verdict: Verdict, exit_code: int | None, outputs: int, keep_s: float, unsaved: str) -> None:
        last = LastReport(
            step=self.watch.progress(),
            metrics=self.watch.metrics(),
            usage=self.usage.meter.usage if self.usage is not None and self.usage.latest is not None else None,
        )
        self.attempt.end(verdict, exit_code=exit_code, outputs=outputs, keep_s=keep_s, unsaved=unsaved, last=last)
        self.watch.stop()

    def keep_machine(self, for_s: float) -> None:
        report(f"kept for debugging for {for_s:.0f} s")
        self.watch.shutdown.wait(for_s)

    def log(self, text: str) -> None:
        report(text)
