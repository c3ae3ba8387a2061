"""Watches a run on the local cloud and preempts it at the chosen moments, as a real cloud would."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from outlast.agent.paths import AttemptPaths, paths_for
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.traits import traits_of
from outlast.drill.cpu_time import CpuWatch
from outlast.drill.evidence import Injected, Observations
from outlast.drill.injections import AttemptView, Injection, due
from outlast.drill.lines import OutputLines
from outlast.drill.reads import ReadWatch
from outlast.drill.saves import is_state
from outlast.drill.steps import StepMark, marks, progress_of, steps_of
from outlast.drill.trackers import tracker_run_in
from outlast.errors import CloudError
from outlast.runs.folder_listing import survey
from outlast.runs.logs import LogReader
from outlast.runs.nodes import NodeObjects
from outlast.runs.state import Attempt, RunState
from outlast.spec.spec import MachineSpec, Spec
from outlast.workspace import RunRequest, Workspace

_POLL_S = 0.01
# The story is read less often than the disk: a save may take only a moment.
_STORY_S = 0.03
_TRACKERS_S = 1.0
# Older steps of a long output are dropped.
_MARKS_MAX = 2000
_WRITES_MAX = 20_000

# Path → size and time of change in nanoseconds.
Files = dict[str, tuple[int, int]]


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
        by_clock: bool = False,
        from_share: float = 0.0,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.workspace = workspace
        self.cloud = cloud
        self.request = request
        # Those before the start concern an attempt that has not started, and the others one that has.
        self.injections = [one for one in injections if one.moment != "before the start"]
        self.at_start = [one for one in injections if one.moment == "before the start"]
        self.wait_s = wait_s
        self.grace_s = grace_s
        # The last step and the duration of an undisturbed run, if there was one.
        self.last = last
        self.undisturbed_s = undisturbed_s
        # It is known to show neither steps nor checkpoints.
        self.by_clock = by_clock
        self.from_share = from_share
        self.report = report
        self.story = workspace.story(request.run)
        self.injected: list[Injected] = []
        self.missed: list[tuple[Injection, str]] = []
        self.changes: dict[int, list[float]] = {}
        self.written = False
        self.writes: dict[int, list[tuple[float, str]]] = {}
        self.signs: dict[int, float] = {}
        self.trackers: dict[int, str] = {}
        # Commits of an attempt before its folder held more than logs and settings.
        self.stateless: dict[int, int] = {}
        self.read: dict[int, str] = {}
        self.unread: dict[int, str] = {}
        self._cpu: dict[int, CpuWatch] = {}
        self._attempt = 0
        self._files: Files = {}
        self._read_watch: ReadWatch | None = None
        self._first_write_ns = self._first_save_ns = 0
        self._has_state = False
        # The newest attempt whose folder held state.
        self._state_in = 0
        self._reported: list[StepMark] = []
        self._steps: list[StepMark] = []
        self._lines = OutputLines()
        self._reader: LogReader | None = None
        self._trackers_at = 0.0
        # The attempt that is about to start, and the reports of its machines.
        self._placed = 0
        self._nodes: NodeObjects | None = None

    def watch(self) -> Observations:
        """Watch until the run is over."""
        state, read_at = self.story.refresh(), 0.0
        while not state.ending:
            if time.monotonic() > read_at + _STORY_S:
                state, read_at = self.story.refresh(), time.monotonic()
            current = state.current
            if current is not None:
                self._observe(state, current)
            if self.at_start:
                self._follow_start(state)
            time.sleep(_POLL_S)
        self._close_reads()
        self.missed += [(injection, "the run ended before") for injection in (*self.at_start, *self.injections)]
        return Observations(
            injected=tuple(self.injected),
            missed=tuple(self.missed),
            changes=self.changes,
            written=self.written,
            writes=self.writes,
            signs=self.signs,
            trackers=self.trackers,
            has_state=self._has_state,
            # A program may keep its state in a file that looks like a log.
            stateless=self.stateless if self._has_state else {},
            read=self.read,
            unread=self.unread,
            cpu={number: watch.samples for number, watch in self._cpu.items()},
        )

    def _observe(self, state: RunState, current: Attempt) -> None:
        if current.number != self._attempt:
            self._close_reads()
            self._attempt = current.number
            self._cpu[current.number] = CpuWatch(self.request.run, current.number)
            self._first_write_ns = self._first_save_ns = 0
            self._files = self._scan(current)
            self._reported, self._steps, self._lines = [], [], OutputLines()
            self._reader = LogReader(self.workspace.bucket, self.request.run, current.number)
        writing = self._follow_files(current)
        self._read()
        self._follow_work(current)
        self._follow_tracker(current)
        if any(size and is_state(path) for path, (size, _) in self._files.items()):
            self._has_state, self._state_in = True, current.number
        elif self._state_in != current.number:  # a save may replace its files just now
            self.stateless[current.number] = current.saves
        while self.injections and not self._is_preempted(current):
            injection = self.injections[0]
            view = self._view(state, current, writing=writing)
            when = due(injection, view, wait_s=self.wait_s, from_share=self.from_share)
            if when == "wait":
                return
            self.injections.pop(0)
            if when == "inject":
                self._inject(injection, current, view)
            else:
                self._miss(injection, view)

    def _follow_start(self, state: RunState) -> None:
        """Preempt a machine of a distributed attempt while it waits for the others. Not the first attempt."""
        last = state.last
        if last is None or last.number == 1 or last.nodes == 1 or last.phase != "placed":
            return
        if last.number != self._placed:
            self._placed = last.number
            self._nodes = NodeObjects(self.workspace.bucket, self.request.run, last.number)
        if self._nodes is not None and any(kind == "ready" for _, kind in self._nodes.changed_at()):
            self._preempt(self.at_start.pop(0), last)

    def _is_preempted(self, current: Attempt) -> bool:
        return any(one.attempt == current.number for one in self.injected)

    def _follow_files(self, current: Attempt) -> bool:
        """Return whether the checkpoint folder has changed since the last scan."""
        files = self._scan(current)
        before = self._files
        changed, self._files = files != before, files
        if changed:
            self.changes.setdefault(current.number, []).append(time.time())
            self.written = self.written or bool(files)
            self._record_writes(current, before, files)
        return changed

    def _record_writes(self, current: Attempt, before: Files, files: Files) -> None:
        """Record the files that the command itself wrote; restored ones are older than its start."""
        if not current.started_at:
            return
        writes = self.writes.setdefault(current.number, [])
        for path, (size, changed_ns) in files.items():
            if before.get(path) != (size, changed_ns) and changed_ns / 1e9 >= current.started_at:
                writes.append((changed_ns / 1e9, path))
                self._first_write_ns = min(self._first_write_ns or changed_ns, changed_ns)
                watch = self._read_watch
                large = watch is None or size >= watch.state_bytes
                if large and is_state(path):
                    self._first_save_ns = min(self._first_save_ns or changed_ns, changed_ns)
        del writes[:-_WRITES_MAX]

    def _follow_work(self, current: Attempt) -> None:
        """Record the first sign of work, and whether the command opened the restored files before it saved."""
        number = current.number
        if not current.started_at:
            return
        self._cpu[number].poll()
        writes = self.writes.get(number)
        if number not in self.signs and (writes or self._steps):
            self.signs[number] = writes[0][0] if writes else self._steps[0].at
        if current.resumed_from and self._read_watch is None:
            self._read_watch = ReadWatch(self._folder(current), self._files, started_at=current.started_at)
        if self._read_watch is not None:
            # One step may be a bar that is drawn before the checkpoint is loaded.
            working = bool(self._first_save_ns) or len({mark.step for mark in self._steps}) > 1
            times = {"first_write_ns": self._first_write_ns, "first_save_ns": self._first_save_ns}
            self._read_watch.poll(working=working, **times)

    def _follow_tracker(self, current: Attempt) -> None:
        """Look for the files of an experiment tracker, once in a while."""
        if current.number in self.trackers or time.monotonic() < self._trackers_at:
            return
        self._trackers_at = time.monotonic() + _TRACKERS_S
        if found := tracker_run_in(self._paths(current).code):
            self.trackers[current.number] = found

    def _close_reads(self) -> None:
        if (watch := self._read_watch) is None:
            return
        if watch.read:
            self.read[self._attempt] = watch.read
        if watch.unread:
            self.unread[self._attempt] = watch.unread
        watch.close()
        self._read_watch = None

    def _paths(self, current: Attempt) -> AttemptPaths:
        return paths_for(self.request, self.cloud.home_path(current.machine), cache="")

    def _folder(self, current: Attempt) -> str:
        return self._paths(current).checkpoints

    def _scan(self, current: Attempt) -> Files:
        """List the files below the machine's checkpoint folder, unfinished ones included."""
        # Include temporary files beside the named ones.
        names = [f"{name}*" for name in self.request.spec.checkpoint.names]
        files = survey(self._folder(current), names=names).files
        return {path: (size, changed_ns) for path, (size, changed_ns, _) in files.items()}

    def _view(self, state: RunState, current: Attempt, *, writing: bool) -> AttemptView:
        now = time.time()
        saved = sum(mark.at <= current.saved_at for mark in self._steps)
        return AttemptView(
            working_s=self._working_s(current, now),
            saves=len(state.checkpoints) - sum(self.stateless.values()),
            own_saves=current.saves - self.stateless.get(current.number, 0),
            since_save_s=now - current.saved_at,
            steps_saved=saved if self._steps else None,
            writing=writing,
            progress=self._progress(state, self._working_s(current, now) or 0.0),
            sure=self.last is not None or self.undisturbed_s is not None,
        )

    def _working_s(self, current: Attempt, now: float) -> float | None:
        began = self.signs.get(current.number)
        if began is None and self.by_clock and current.started_at:
            began = current.started_at
        return None if began is None else now - began

    def _progress(self, state: RunState, worked_s: float) -> float | None:
        """Return the finished share by reported steps; else by time, with the committed time of earlier attempts."""
        share = progress_of(self._steps, last=self.last)
        if share is not None or self.undisturbed_s is None:
            return share
        began = [(a, self.signs.get(a.number, a.started_at)) for a in state.attempts if a.started_at and a.over_at]
        kept_s = sum(max(0.0, a.saved_at - began_at) for a, began_at in began)
        return min(1.0, (kept_s + worked_s) / max(self.undisturbed_s, 1e-3))

    def _read(self) -> None:
        """Read the steps printed since the last read."""
        reported = [
            mark
            for body in (self._reader.read() if self._reader else ())
            for mark in marks(self._lines.feed(body.decode(errors="replace")), at=time.time())
        ]
        if reported:
            self._reported = [*self._reported, *reported][-_MARKS_MAX:]
            known = [mark for mark in self._reported if self.last is not None and mark.word == self.last.word]
            self._steps = steps_of([known or self._reported])[0]

    def _inject(self, injection: Injection, current: Attempt, view: AttemptView) -> None:
        forced = (injection.moment == "in the middle" and not view.own_saves) or (
            injection.moment == "while saving" and not (view.writing and view.saves)
        )
        self._preempt(injection, current, forced=forced)

    def _preempt(self, injection: Injection, attempt: Attempt, *, forced: bool = False) -> None:
        at = time.time()
        # Of several machines another one each time, the one that leads included.
        victim = attempt.machines[(len(self.injected) + 1) % attempt.nodes]
        try:
            for name in attempt.machines if injection.everywhere else (victim,):
                self.cloud.preempt(name, notice=injection.notice, grace_s=self.grace_s)
        except CloudError as problem:
            self.missed.append((injection, problem.message))
            return
        self.injected.append(Injected(injection=injection, attempt=attempt.number, at=at, forced=forced))
        self.report(f"preempted attempt {attempt.number} {injection}")

    def _miss(self, injection: Injection, view: AttemptView) -> None:
        if injection.moment == "before the first checkpoint":
            why = f"the first checkpoint was committed after {view.working_s or 0.0:.1f} s of work"
        else:
            why = "the end is unknown: print progress as `step 5/100`, or use --compare"
        self.missed.append((injection, why))
        self.report(f"not preempted {injection.moment}: {why}")
