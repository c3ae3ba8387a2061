"""The worker of a sweep: the command of a run that executes trials, several at a time on one machine.

It executes the trials that the story assigns to its run and records their results; it decides nothing. The checkpoint
folders of trials are inside the one that the agent commits and restores, so a worker that moves resumes its trials.
The story accepts one result per trial, even if two workers have executed it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import sys
import time

import msgspec

from outlast.errors import StoreUnreachable
from outlast.sweep import events as ev
from outlast.sweep.objective import values_of
from outlast.sweep.record import Sweep, SweepStory, read
from outlast.sweep.state import SweepState, Trial
from outlast.sweep.trial_process import TrialEnvironment, TrialProcess
from outlast.workspace import Workspace, open_workspace

_POLL_S, _POLL_REMOTE_S = 0.05, 1.0
_RETRY_S = 1.0


class Worker:
    """One attempt of a worker's run."""

    def __init__(self, workspace: Workspace, sweep: Sweep, environment: TrialEnvironment) -> None:
        self.workspace = workspace
        self.sweep = sweep
        self.environment = environment
        self.story = SweepStory(workspace.bucket, sweep.name)
        self.processes: dict[int, TrialProcess] = {}
        self.crashes: dict[int, int] = {}
        self.stop_requested = False

    def run(self) -> None:
        """Execute trials until none is left for this worker, or the machine is preempted."""
        signal.signal(signal.SIGTERM, self._notice)
        self._remove_stale(self.story.refresh())
        poll_s = _POLL_REMOTE_S if self.workspace.store.remote else _POLL_S
        while True:
            try:
                if self._round():
                    return
            except StoreUnreachable as problem:
                report(f"{problem.message}; retrying")
                time.sleep(_RETRY_S)
            time.sleep(poll_s)

    def _notice(self, _number: int, _frame: object) -> None:
        self.stop_requested = True
        for process in self.processes.values():
            process.request_stop()

    def _remove_stale(self, state: SweepState) -> None:
        """Delete folders in the restored checkpoint whose trials do not belong to this worker."""
        mine = {trial.number for trial in self._mine(state)}
        for name in os.listdir(self.environment.checkpoints):
            match = re.fullmatch(r"t(\d+)", name)
            if match and int(match.group(1)) not in mine:
                shutil.rmtree(os.path.join(self.environment.checkpoints, name), ignore_errors=True)

    def _mine(self, state: SweepState) -> list[Trial]:
        return [trial for trial in state.open if trial.run == self.environment.run]

    def _round(self) -> bool:
        """Check the story and the trials once. Return whether the worker is done."""
        for process in list(self.processes.values()):
            process.forward_metrics()
            if process.ended:
                self._conclude(process)
        if self.stop_requested:
            return not self.processes
        state = self.story.refresh()
        mine = {trial.number: trial for trial in self._mine(state)}
        for number in [number for number in self.processes if number not in mine]:
            report(f"trial {number} was cancelled or moved")
            self.processes.pop(number).kill()
        for number, trial in mine.items():
            if number not in self.processes and not self.stop_requested:
                self._start(trial)
        return not mine and not state.left

    def _start(self, trial: Trial) -> None:
        process = TrialProcess(self.sweep, trial, self.environment)
        report(f"trial {trial.number} " + ("resumes" if process.resumed else "starts"))
        self.processes[trial.number] = process
        process.start()
        if self.stop_requested:
            process.request_stop()  # the notice arrived after `start`

    def _conclude(self, process: TrialProcess) -> None:
        number = process.trial.number
        if self.stop_requested and not process.reported_done:
            # After a notice, an exit does not prove that the trial is done. Its folder has its checkpoints.
            del self.processes[number]
            return
        result = self._result(process)
        if result is None:
            report(f"trial {number} crashed with exit code {process.code}; starting it again")
            del self.processes[number]
            return
        # Upload outputs before the result: a reader of the result must find them.
        process.keep_outputs(self.workspace.bucket)
        # Record before deleting: after a crash in between the trial runs again, and its second result is illegal.
        self.story.append(result, nonce=secrets.token_hex(8))
        report(f"trial {number}: {result.outcome}" + (f": {result.why}" if result.why else ""))
        del self.processes[number]
        process.clean()

    def _result(self, process: TrialProcess) -> ev.ResultRecorded | None:
        """Return the result of an ended trial; None if it may run again."""
        number, seconds = process.trial.number, time.time() - process.started_at
        me, metrics = self.environment.run, process.metrics(self.workspace.bucket)
        result = ev.ResultRecorded(
            trial=number, run=me, outcome="failed", metrics=metrics, seconds=seconds, at=time.time(), by=me
        )
        if process.code != 0 and not process.reported_done:
            self.crashes[number] = self.crashes.get(number, 0) + 1
            if self.crashes[number] < self.sweep.spec.limits.crashes:
                return None
            why = f"crashed {self.crashes[number]} times; last exit code {process.code}: {process.last_line()}"
            return msgspec.structs.replace(result, why=why)
        values, why = values_of(metrics, self.sweep.search.goals)
        return msgspec.structs.replace(result, outcome="unmeasured" if why else "complete", values=values, why=why)


def report(text: str) -> None:
    print(f"worker: {text}", flush=True)


def main() -> None:
    """Run `python -m outlast.sweep.worker WORKSPACE SWEEP`, the command of a worker's run."""
    url, name = sys.argv[1:]
    workspace = open_workspace(url)
    Worker(workspace, read(workspace, name), TrialEnvironment.here()).run()


if __name__ == "__main__":
    main()
