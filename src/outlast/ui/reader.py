"""The runs of a workspace, read again and again by one reader for all viewers; only what may have changed is read.

Pulses and bells are one listing each. In a folder the next event of each live story is looked for every time, which
costs a failed open; in a bucket only that of runs that were heard of, and of the others in turn. What is over for good
is read once.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable

import msgspec

from outlast.errors import NoSuchRun, StoreUnreachable, WorkspaceError
from outlast.spec.spec import Spec
from outlast.ui.views.runs import RunRow, damaged_row, row_of
from outlast.workspace.books import Page
from outlast.workspace.bucket import Entry
from outlast.workspace.each import in_parallel
from outlast.workspace.ledger import lines_of
from outlast.workspace.state import RunState
from outlast.workspace.story import Story
from outlast.workspace.workspace import Pulse, Workspace

# How long a round may spend on runs that are over before it tells what it has.
_BACKLOG_S, _CHUNK = 0.4, 64
# Names that have no story: a submit that is under way, or was cut short.
_EMPTY_S = 5.0
_NAMES_FAR_S, _TURN_FAR = 5.0, 20


class _Live(msgspec.Struct, kw_only=True):
    """What is remembered of a run that may still change."""

    story: Story
    spec: Spec | None = None
    pulse: Pulse | None = None
    pulse_entry: Entry | None = None


class RunReader:
    """The memory of one reader. Used by one thread; `rows` is replaced, never changed."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.far = "://" in workspace.url
        self.rows: dict[str, RunRow] = {}
        # When a row last changed, counted in rounds: viewers ask for what is newer than what they have.
        self.changed: dict[str, int] = {}
        self.round = 0
        self.known = 0
        self._live: dict[str, _Live] = {}
        self._settled: dict[str, Page] = {}
        self._empty: dict[str, float] = {}
        self._names: list[str] = []
        self._names_at = -math.inf
        self._turn = itertools.count()

    @property
    def complete(self) -> bool:
        """Was every run read at least once?"""
        return len(self.rows) + len(self._empty) >= self.known

    def read(self) -> bool:
        """One round; whether anything changed. Raises WorkspaceError if the workspace cannot be read."""
        self.round += 1
        before, rows = self.rows, dict(self.rows)
        pulses, bells = self.workspace.pulses(), self.workspace.bells()
        for run in self._to_read(pulses, bells):
            self._read(run, pulses.get(run), rows)
        self._meet([run for run in {**pulses, **bells} if run not in self._live], rows, pulses)
        self._meet_backlog(rows, pulses)
        for run, row in rows.items():
            if before.get(run) != row:
                self.changed[run] = self.round
        self.rows = rows if rows != before else before
        return rows is self.rows

    def pages(self, now: float) -> list[Page]:
        """What every run has cost, for the books. May be called from another thread."""
        live = [
            Page(name=run, who=one.story.state.who, lines=tuple(lines_of(run, one.story.state, now)))
            for run, one in list(self._live.items())
        ]
        return [*list(self._settled.values()), *live]

    def _to_read(self, pulses: dict[str, Entry], bells: dict[str, list[Entry]]) -> list[str]:
        if not self.far:
            return list(self._live)
        turn = next(self._turn)
        return [
            run
            for number, (run, one) in enumerate(self._live.items())
            if run in bells or pulses.get(run) != one.pulse_entry or number % _TURN_FAR == turn % _TURN_FAR
        ]

    def _read(self, run: str, entry: Entry | None, rows: dict[str, RunRow]) -> None:
        one = self._live[run]
        length = one.story.state.length
        try:
            state = one.story.refresh()
            if entry != one.pulse_entry:
                one.pulse, one.pulse_entry = self.workspace.pulse(run) if entry else None, entry
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            rows[run] = damaged_row(run, problem.message)
            return
        if state.length != length or run not in rows or entry is not None:
            rows[run] = row_of(run, state, one.pulse if state.alive else None, one.spec)
        if state.settled:
            self._settle(run, state)

    def _settle(self, run: str, state: RunState) -> None:
        self._live.pop(run, None)
        self._settled[run] = Page(name=run, who=state.who, lines=tuple(lines_of(run, state, state.ended_at)))

    def _meet_backlog(self, rows: dict[str, RunRow], pulses: dict[str, Entry]) -> None:
        now = time.monotonic()
        if not self.far or now - self._names_at > _NAMES_FAR_S:
            self._names, self._names_at = list(self.workspace.bucket.children("runs/")), now
        if rows and not self._names:
            raise WorkspaceError("its runs are gone", hint="was it moved, deleted, or is its disk no longer there?")
        self.known = len(self._names)
        for run in [run for run, at in self._empty.items() if now - at > _EMPTY_S]:
            del self._empty[run]
        unread = [run for run in self._names if run not in rows and run not in self._empty]
        # The newest first: they are looked for most.
        unread.reverse()
        for begin in range(0, len(unread), _CHUNK):
            self._meet(unread[begin : begin + _CHUNK], rows, pulses)
            if time.monotonic() - now > _BACKLOG_S:
                return

    def _meet(self, runs: Iterable[str], rows: dict[str, RunRow], pulses: dict[str, Entry]) -> None:
        wanted = [run for run in runs if not (run in rows and run in self._settled)]
        for run, row in zip(wanted, in_parallel(lambda run: self._first(run, pulses.get(run)), wanted), strict=True):
            if row is not None:
                rows[run] = row
                self._empty.pop(run, None)
            else:
                self._empty[run] = time.monotonic()

    def _first(self, run: str, entry: Entry | None) -> RunRow | None:
        """A run that was not read before; None if it has no story (yet)."""
        story = self.workspace.story(run)
        try:
            state = story.refresh()
            if not state.exists:
                return None
            spec = self.workspace.request(run).spec
        except StoreUnreachable:
            raise
        except (WorkspaceError, NoSuchRun) as problem:
            return damaged_row(run, problem.message)
        if state.settled:
            self._settle(run, state)
            return row_of(run, state, None, spec)
        pulse = self.workspace.pulse(run) if entry and state.alive else None
        self._live[run] = _Live(story=story, spec=spec, pulse=pulse, pulse_entry=entry)
        return row_of(run, state, pulse, spec)
