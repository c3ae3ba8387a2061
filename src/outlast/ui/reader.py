"""The reader of all runs of a workspace for all viewers; it reads only runs that may have changed.

Heartbeats and wakeups take one listing each. In a folder, each round checks every live story for its next event, at the
cost of a failed open. In a bucket, it checks runs with new heartbeats or wakeups, and the others in turn. The newest
ended runs come from their index, more on request.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Collection, Iterable

import msgspec

from outlast.billing.ledger import lines_of
from outlast.billing.ledger_store import LedgerPage
from outlast.errors import NoSuchRun, StoreUnreachable, WorkspaceError
from outlast.runs.ended import EndedRuns
from outlast.runs.notes import NoteReader, RunNote
from outlast.runs.story import Story
from outlast.spec.spec import Spec
from outlast.store.bucket import Entry
from outlast.store.parallel import in_parallel
from outlast.ui.parents import Parents, node_rows, parent_rows, with_parent
from outlast.ui.views.runs import RunTableRow, ended_row_of, row_of, unread_row
from outlast.workspace import Heartbeat, Workspace

# The number of ended runs that are shown at first and added by each request for more.
ENDED_SHOWN = 500
_INDEX_REMOTE_S, _TURN_REMOTE = 5.0, 20
# The interval between listings of sweeps and drills in a folder.
_PARENTS_S = 1.0
# The number of live runs whose stories are checked for existence.
_PROBED = 3


class _Live(msgspec.Struct, kw_only=True):
    """A run that may still change."""

    story: Story
    spec: Spec | None = None
    heartbeat: Heartbeat | None = None
    heartbeat_entry: Entry | None = None


class RunReader:
    """The reader, with its state between rounds. Used by one thread; `rows` is replaced, never modified."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.remote = workspace.store.remote
        self.rows: dict[str, RunTableRow] = {}
        # All rows of the table: runs, their groups, sweeps and drills, and machines of distributed runs.
        self.shown: dict[str, RunTableRow] = {}
        # The round in which a row last changed: viewers request newer rows.
        self.changed: dict[str, int] = {}
        self.round = 0
        # Whether the index was read, and whether it has more runs than are shown.
        self.complete = False
        self.has_more = False
        self._live: dict[str, _Live] = {}
        self._index = EndedRuns(workspace, each=workspace.each)
        self._ended: set[str] = set()
        self._limit = ENDED_SHOWN
        self._index_at = -math.inf
        self._note_reader = NoteReader(workspace.bucket)
        self._notes: dict[str, RunNote] = {}
        self._notes_at = -math.inf
        self._parents = Parents(workspace)
        self._parents_at = -math.inf
        self._turn = itertools.count()

    def read(self) -> bool:
        """Read once. Return whether anything changed. Raises WorkspaceError if the workspace cannot be read."""
        self.round += 1
        rows = dict(self.rows)
        heartbeats, wakeups = self.workspace.heartbeats(), self.workspace.wakeups()
        each = self.workspace.each
        each(lambda run: self._read(run, heartbeats.get(run), rows), self._to_read(heartbeats, wakeups))
        self._load_new([run for run in {**heartbeats, **wakeups} if run not in self._live], rows, heartbeats)
        live = {**heartbeats, **wakeups}
        for run in [run for run, one in self._live.items() if run not in live and one.story.state.closed]:
            del self._live[run]  # its row is final and in the index
        self._read_ended(rows, live)
        self._add_tags(rows)
        self._add_parents(rows)
        shown = rows | parent_rows(rows.values())
        for run in live:
            if run in self._live:
                shown |= node_rows(run, self._live[run].story.state)
        changed = shown != self.shown
        for key, row in shown.items():
            if self.shown.get(key) != row:
                self.changed[key] = self.round
        if changed:
            self.rows, self.shown = rows, shown
        return changed

    def _add_tags(self, rows: dict[str, RunTableRow]) -> None:
        """Add the tags of users. In a bucket they are listed as rarely as the index."""
        now = time.monotonic()
        if not self.remote or now - self._notes_at >= _INDEX_REMOTE_S:
            self._notes_at, self._notes = now, self._note_reader.read()
        for run, row in rows.items():
            tags = self._notes[run].tags if run in self._notes else ()
            if row.tags != tags:
                rows[run] = msgspec.structs.replace(row, tags=tags)

    def _add_parents(self, rows: dict[str, RunTableRow]) -> None:
        """Add the sweep or drill of each run. Groups are known from the spec."""
        now = time.monotonic()
        if now - self._parents_at >= (_INDEX_REMOTE_S if self.remote else _PARENTS_S):
            self._parents_at = now
            self._parents.refresh()
        for run, row in rows.items():
            if not row.part_of.startswith("group:"):
                rows[run] = with_parent(row, self._parents.of(run))

    def more(self) -> None:
        """Show more ended runs from the next round on. Thread-safe."""
        self._limit += ENDED_SHOWN
        self._index_at = -math.inf

    def pages(self, now: float) -> list[LedgerPage]:
        """Return the ledger pages of runs that are not in the index. Thread-safe."""
        return [
            LedgerPage(name=run, who=one.story.state.who, lines=tuple(lines_of(run, one.story.state, now)))
            for run, one in list(self._live.items())
        ]

    def _to_read(self, heartbeats: dict[str, Entry], wakeups: dict[str, list[Entry]]) -> list[str]:
        if not self.remote:
            return list(self._live)
        turn = next(self._turn)
        return [
            run
            for number, (run, one) in enumerate(self._live.items())
            if run in wakeups
            or heartbeats.get(run) != one.heartbeat_entry
            or number % _TURN_REMOTE == turn % _TURN_REMOTE
        ]

    def _read(self, run: str, entry: Entry | None, rows: dict[str, RunTableRow]) -> None:
        one = self._live[run]
        length = one.story.state.length
        try:
            state = one.story.refresh()
            if entry != one.heartbeat_entry:
                one.heartbeat, one.heartbeat_entry = self.workspace.heartbeat(run) if entry else None, entry
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            rows[run] = unread_row(run, problem)
            return
        row = rows.get(run)
        if state.length != length or row is None or row.unread or entry is not None:
            rows[run] = row_of(run, state, one.heartbeat if state.alive else None, one.spec)

    def _read_ended(self, rows: dict[str, RunTableRow], live: Collection[str]) -> None:
        """Read the newest ended runs from the index."""
        now = time.monotonic()
        if self.remote and now - self._index_at < _INDEX_REMOTE_S:
            return
        self._index_at = now
        records, self.has_more = self._index.newest(self._limit, but=live)
        if rows and not records and not live:
            raise WorkspaceError(
                "the workspace has no runs any more",
                hint="check that it was not moved or deleted, and that its disk is mounted",
            )
        self._require_stories()
        for record in records:
            if record.run not in self._ended:
                rows[record.run] = ended_row_of(record)
                self._live.pop(record.run, None)
            if record.state.closed:
                self._ended.add(record.run)
        # Deleted meanwhile, or no longer among the newest.
        for run in self._ended - {record.run for record in records}:
            self._ended.discard(run)
            rows.pop(run, None)
        unread = {run: unread_row(run, problem) for run, problem in self._index.unread.items()}
        for run in [run for run, row in rows.items() if row.unread and run not in unread and run not in self._live]:
            self._reread(run, rows)
        rows.update(unread)
        self.complete = True

    def _reread(self, run: str, rows: dict[str, RunTableRow]) -> None:
        """Read a run again that could not be read."""
        row = self._load(run, None)
        if row is not None:
            rows[run] = row
        else:
            del rows[run]

    def _require_stories(self) -> None:
        """Raise WorkspaceError if the stories of live runs are gone, although agents still write heartbeats."""
        live = [run for run, one in self._live.items() if one.story.state.alive][:_PROBED]
        if live and not any(any(True for _ in self.workspace.bucket.list(f"runs/{run}/story/")) for run in live):
            raise WorkspaceError(
                "the stories of live runs are gone",
                hint="check that the folder `runs` of the workspace was not moved or deleted",
            )

    def _load_new(self, runs: Iterable[str], rows: dict[str, RunTableRow], heartbeats: dict[str, Entry]) -> None:
        wanted = list(runs)
        for run, row in zip(wanted, in_parallel(lambda run: self._load(run, heartbeats.get(run)), wanted), strict=True):
            if row is not None:
                rows[run] = row

    def _load(self, run: str, entry: Entry | None) -> RunTableRow | None:
        """Load a new run; None if it has no story yet."""
        story = self.workspace.story(run)
        try:
            state = story.refresh()
            if not state.exists:
                return None
            spec = self.workspace.request(run).spec
        except StoreUnreachable:
            raise
        except (WorkspaceError, NoSuchRun) as problem:
            return unread_row(run, problem)
        heartbeat = self.workspace.heartbeat(run) if entry and state.alive else None
        self._live[run] = _Live(story=story, spec=spec, heartbeat=heartbeat, heartbeat_entry=entry)
        return row_of(run, state, heartbeat, spec)
