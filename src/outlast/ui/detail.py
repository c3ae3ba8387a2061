"""One run that somebody looks at, read for all who do: its story, the length of its log, its metrics and outputs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from outlast.errors import Missing, NoSuchRun, OutlastError, StoreUnreachable
from outlast.runs.events import Event
from outlast.runs.metrics import Curves, Row, attempts_with_metrics, parsed, stitch
from outlast.runs.metrics import piece_key as metrics_key
from outlast.runs.state import RunState
from outlast.ui.logs import Logs
from outlast.workspace import RunRequest, Workspace

# Outputs are listed once in so many rounds: a listing is dearer than a look for the next piece.
_OUTPUTS_EVERY = 4


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of it. Two that are equal show the same."""

    run: str
    request: RunRequest | None = None
    state: RunState = RunState()
    events: tuple[Event, ...] = ()
    # Attempt → bytes of output.
    logs: tuple[tuple[int, int], ...] = ()
    # How many pieces of metrics there are, and what the outputs are, as a number that changes with them.
    metrics: int = 0
    outputs: int = 0
    # Why it cannot be read.
    problem: str = ""
    hint: str = ""


class RunWatch:
    """Reads one run again and again. One thread at a time."""

    def __init__(self, workspace: Workspace, logs: Logs, run: str) -> None:
        self.workspace = workspace
        self.logs = logs
        self.run = run
        self.detail = Detail(run=run)
        self.viewers: dict[int, Callable[[Detail], None]] = {}
        self.metrics = Metrics(workspace, run)
        self._story = workspace.story(run)
        self._round = 0
        self._outputs = 0
        self._lock = threading.Lock()

    def look(self) -> bool:
        """One look; whether anything changed. Raises StoreUnreachable."""
        with self._lock:
            try:
                found = self._look()
            except StoreUnreachable:
                raise
            except (OutlastError, NoSuchRun) as problem:
                found = msgspec.structs.replace(self.detail, problem=problem.message, hint=problem.hint)
            changed = found != self.detail
            self.detail = found
        return changed

    def _look(self) -> Detail:
        request = self.detail.request or self.workspace.request(self.run)
        state = self._story.refresh()
        if not state.exists:
            raise NoSuchRun(f"`{self.run}` was never submitted: whoever asked for it was cut short")
        closed = state.closed and self.detail.state.length == state.length
        if not closed or self._round % _OUTPUTS_EVERY == 0:
            self._listen(state)
        self._round += 1
        sizes = tuple((a.number, self.logs.index(self.run, a.number).size) for a in state.attempts if a.started_at)
        return Detail(
            run=self.run,
            request=request,
            state=state,
            events=tuple(self._story.events)
            if len(self._story.events) != len(self.detail.events)
            else self.detail.events,
            logs=sizes,
            metrics=self.metrics.pieces,
            outputs=self._outputs,
        )

    def _listen(self, state: RunState) -> None:
        """Logs and metrics of the attempts that may still write, and of those that were not read yet."""
        for attempt in state.attempts:
            index = self.logs.index(self.run, attempt.number)
            # The last words of an attempt come after it is over; once nothing more came for some rounds it is quiet.
            if attempt.started_at and (attempt.phase != "over" or not index.quiet):
                index.listen(over=attempt.phase == "over")
        self.metrics.read()
        if self._round % _OUTPUTS_EVERY == 0:
            found = [(e.key, e.bytes, e.modified_at) for e in self.workspace.bucket.list(f"runs/{self.run}/outputs/")]
            self._outputs = hash(tuple(found))


class Metrics:
    """The rows that were logged, read once each, and the curves that they make."""

    def __init__(self, workspace: Workspace, run: str) -> None:
        self.workspace = workspace
        self.run = run
        self.pieces = 0
        self._rows: dict[int, list[Row]] = {}
        self._next: dict[int, int] = {}

    def read(self) -> None:
        """What is new."""
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
