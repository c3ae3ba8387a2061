"""The state of one run, read once for all viewers: story, log sizes, metrics and outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from outlast.errors import Missing, NoSuchRun, OutlastError, StoreUnreachable
from outlast.runs.events import Event
from outlast.runs.metrics import Curves, Row, attempts_with_metrics, parsed, stitch
from outlast.runs.metrics import piece_key as metrics_key
from outlast.runs.notes import NO_NOTE, RunNote, read_note
from outlast.runs.state import RunState
from outlast.ui.logs import Logs
from outlast.ui.parents import Parents
from outlast.workspace import RunRequest, Workspace

# Outputs are listed once in this many rounds: a listing costs more than a check for the next chunk.
_OUTPUTS_EVERY = 4


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment. Equal values look the same on screen."""

    run: str
    request: RunRequest | None = None
    state: RunState = RunState()
    events: tuple[Event, ...] = ()
    # Attempt → bytes of output.
    logs: tuple[tuple[int, int], ...] = ()
    # The number of chunks of metrics, and a hash of the outputs.
    metrics: int = 0
    outputs: int = 0
    note: RunNote = NO_NOTE
    # The key of its group, sweep or drill.
    part_of: str = ""
    # Why the run cannot be read.
    problem: str = ""
    hint: str = ""


class RunWatch:
    """The repeated reader of one run; thread-safe."""

    def __init__(self, workspace: Workspace, logs: Logs, run: str) -> None:
        self.workspace = workspace
        self.logs = logs
        self.run = run
        self.detail = RunDetail(run=run)
        self.viewers: dict[int, Callable[[RunDetail], None]] = {}
        self.metrics = Metrics(workspace, run)
        self._story = workspace.story(run)
        self._parents = Parents(workspace)
        self._round = 0
        self._outputs = 0
        self._lock = threading.Lock()

    def refresh(self) -> bool:
        """Read the run. Return whether anything changed. Raises StoreUnreachable."""
        with self._lock:
            try:
                found = self._read()
            except StoreUnreachable:
                raise
            except (OutlastError, NoSuchRun) as problem:
                found = msgspec.structs.replace(self.detail, problem=problem.message, hint=problem.hint)
            changed = found != self.detail
            self.detail = found
        return changed

    def _read(self) -> RunDetail:
        request = self.detail.request or self.workspace.request(self.run)
        state = self._story.refresh()
        if not state.exists:
            raise NoSuchRun(f"`{self.run}` was never submitted: its submission was interrupted")
        closed = state.closed and self.detail.state.length == state.length
        if not closed or self._round % _OUTPUTS_EVERY == 0:
            self._read_logs_and_metrics(state)
        self._round += 1
        sizes = tuple((a.number, self.logs.index(self.run, a.number).size) for a in state.attempts if a.started_at)
        return RunDetail(
            run=self.run,
            request=request,
            state=state,
            events=tuple(self._story.events)
            if len(self._story.events) != len(self.detail.events)
            else self.detail.events,
            logs=sizes,
            metrics=self.metrics.pieces,
            outputs=self._outputs,
            part_of=self._part_of(request),
            note=read_note(self.workspace.bucket, self.run) if self._round % _OUTPUTS_EVERY == 1 else self.detail.note,
        )

    def _part_of(self, request: RunRequest) -> str:
        member = request.spec.member
        if member is not None and member.group:
            return f"group:{member.group}"
        if self._round % _OUTPUTS_EVERY == 1:
            self._parents.refresh()
        return self._parents.of(self.run)

    def _read_logs_and_metrics(self, state: RunState) -> None:
        """Read logs and metrics of attempts that may still write or were not read yet."""
        for attempt in state.attempts:
            index = self.logs.index(self.run, attempt.number)
            # Output may arrive after the end of an attempt; after some rounds without any it is complete.
            if attempt.started_at and (attempt.phase != "over" or not index.quiet):
                index.poll(over=attempt.phase == "over")
        self.metrics.read()
        if self._round % _OUTPUTS_EVERY == 0:
            found = [(e.key, e.bytes, e.modified_at) for e in self.workspace.bucket.list(f"runs/{self.run}/outputs/")]
            self._outputs = hash(tuple(found))


class Metrics:
    """The logged rows, each read once, and their curves."""

    def __init__(self, workspace: Workspace, run: str) -> None:
        self.workspace = workspace
        self.run = run
        self.pieces = 0
        self._rows: dict[int, list[Row]] = {}
        self._next: dict[int, int] = {}

    def read(self) -> None:
        """Read new rows."""
        bucket = self.workspace.bucket
        for attempt in attempts_with_metrics(bucket, self.run):
            while True:
                number = self._next.get(attempt, 1)
                try:
                    body = bucket.get(metrics_key(self.run, attempt, number))
                except Missing:
                    break
                rows = [row for line in body.splitlines() if (row := parsed(line)) is not None]
                self._rows.setdefault(attempt, []).extend(rows)
                self._next[attempt] = number + 1
                self.pieces += 1

    def curves(self, state: RunState) -> Curves:
        return stitch({attempt: list(rows) for attempt, rows in self._rows.items()}, state.attempts)
