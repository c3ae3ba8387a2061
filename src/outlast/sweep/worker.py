"""The worker: a run whose command carries out trials of a sweep, several at a time, one after another on one machine.

It takes what the story gives to its run and tells how each trial ended; it chooses nothing. The folders that trials
write checkpoints to are in the one that the agent commits and restores: a worker that comes back elsewhere goes on with
the trials that it had. A trial is told once, whoever else may have carried it out: the story sees to that.
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

_LOOK_S, _LOOK_REMOTE_S = 0.05, 1.0
_TROUBLE_S = 1.0


class Worker:
    """One attempt of a worker's run."""

    def __init__(self, workspace: Workspace, sweep: Sweep, around: TrialEnvironment) -> None:
        self.workspace = workspace
        self.sweep = sweep
        self.around = around
        self.story = SweepStory(workspace.bucket, sweep.name)
        self.jobs: dict[int, TrialProcess] = {}
        self.crashes: dict[int, int] = {}
        self.leaving = False

    def run(self) -> None:
        """Until no trial is left for this worker, or the machine is taken away."""
        signal.signal(signal.SIGTERM, self._notice)
        self._forget_ended(self.story.refresh())
        look_s = _LOOK_S if "://" not in self.workspace.url else _LOOK_REMOTE_S
        while True:
            try:
                if self._round():
                    return
            except StoreUnreachable as problem:
                report(f"{problem.message}; trying again")
                time.sleep(_TROUBLE_S)
            time.sleep(look_s)

    def _notice(self, _number: int, _frame: object) -> None:
        self.leaving = True
        for job in self.jobs.values():
            job.ask_to_leave()

    def _forget_ended(self, state: SweepState) -> None:
        """What the restored checkpoint has of trials that are not ours (any more)."""
        mine = {trial.number for trial in self._mine(state)}
        for name in os.listdir(self.around.checkpoints):
            match = re.fullmatch(r"t(\d+)", name)
            if match and int(match.group(1)) not in mine:
                shutil.rmtree(os.path.join(self.around.checkpoints, name), ignore_errors=True)

    def _mine(self, state: SweepState) -> list[Trial]:
        return [trial for trial in state.open if trial.run == self.around.run]

    def _round(self) -> bool:
        """Look once at the story and at the trials; whether it is time to leave."""
        for job in list(self.jobs.values()):
            job.forward_metrics()
            if job.ended:
                self._conclude(job)
        if self.leaving:
            return not self.jobs
        state = self.story.refresh()
        mine = {trial.number: trial for trial in self._mine(state)}
        for number in [number for number in self.jobs if number not in mine]:
            report(f"trial {number} is not wanted any more")
            self.jobs.pop(number).give_up()
        for number, trial in mine.items():
            if number not in self.jobs and not self.leaving:
                self._start(trial)
        return not mine and not state.left

    def _start(self, trial: Trial) -> None:
        job = TrialProcess(self.sweep, trial, self.around)
        report(f"trial {trial.number} " + ("resumes" if job.resumed else "starts"))
        self.jobs[trial.number] = job
        job.start()
        if self.leaving:
            job.ask_to_leave()  # the notice came between the two lines

    def _conclude(self, job: TrialProcess) -> None:
        number = job.trial.number
        if self.leaving and not job.said_done:
            # As of runs: with a notice nobody knows whether it was done. What it saved is in its folder.
            del self.jobs[number]
            return
        told = self._told(job)
        if told is None:
            report(f"trial {number} crashed with {job.code}; once more")
            del self.jobs[number]
            return
        # Kept before it is told: whoever reads the result must find what it is the result of.
        job.keep_outputs(self.workspace.bucket)
        # Told first, forgotten afterwards: a death in between does it once more, and the story refuses the second.
        self.story.append(told, nonce=secrets.token_hex(8))
        report(f"trial {number}: {told.outcome}" + (f": {told.why}" if told.why else ""))
        del self.jobs[number]
        job.clean()

    def _told(self, job: TrialProcess) -> ev.ResultRecorded | None:
        """How it ended; None if it may be tried again."""
        number, seconds = job.trial.number, time.time() - job.started_at
        me, metrics = self.around.run, job.metrics(self.workspace.bucket)
        told = ev.ResultRecorded(
            trial=number, run=me, outcome="failed", metrics=metrics, seconds=seconds, at=time.time(), by=me
        )
        if job.code != 0 and not job.said_done:
            self.crashes[number] = self.crashes.get(number, 0) + 1
            if self.crashes[number] < self.sweep.spec.limits.crashes:
                return None
            why = f"it crashed {self.crashes[number]} times; the last time with {job.code}: {job.last_words()}"
            return msgspec.structs.replace(told, why=why)
        values, why = values_of(metrics, self.sweep.search.goals)
        return msgspec.structs.replace(told, outcome="unmeasured" if why else "complete", values=values, why=why)


def report(text: str) -> None:
    print(f"worker: {text}", flush=True)


def main() -> None:
    """`python -m outlast.sweep.worker WORKSPACE SWEEP`, as the command of a run."""
    url, name = sys.argv[1:]
    workspace = open_workspace(url)
    Worker(workspace, read(workspace, name), TrialEnvironment.here()).run()


if __name__ == "__main__":
    main()
