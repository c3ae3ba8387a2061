"""The driver of a sweep: observe → plan → apply, over its story and the stories of its runs.

Several drivers may run; a lease keeps them from doing the same work twice. A lost driver loses nothing: the story
records the intent before the effect, and the name of a run is derived from its trial.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import OutlastError, OverLimit, StoreUnreachable, UsageError
from outlast.runs.events import Cancelled
from outlast.runs.metrics import stitched
from outlast.runs.state import RunState
from outlast.runs.story import Story
from outlast.store.lease import Lease, process_name
from outlast.submit.prepare import prepare
from outlast.submit.validate import check_spending_limits
from outlast.submit.write import write_run
from outlast.sweep import events as ev
from outlast.sweep.objective import measured, values_of
from outlast.sweep.plan import (
    AddWorker,
    Cancel,
    MoveTrial,
    RecordResult,
    Step,
    StopSweep,
    Submit,
    SuggestTrial,
    SweepView,
    plan,
)
from outlast.sweep.record import Sweep, SweepStory
from outlast.sweep.state import SweepState, Trial
from outlast.sweep.study import Search
from outlast.sweep.trial import trial_spec
from outlast.sweep.workers import reports_of, worker_spec
from outlast.workspace import Workspace

_QUICK_S, _CALM_S, _REMOTE_S = 0.05, 0.3, 2.0
_LEASE_S = 10.0
# Between two checks of the running trials by the pruner.
_JUDGE_S, _JUDGE_REMOTE_S = 0.5, 5.0


class Driver:
    """One driver of one sweep."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        sweep: Sweep,
        *,
        environment: Mapping[str, str],
        report: Callable[[str], None] = lambda _: None,
        watch: Callable[[SweepState], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.clouds = clouds
        self.sweep = sweep
        self.environment = environment
        self.report = report
        # Called with the state after each round, also while another process drives.
        self.watch = watch
        self.story = SweepStory(workspace.bucket, sweep.name)
        self.search = Search(sweep.name, sweep.search)
        self.who = process_name()
        self.lease = Lease(workspace.bucket, f"sweep-{sweep.name}", who=self.who, ttl_s=_LEASE_S)
        self.runs: dict[str, Story] = {}
        # Ended runs of ended trials, which need not be read again.
        self.done: set[str] = set()
        self.judged_at = -math.inf

    # Observe

    def observe(self) -> SweepView:
        state = self.story.refresh()
        wanted = {trial.run for trial in state.trials if trial.open} | set(state.workers)
        wanted |= {trial.run for trial in state.trials if trial.outcome in ("pruned", "cancelled")}
        runs: dict[str, RunState] = {}
        for run in wanted - self.done:
            story = self.runs.setdefault(run, self.workspace.story(run))
            found = story.state if story.state.ending else story.refresh()
            if found.exists:
                runs[run] = found
        open_runs = {trial.run for trial in state.open}
        if not self.sweep.packed:
            self.done |= {run for run, found in runs.items() if found.ending and run not in open_runs}
        return SweepView(sweep=self.sweep, state=state, runs=runs)

    def round(self) -> tuple[Step, ...]:
        """Observe, plan and apply once. Return the steps."""
        steps = plan(self.observe())
        for step in steps:
            self._apply(step)
        self._judge()
        return steps

    # Apply

    def _apply(self, step: Step) -> None:
        match step:
            case Submit():
                self._submit(step)
            case RecordResult():
                self._record_result(step.trial)
            case Cancel():
                cancel_run(self.workspace, step.run, by=self.who)
            case SuggestTrial():
                self._suggest(step.run)
            case AddWorker():
                self._append(ev.WorkerAdded(run=step.run))
            case MoveTrial():
                self._append(ev.Moved(trial=step.trial, run=step.run))
            case StopSweep():
                if self._append(ev.SweepStopped(why=step.why, now=True)):
                    self.report(f"stopped: {step.why}")

    def _append(self, event: ev.Event) -> bool:
        event = msgspec.structs.replace(event, at=self.workspace.clock(), by=self.who)
        return self.story.append(event, nonce=secrets.token_hex(8))

    def _submit(self, step: Submit) -> None:
        if step.trial is None:
            spec = worker_spec(self.sweep, self.workspace.url)
        else:
            spec = trial_spec(self.sweep, step.trial.params)
        missing = [name for name in spec.secrets.values() if name not in self.environment]
        if missing:
            raise UsageError(f"secret `{missing[0]}` of the trials is not set in the environment of this process")
        try:
            check_spending_limits(self.workspace, self.clouds[spec.machine.cloud], spec)
        except OverLimit as problem:
            self._give_up(step, problem.message)
            return
        prepared = prepare(self.workspace, self.clouds, spec, self.sweep.code, environment=self.environment)
        write_run(self.workspace, self.clouds, prepared, run=step.run)

    def _give_up(self, step: Submit, why: str) -> None:
        """Stop at a spending limit. Running trials finish; if a worker is missing, they are cancelled."""
        if step.trial is not None:
            self._append(_cancelled(step.trial))
        # Without its worker a trial would wait forever.
        if self._append(ev.SweepStopped(why=why, now=step.trial is None)):
            self.report(f"stopped: {why}")

    def _suggest(self, worker: str) -> None:
        state = self.story.state
        self.search.follow(state)
        number = len(state.trials)
        params, attrs = self.search.ask(number)
        # Illegal if another driver was first or the sweep was stopped; then the study follows the story again.
        self._append(
            ev.TrialSuggested(trial=number, params=params, run=worker or self.sweep.run_of(number), attrs=attrs)
        )

    def _record_result(self, trial: Trial) -> None:
        story = self.runs.get(trial.run)
        if self.sweep.search.pruner != "none" and not self.sweep.packed:
            # The pruner compares later trials with the complete curve.
            self.search.follow(self.story.state)
            self.search.judge(trial.number, self._reports(trial))
        result = _cancelled(trial) if story is None or self.sweep.packed else self._outcome(trial, story.state)
        if not result.reports:
            self.search.follow(self.story.state)
            reports, attrs = self.search.reported(trial.number)
            result = msgspec.structs.replace(result, reports=reports, attrs=attrs)
        self._append(result)

    def _outcome(self, trial: Trial, run: RunState) -> ev.ResultRecorded:
        if run.ending == "cancelled" or not run.ending:
            return _cancelled(trial)
        seconds = sum(a.over_at - a.started_at for a in run.attempts if a.started_at)
        result = ev.ResultRecorded(trial=trial.number, run=trial.run, outcome="failed", why=run.why, seconds=seconds)
        metrics = measured(self.workspace.bucket, trial.run, run, self.sweep.search.metrics)
        result = msgspec.structs.replace(result, metrics=metrics)
        if run.ending == "failed":
            return result
        values, why = values_of(metrics, self.sweep.search.goals)
        return msgspec.structs.replace(result, outcome="unmeasured" if why else "complete", values=values, why=why)

    # Pruning

    def _judge(self) -> None:
        """Report the metrics of running trials to the pruner, and record the trials that it prunes."""
        if self.sweep.search.pruner == "none" or time.monotonic() < self.judged_at + self._judge_s:
            return
        self.judged_at = time.monotonic()
        state = self.story.refresh()
        self.search.follow(state)
        for trial in state.open:
            reports = self._reports(trial)
            if reports and self.search.judge(trial.number, reports):
                reported, attrs = self.search.reported(trial.number)
                step = max(int(number) for number in reported)
                why = f"at step {step}"
                result = ev.ResultRecorded(
                    trial=trial.number, run=trial.run, outcome="pruned", why=why, reports=reported, attrs=attrs,
                    metrics={self.sweep.search.goals[0].partition(":")[2]: reported[str(step)]},
                )  # fmt: skip
                self._append(result)

    def _reports(self, trial: Trial) -> dict[int, float]:
        goal = self.sweep.search.goals[0].partition(":")[2]
        bucket = self.workspace.bucket
        if self.sweep.packed:
            return reports_of(bucket, trial.run, trial.number, goal)
        story = self.runs.get(trial.run)
        if story is None or not story.state.exists:
            return {}
        return {point.step: point.value for point in stitched(bucket, trial.run, story.state).series.get(goal, ())}

    @property
    def _judge_s(self) -> float:
        return _JUDGE_S if self._local else _JUDGE_REMOTE_S

    @property
    def _local(self) -> bool:
        return not self.workspace.store.remote

    # The loop

    def run(self, *, stop: threading.Event) -> SweepState:
        """Run rounds until the sweep is over or `stop` is set. While another process drives, only observe."""
        wait_s = _QUICK_S
        try:
            while not stop.is_set():
                try:
                    steps = self.round() if self.lease.hold() else ()
                    over = not steps and self._is_over()
                    self.watch(self.story.state)
                except StoreUnreachable as problem:
                    self.report(f"{problem.message}; retrying")
                    steps, over = (), False
                if over:
                    break
                wait_s = _QUICK_S if steps else min(_CALM_S, wait_s * 1.3)
                stop.wait(wait_s if self._local else max(wait_s, _REMOTE_S if not steps else 0.2))
        finally:
            try:
                self.lease.release()
            except OutlastError:
                pass  # the lease expires by itself
        return self.story.state

    def _is_over(self) -> bool:
        """Return whether the sweep is over and none of its runs is alive."""
        view = self.observe()
        return view.state.over and not any(run.alive for run in view.runs.values())


def _cancelled(trial: Trial) -> ev.ResultRecorded:
    return ev.ResultRecorded(trial=trial.number, run=trial.run, outcome="cancelled", why="cancelled")


def cancel_run(workspace: Workspace, run: str, *, by: str) -> None:
    """Cancel a run; no effect on an ended one."""
    workspace.wake(run)
    workspace.story(run).append(Cancelled(who=by, at=workspace.clock()), nonce=secrets.token_hex(8))
    workspace.wake(run)
