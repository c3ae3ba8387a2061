"""Watches a run on the local cloud and preempts it at the chosen moments, as a real cloud would."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from outlast.agent.paths import paths_for
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.traits import traits_of
from outlast.drill.evidence import Injected, Observations
from outlast.drill.injections import AttemptView, Injection, due
from outlast.drill.steps import StepMark, marks, progress_of, steps_of
from outlast.errors import CloudError
from outlast.runs.folder_listing import survey
from outlast.runs.logs import LogReader
from outlast.runs.state import Attempt, RunState
from outlast.spec.spec import MachineSpec, Spec
from outlast.workspace import RunRequest, Workspace

_POLL_S = 0.01
# The story is read less often than the disk: a save may take only a moment.
_STORY_S = 0.03
# Older steps of a long output are dropped.
_MARKS_MAX = 2000


def spec_for_drill(spec: Spec, *, spot: bool, preemptions: int) -> Spec:
    """Return the spec for the local cloud: on a spot machine if it is to be preempted, with more tries than usual."""
    # Types, zones and images of other clouds do not exist on the local cloud.
    machine = MachineSpec() if traits_of(spec.machine.cloud).remote else spec.machine
    replace = msgspec.structs.replace
    limits = replace(spec.limits, no_progress=spec.limits.no_progress + preemptions, keep_on_failure_s=0.0)
    name = f"{spec.name[:27].rstrip('-')}-{'drill' if spot else 'undisturbed'}"
    return replace(spec, name=name, machine=replace(machine, spot=spot, fallback=False), limits=limits)


class DrillRunner:
    """Watches one run and injects its preemptions."""

    def __init__(
        self,
        workspace: Workspace,
        cloud: LocalCloud,
        request: RunRequest,
        *,
        injections: Sequence[Injection] = (),
        wait_s: float,
        grace_s: float,
        last: StepMark | None = None,
        undisturbed_s: float | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.cloud = cloud
        self.request = request
        self.injections = list(injections)
        self.wait_s = wait_s
        self.grace_s = grace_s
        # The last step and the duration of an undisturbed run, if there was one.
        self.last = last
        self.undisturbed_s = undisturbed_s
        self.report = report
        self.story = workspace.story(request.run)
        self.injected: list[Injected] = []
        self.missed: list[tuple[Injection, str]] = []
        self.changes: dict[int, list[float]] = {}
        self.written = False
        self._attempt = 0
        self._files: dict[str, tuple[int, int]] = {}
        self._reported: list[StepMark] = []
        self._steps: list[StepMark] = []
        self._active = False
        self._reader: LogReader | None = None

    def watch(self) -> Observations:
        """Watch until the run is over."""
        state, read_at = self.story.refresh(), 0.0
        while not state.ending:
            if time.monotonic() > read_at + _STORY_S:
                state, read_at = self.story.refresh(), time.monotonic()
            current = state.current
            if current is not None:
                self._observe(state, current)
            time.sleep(_POLL_S)
        self.missed += [(injection, "the run ended before") for injection in self.injections]
        return Observations(
            injected=tuple(self.injected), missed=tuple(self.missed), changes=self.changes, written=self.written
        )

    def _observe(self, state: RunState, current: Attempt) -> None:
        if current.number != self._attempt:
            self._attempt = current.number
            self._files = self._scan(current)
            self._reported, self._steps, self._active = [], [], False
            self._reader = LogReader(self.workspace.bucket, self.request.run, current.number)
        writing = self._follow_files(current)
        while self.injections and not self._is_preempted(current):
            injection = self.injections[0]
            view = self._view(state, current, writing=writing)
            when = due(injection, view, wait_s=self.wait_s)
            if when == "wait":
                return
            self.injections.pop(0)
            if when == "inject":
                self._inject(injection, current, view)
            else:
                self._miss(injection, view)

    def _is_preempted(self, current: Attempt) -> bool:
        return bool(self.injected) and self.injected[-1].attempt == current.number

    def _follow_files(self, current: Attempt) -> bool:
        """Return whether the checkpoint folder has changed since the last scan."""
        files = self._scan(current)
        changed, self._files = files != self._files, files
        if changed:
            self.changes.setdefault(current.number, []).append(time.time())
            self.written = self.written or bool(files)
        return changed

    def _scan(self, current: Attempt) -> dict[str, tuple[int, int]]:
        """List the files below the machine's checkpoint folder, unfinished ones included."""
        home = self.cloud.home_path(current.machine)
        # Include temporary files beside the named ones.
        names = [f"{name}*" for name in self.request.spec.checkpoint.names]
        files = survey(paths_for(self.request, home, cache="").checkpoints, names=names).files
        return {path: (size, changed_ns) for path, (size, changed_ns, _) in files.items()}

    def _view(self, state: RunState, current: Attempt, *, writing: bool) -> AttemptView:
        self._read()
        now = time.time()
        self._active = self._active or writing
        saved = sum(mark.at <= current.saved_at for mark in self._steps)
        return AttemptView(
            running_s=now - current.started_at,
            active=self._active,
            saves=len(state.checkpoints),
            own_saves=current.saves,
            since_save_s=now - current.saved_at,
            steps_saved=saved if self._steps else None,
            writing=writing,
            progress=self._progress(state, now - current.started_at),
        )

    def _progress(self, state: RunState, running_s: float) -> float | None:
        """Return the finished share by reported steps; else by time, with the committed time of earlier attempts."""
        share = progress_of(self._steps, last=self.last)
        if share is not None or self.undisturbed_s is None:
            return share
        kept_s = sum(max(0.0, a.saved_at - a.started_at) for a in state.attempts if a.started_at and a.over_at)
        return min(1.0, (kept_s + running_s) / max(self.undisturbed_s, 1e-3))

    def _read(self) -> None:
        """Read the steps printed since the last read."""
        reported = [
            mark
            for body in (self._reader.read() if self._reader else ())
            for mark in marks(body.decode(errors="replace").replace("\r", "\n"), at=time.time())
        ]
        if self._reader is not None and self._reader.next > 1:
            self._active = True
        if reported:
            self._reported = [*self._reported, *reported][-_MARKS_MAX:]
            self._steps = steps_of([self._reported])[0]

    def _inject(self, injection: Injection, current: Attempt, view: AttemptView) -> None:
        at = time.time()
        try:
            self.cloud.preempt(current.machine, notice=injection.notice, grace_s=self.grace_s)
        except CloudError as problem:
            self.missed.append((injection, problem.message))
            return
        forced = (injection.moment == "in the middle" and not view.own_saves) or (
            injection.moment == "while saving" and not (view.writing and view.saves)
        )
        self.injected.append(Injected(injection=injection, attempt=current.number, at=at, forced=forced))
        self.report(f"preempted attempt {current.number} {injection}")

    def _miss(self, injection: Injection, view: AttemptView) -> None:
        if injection.moment == "before the first checkpoint":
            why = f"the first checkpoint was committed after {view.running_s:.1f} s"
        else:
            why = "the end is unknown: print progress as `step 5/100`, or use --compare"
        self.missed.append((injection, why))
        self.report(f"not preempted {injection.moment}: {why}")
