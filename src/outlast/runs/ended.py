"""The index of ended runs: a small record for each, newest first, packed into pages of a hundred.

    ended/loose/ENDED-SUBMITTED-RUN.json    one record; written before the run's heartbeat is removed
    ended/pages/ENDED-SUBMITTED-….json      a hundred records; the loose ones are deleted after it is stored
    ended/complete                          every run that ended before it was written has a record

`ENDED` is the time of the end, counted backwards, so that a listing begins with the newest. A record may be in several
places after a crash; readers drop the copies. A run is listed by its heartbeat or wakeup until its record is stored.
Without `ended/complete` the index may be partial, and readers read all runs.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from outlast.billing.egress import egress_usd
from outlast.errors import Damaged, Exists, Missing, NoSuchRun, StoreUnreachable, WorkspaceError
from outlast.runs.state import RunState, merged
from outlast.spec.spec import ParamValue, RetentionSpec, Spec
from outlast.store.codec import decoded
from outlast.store.parallel import ParallelMap, suited_to

if TYPE_CHECKING:
    from outlast.workspace import Heartbeat, Workspace

_LOOSE, _PAGES, _COMPLETE = "ended/loose/", "ended/pages/", "ended/complete"
PAGE = 100
_LAST = 99_999_999_999
# A record that vanished was packed into a page meanwhile: list again.
_TRIES = 10


class EndedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record. To keep it small, the state contains only the newest checkpoint."""

    run: str
    state: RunState
    checkpoints: int = 0
    # `[limits] steps` of the run; 0: none.
    steps: int = 0
    egress_usd: float = 0.0
    # `[retention]` of the run; None: it is kept.
    retention: RetentionSpec | None = None
    params: dict[str, ParamValue] = {}
    # The group that it belongs to.
    group: str = ""


class _Key(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The name of a record or page: when its newest run ended, counted backwards, and when its newest was submitted."""

    ended: int
    submitted: int
    rest: str

    @property
    def name(self) -> str:
        return f"{self.ended:011d}-{self.submitted:011d}-{self.rest}.json"


def record_of(run: str, state: RunState, *, spec: Spec | None = None, heartbeat: Heartbeat | None = None) -> EndedRun:
    """Return the record of a run. The last heartbeat has the step of an attempt that could not report its end."""
    short = msgspec.structs.replace(state, checkpoints=state.checkpoints[-1:], cooldowns={})
    if heartbeat is not None and state.last is not None and heartbeat.attempt == state.last.number:
        metrics = state.metrics if state.step is not None else merged(state.metrics, heartbeat.metrics)
        step = state.step if state.step is not None else heartbeat.step
        short = msgspec.structs.replace(short, step=step, metrics=metrics)
    return EndedRun(
        run=run,
        state=short,
        checkpoints=len(state.checkpoints),
        steps=spec.limits.steps if spec else 0,
        egress_usd=egress_usd(state),
        retention=spec.retention if spec else None,
        params=spec.params if spec else {},
        group=spec.member.group if spec and spec.member else "",
    )


def _key_of(record: EndedRun) -> _Key:
    state = record.state
    return _Key(ended=_LAST - _seconds(state.ended_at), submitted=_seconds(state.submitted_at), rest=record.run)


def _seconds(at: float) -> int:
    return int(min(max(at, 0.0), _LAST))


def _parsed(name: str) -> _Key | None:
    ended, _, rest = name.removesuffix(".json").partition("-")
    submitted, _, rest = rest.partition("-")
    if not (ended.isdecimal() and submitted.isdecimal() and rest and name.endswith(".json")):
        return None  # not written by us
    return _Key(ended=int(ended), submitted=int(submitted), rest=rest)


class EndedRuns:
    """The index as far as this process has read it. Pages and records never change, so each is read once."""

    def __init__(self, workspace: Workspace, *, each: ParallelMap | None = None) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.each = each or suited_to(self.bucket.url)
        # Runs whose record and story cannot be read, with the error.
        self.unread: dict[str, WorkspaceError] = {}
        self._pages: dict[str, tuple[EndedRun, ...]] = {}
        self._records: dict[str, EndedRun] = {}
        # Pages that cannot be read; runs that ended and have no record.
        self._broken: set[str] = set()
        self._unindexed: dict[str, EndedRun] = {}
        self._complete = False
        # A listed page was gone when it was read: runs were deleted meanwhile.
        self._replaced = False
        # The last query with its listing, and its result.
        self._last_query: object = None
        self._last_result: tuple[list[EndedRun], bool] = ([], False)

    # Writing

    def add(self, record: EndedRun) -> None:
        """Store the record of a run that is over. May be repeated."""
        try:
            self.bucket.create(_LOOSE + _key_of(record).name, msgspec.json.encode(record))
        except Exists:
            pass
        self._pack()

    def _pack(self) -> None:
        """Move the oldest loose records into a page, if there are many. Several processes may do so at once."""
        names = [key.name for key in self._keys(_LOOSE)]
        if len(names) < 2 * PAGE:
            return
        found = [(name, one) for name in names[-PAGE:] if (one := self._record(name)) is not None]
        if found:
            self.write_page([record for _, record in found])
            self.each(self.bucket.delete, [_LOOSE + name for name, _ in found])

    def write_page(self, records: Sequence[EndedRun]) -> None:
        """Store these records as one page."""
        keys = [_key_of(record) for record in records]
        # The name depends on the runs: two processes that pack the same ones write the same page.
        same = zlib.crc32("\n".join(key.rest for key in keys).encode())
        ended, submitted = min(key.ended for key in keys), max(key.submitted for key in keys)
        page = _Key(ended=ended, submitted=submitted, rest=f"{len(keys)}-{same:08x}")
        try:
            self.bucket.create(_PAGES + page.name, msgspec.json.encode(records))
        except Exists:
            pass

    def remove(self, runs: Collection[str]) -> None:
        """Remove the records of deleted runs: pages are replaced by pages without them. May be repeated."""
        gone = set(runs)
        loose = [_LOOSE + key.name for key in self._keys(_LOOSE) if key.rest in gone]
        pages = [key.name for key in self._keys(_PAGES)]
        contents = dict(zip(pages, self.each(self._page, pages), strict=True))
        stale = [name for name, records in contents.items() if any(record.run in gone for record in records)]
        left = [record for name in stale for record in contents[name] if record.run not in gone]
        for begin in range(0, len(left), PAGE):
            self.write_page(left[begin : begin + PAGE])
        # Last: a crash before leaves copies, which readers drop.
        self.bucket.delete_many([*loose, *(_PAGES + name for name in stale)])

    def complete(self) -> bool:
        """Return whether every ended run has a record."""
        if not self._complete:
            try:
                self.bucket.head(_COMPLETE)
                self._complete = True
            except Missing:
                pass
        return self._complete

    def rebuild(self) -> None:
        """Store the missing records of ended runs, once per workspace; wake runs that are not over."""
        if self.complete():
            return
        records, _ = self.newest()
        ended = [record for record in records if record.run in self._unindexed]
        for begin in range(0, len(ended), PAGE):
            self.write_page(ended[begin : begin + PAGE])
        for record in records:
            if not record.state.closed:
                self.workspace.wake(record.run)
        self.bucket.put(_COMPLETE, b"", durable=True)

    # Reading

    def newest(self, limit: int = 0, *, but: Collection[str] = ()) -> tuple[list[EndedRun], bool]:
        """Return the `limit` runs that ended last (0: all), newest first, and whether there are more.

        `but`: live runs that the caller has listed before. Without a complete index all runs without a record are
        included, whether or not they have ended.
        """
        for _ in range(_TRIES):
            # List loose records first: a record packed between the two listings is then in both, not in neither.
            loose = {key.rest: key for key in self._keys(_LOOSE)}
            pages = self._keys(_PAGES)
            query = (limit, frozenset(but), tuple(loose), tuple(pages))
            if query == self._last_query and self.complete() and not self._broken:
                return self._last_result
            self._replaced = False
            packed, more = self._packed(limit, loose, pages)
            if self._replaced:
                continue
            found: dict[str, _Key] = loose | {run: _key_of(record) for run, record in packed.items()}
            order = sorted((key, run) for run, key in found.items() if run not in but)
            chosen = [run for _, run in order[: limit or None]]
            wanted = [loose[run].name for run in chosen if run not in packed]
            read = dict(zip(wanted, self.each(self._record, wanted), strict=True))
            records = [packed.get(run) or read.get(found[run].name) for run in chosen]
            if all(record or run in self.unread for record, run in zip(records, chosen, strict=True)):
                self._last_query = query
                self._last_result = (
                    [record for record in records if record is not None],
                    more or len(chosen) < len(order),
                )
                return self._last_result
        raise StoreUnreachable(f"workspace {self.workspace.url}: the index of ended runs changes too fast to be read")

    def submitted_last(self, count: int) -> list[str]:
        """Return the ended runs that were submitted last. Reads only the pages that may contain one of them."""
        known = {key.rest: key.submitted for key in self._keys(_LOOSE)}
        for page in sorted(self._keys(_PAGES), key=lambda key: key.submitted, reverse=True):
            if len(known) >= count and page.submitted < sorted(known.values(), reverse=True)[count - 1]:
                break
            known |= {record.run: _seconds(record.state.submitted_at) for record in self._page(page.name)}
        if self._broken or not self.complete():
            known |= {one.run: _seconds(one.state.submitted_at) for one in self._read_all_stories(known)}
        return sorted(known, key=lambda run: known[run], reverse=True)[:count]

    def _packed(self, limit: int, loose: Mapping[str, _Key], pages: list[_Key]) -> tuple[dict[str, EndedRun], bool]:
        """Read pages until the newest `limit` runs are known; also return whether pages are left."""
        found = dict[str, EndedRun]()
        whole = not limit or not self.complete()
        while pages:
            ended = [key.ended for key in loose.values()] + [_key_of(record).ended for record in found.values()]
            lacking = limit - sum(at <= pages[0].ended for at in ended)
            if lacking < 0 and not (whole or self._broken):
                return found, True
            batch = pages if whole or self._broken else pages[: 1 + lacking // PAGE]
            for records in self.each(self._page, [key.name for key in batch]):
                found |= {record.run: record for record in records}
            pages = pages[len(batch) :]
        if self._broken or not self.complete():
            found |= {record.run: record for record in self._read_all_stories({*loose, *found})}
        return found, False

    def _keys(self, prefix: str) -> list[_Key]:
        return [key for name in self.bucket.children(prefix) if (key := _parsed(name)) is not None]

    def _page(self, name: str) -> tuple[EndedRun, ...]:
        """Return the records of a page. If it is damaged, the stories of all runs are read instead."""
        if name not in self._pages and name not in self._broken:
            try:
                self._pages[name] = decoded(self.bucket.get(_PAGES + name), tuple[EndedRun, ...], _PAGES + name)
            except Missing:
                self._replaced = True
            except Damaged:
                self._broken.add(name)
        return self._pages.get(name, ())

    def _record(self, name: str) -> EndedRun | None:
        """Return a loose record; None if it was packed meanwhile, or if neither it nor the story can be read."""
        if name in self._records:
            return self._records[name]
        try:
            found: EndedRun | None = decoded(self.bucket.get(_LOOSE + name), EndedRun, _LOOSE + name)
        except Missing:
            return None
        except Damaged:
            key = _parsed(name)
            found = self._from_story(key.rest) if key is not None else None
        if found is not None:
            self._records[name] = found
        return found

    def _read_all_stories(self, known: Collection[str]) -> list[EndedRun]:
        """Read the stories of all runs that are neither live nor known."""
        live = {*self.workspace.heartbeats(), *self.workspace.wakeups()}
        names = [run for run in self.workspace.runs() if run not in known and run not in live]
        return [record for record in self.each(self._from_story, names) if record is not None]

    def _from_story(self, run: str) -> EndedRun | None:
        if run in self._unindexed:
            return self._unindexed[run]
        try:
            state = self.workspace.story(run).refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            self.unread[run] = problem
            return None
        self.unread.pop(run, None)
        record = record_of(run, state, spec=self._spec(run)) if state.exists else None
        if record is not None and state.closed:
            self._unindexed[run] = record
        return record

    def _spec(self, run: str) -> Spec | None:
        try:
            return self.workspace.request(run).spec
        except (Damaged, NoSuchRun):
            return None  # only the progress display lacks it
