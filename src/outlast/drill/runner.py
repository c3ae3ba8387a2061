"""Runs a command on the local cloud and strikes it at the chosen moments, through the real path. Judges nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from outlast.agent.paths import paths_for
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.traits import traits_of
from outlast.drill.evidence import Injected, Seen
from outlast.drill.injections import Injection, RunView, due
from outlast.drill.steps import StepMark, marks, progress_of, steps_of
from outlast.errors import CloudError
from outlast.runs.folder_listing import survey
from outlast.runs.logs import LogReader
from outlast.runs.state import Attempt, RunState
from outlast.spec.spec import MachineSpec, Spec
from outlast.workspace import RunRequest, Workspace

_LOOK_S = 0.01
# The story is asked less often than the disk: a save may be over in a moment.
_STORY_S = 0.03
# A long output is not remembered from its beginning.
_MARKS_MAX = 2000


def spec_for_drill(spec: Spec, *, spot: bool, preemptions: int) -> Spec:
    """The same work on the local cloud: only spot machines are preempted, and an undisturbed run must not be. When to
    give up is for the drill to say."""
    # A rehearsal: types, zones and images of other clouds are not to be had here.
    machine = MachineSpec() if traits_of(spec.machine.cloud).remote else spec.machine
    replace = msgspec.structs.replace
    limits = replace(spec.limits, no_progress=spec.limits.no_progress + preemptions, keep_on_failure_s=0.0)
    name = f"{spec.name[:27].rstrip('-')}-{'drill' if spot else 'undisturbed'}"
    return replace(spec, name=name, machine=replace(machine, spot=spot, fallback=False), limits=limits)


class DrillRunner:
    """One run under watch, with blows to come."""

    def __init__(
        self,
        workspace: Workspace,
        cloud: LocalCloud,
        request: RunRequest,
        *,
        blows: Sequence[Injection] = (),
        wait_s: float,
        grace_s: float,
        last: StepMark | None = None,
        whole_s: float | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.cloud = cloud
        self.request = request
        self.blows = list(blows)
        self.wait_s = wait_s
        self.grace_s = grace_s
        # Of an undisturbed run, where there was one: its last step, and how long it took.
        self.last = last
        self.whole_s = whole_s
        self.report = report
        self.story = workspace.story(request.run)
        self.struck: list[Injected] = []
        self.missed: list[tuple[Injection, str]] = []
        self.changes: dict[int, list[float]] = {}
        self.written = False
        self._attempt = 0
        self._files: dict[str, tuple[int, int]] = {}
        self._told: list[StepMark] = []
        self._steps: list[StepMark] = []
        self._awake = False
        self._reader: LogReader | None = None

    def watch(self) -> Seen:
        """Until the run is over."""
        state, asked_at = self.story.refresh(), 0.0
        while not state.ending:
            if time.monotonic() > asked_at + _STORY_S:
                state, asked_at = self.story.refresh(), time.monotonic()
            current = state.current
            if current is not None:
                self._look(state, current)
            time.sleep(_LOOK_S)
        self.missed += [(blow, "it was over before") for blow in self.blows]
        return Seen(struck=tuple(self.struck), missed=tuple(self.missed), changes=self.changes, written=self.written)

    def _look(self, state: RunState, current: Attempt) -> None:
        if current.number != self._attempt:
            self._attempt = current.number
            self._files = self._scan(current)
            self._told, self._steps, self._awake = [], [], False
            self._reader = LogReader(self.workspace.bucket, self.request.run, current.number)
        writing = self._follow_files(current)
        while self.blows and not self._is_struck(current):
            blow = self.blows[0]
            sight = self._sight(state, current, writing=writing)
            when = due(blow, sight, wait_s=self.wait_s)
            if when == "wait":
                return
            self.blows.pop(0)
            if when == "strike":
                self._strike(blow, current, sight)
            else:
                self._miss(blow, sight)

    def _is_struck(self, current: Attempt) -> bool:
        return bool(self.struck) and self.struck[-1].attempt == current.number

    def _follow_files(self, current: Attempt) -> bool:
        """Whether the checkpoint folder has changed since the last look."""
        files = self._scan(current)
        changed, self._files = files != self._files, files
        if changed:
            self.changes.setdefault(current.number, []).append(time.time())
            self.written = self.written or bool(files)
        return changed

    def _scan(self, current: Attempt) -> dict[str, tuple[int, int]]:
        """The files below the machine's checkpoint folder; unfinished ones count: it is about the writing."""
        home = self.cloud.home_path(current.machine)
        # And what it writes beside a file before it gives it its name.
        names = [f"{name}*" for name in self.request.spec.checkpoint.names]
        files = survey(paths_for(self.request, home, cache="").checkpoints, names=names).files
        return {path: (size, changed_ns) for path, (size, changed_ns, _) in files.items()}

    def _sight(self, state: RunState, current: Attempt, *, writing: bool) -> RunView:
        self._read()
        now = time.time()
        self._awake = self._awake or writing
        saved = sum(mark.at <= current.saved_at for mark in self._steps)
        return RunView(
            running_s=now - current.started_at,
            awake=self._awake,
            saves=len(state.checkpoints),
            own_saves=current.saves,
            since_save_s=now - current.saved_at,
            steps_saved=saved if self._steps else None,
            writing=writing,
            progress=self._progress(state, now - current.started_at),
        )

    def _progress(self, state: RunState, running_s: float) -> float | None:
        """By the steps that it tells; else by the clock, which knows what was kept of earlier attempts."""
        told = progress_of(self._steps, last=self.last)
        if told is not None or self.whole_s is None:
            return told
        kept_s = sum(max(0.0, a.saved_at - a.started_at) for a in state.attempts if a.started_at and a.over_at)
        return min(1.0, (kept_s + running_s) / max(self.whole_s, 1e-3))

    def _read(self) -> None:
        """What it has printed since the last look."""
        told = [
            mark
            for body in (self._reader.read() if self._reader else ())
            for mark in marks(body.decode(errors="replace").replace("\r", "\n"), at=time.time())
        ]
        if self._reader is not None and self._reader.next > 1:
            self._awake = True
        if told:
            self._told = [*self._told, *told][-_MARKS_MAX:]
            self._steps = steps_of([self._told])[0]

    def _strike(self, blow: Injection, current: Attempt, sight: RunView) -> None:
        at = time.time()
        try:
            self.cloud.preempt(current.machine, notice=blow.notice, grace_s=self.grace_s)
        except CloudError as problem:
            self.missed.append((blow, problem.message))
            return
        forced = (blow.moment == "in the middle" and not sight.own_saves) or (
            blow.moment == "while saving" and not (sight.writing and sight.saves)
        )
        self.struck.append(Injected(blow=blow, attempt=current.number, at=at, forced=forced))
        self.report(f"preempted attempt {current.number} {blow}")

    def _miss(self, blow: Injection, sight: RunView) -> None:
        if blow.moment == "before the first checkpoint":
            why = f"the first checkpoint was there after {sight.running_s:.1f} s"
        else:
            why = "the end could not be foreseen: print progress as `step 5/100`, or use --compare"
        self.missed.append((blow, why))
        self.report(f"not preempted {blow.moment}: {why}")
