"""The story of a run: an append-only event log with optimistic writers, one winner per number."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from outlast.errors import Damaged, Exists, InvalidTransition, Missing, WorkspaceError
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.snapshot import GAP, is_due, read_snapshot, write_snapshot
from outlast.runs.state import RunState, step, why_illegal
from outlast.store.bucket import Bucket
from outlast.store.codec import HINT, UNREADABLE
from outlast.store.parallel import ParallelMap, suited_to

E = TypeVar("E", bound=msgspec.Struct)
S = TypeVar("S")

# New events are fetched one by one up to this number, which is cheapest for a reader that follows; then listed.
_PROBES = 3
# Events per parallel fetch.
_CHUNK = 64


def event_key(run: str, number: int) -> str:
    return f"runs/{run}/story/{number:08d}.json"


class Log(ABC, Generic[E, S]):
    """A log as far as this process has read it: events in numbered objects, and their folded state.

    Subclasses define the location and the meaning of the events. Not thread-safe.
    """

    def __init__(self, bucket: Bucket, name: str, *, prefix: str, empty: S, each: ParallelMap | None = None) -> None:
        self.bucket = bucket
        self.name = name
        self.prefix = prefix
        self.each = each or suited_to(bucket.url)
        self.state = empty
        self._empty = empty
        self._events: list[E] = []
        # Events that a snapshot replaces: included in the state and the nonces, but not read.
        self._skipped = 0
        self._nonces: list[str] = []
        self._last_crc32 = 0

    @abstractmethod
    def decode(self, body: bytes) -> E:
        """Parse an event. Raises the exceptions in `UNREADABLE`."""

    @abstractmethod
    def encode(self, event: E) -> bytes:
        """Return the stored form of an event."""

    @abstractmethod
    def step(self, state: S, event: E) -> S:
        """Return the state after one more event. Raises InvalidTransition."""

    @abstractmethod
    def why_illegal(self, state: S, event: E) -> str:
        """Return why the event is illegal; empty if it is legal."""

    @property
    def length(self) -> int:
        """The number of events in the state."""
        return self._skipped + len(self._events)

    @property
    def events(self) -> list[E]:
        """All events. If a snapshot replaced some, fetches them and folds the whole story again."""
        if self._skipped:
            length = self.length
            self._reset()
            self._read(range(1, length + 1))
        return self._events

    def _reset(self) -> None:
        self.state, self._events, self._skipped, self._nonces, self._last_crc32 = self._empty, [], 0, [], 0

    def _key(self, number: int) -> str:
        return f"{self.prefix}{number:08d}.json"

    def refresh(self) -> S:
        """Read the events that other processes have appended since. Events never change, so none is read twice."""
        if not self.length:
            if not self._open_snapshot():
                self._read(self._listed())
            return self.state
        for _ in range(_PROBES):
            try:
                body = self.bucket.get(self._key(self.length + 1))
            except Missing:
                return self.state
            self._fold(body)
        self._read(self._listed())
        return self.state

    def _open_snapshot(self) -> bool:
        """Start from a verified snapshot; return whether there was one."""
        return False

    def _listed(self, first: int = 0) -> range:
        """List the numbers of stored events, from the first unread one (or `first`) on."""
        first = first or self.length + 1
        after = self._key(first - 1) if first > 1 else ""
        number = first
        for entry in self.bucket.list(self.prefix, after=after):
            # A listing may omit an event that was written meanwhile; only `head` proves a gap.
            while entry.key > self._key(number):
                self._check_stored(number)
                number += 1
            number += 1
        return range(first, number)

    def _check_stored(self, number: int) -> None:
        """Raise Damaged if the event is missing: an append would fill the gap below later events and change history."""
        try:
            self.bucket.head(self._key(number))
        except Missing:
            raise self._missing(number) from None

    def _missing(self, number: int) -> Damaged:
        return Damaged(f"the story of {self.name} is damaged: {self._key(number)} is missing", hint=HINT)

    def _read(self, numbers: range) -> None:
        """Fetch and fold the next events of the story, in parallel. Events folded before a failure are kept."""
        for begin in range(0, len(numbers), _CHUNK):
            for body in self._fetched(numbers[begin : begin + _CHUNK]):
                self._fold(body)

    def _fetched(self, numbers: Sequence[int]) -> Iterator[bytes]:
        for number, found in zip(numbers, self.each(self._fetch, numbers), strict=True):
            if isinstance(found, Missing):
                raise self._missing(number)
            if isinstance(found, WorkspaceError):
                raise found
            yield found

    def _fetch(self, number: int) -> bytes | WorkspaceError:
        try:
            return self.bucket.get(self._key(number))
        except WorkspaceError as problem:
            return problem

    def _fold(self, body: bytes) -> None:
        """Add the next event to the state."""
        key = self._key(self.length + 1)
        try:
            event = self.decode(body)
            self._add(event, self.step(self.state, event), body)
        except (*UNREADABLE, InvalidTransition) as problem:
            raise Damaged(f"the story of {self.name} is damaged at {key}: {problem}", hint=HINT) from problem

    def _add(self, event: E, state: S, body: bytes) -> None:
        self.state = state
        self._events.append(event)
        self._nonces.append(getattr(event, "nonce", ""))
        self._last_crc32 = zlib.crc32(body)

    def append(self, event: E, *, nonce: str, new: bool = False) -> bool:
        """Append the event if it is legal in the current state of the story; return whether it was appended.

        `new`: the log is probably empty, so it is read only if its first event exists.

        Exactly one writer wins each number. After a lost response the nonce shows that the event is ours. Raises
        StoreUnreachable; then the event may be stored, and the call may be repeated with the same nonce.
        """
        event = msgspec.structs.replace(event, nonce=nonce)
        while True:
            if not new or self.length:
                self.refresh()
            if nonce in self._nonces:
                return True
            if self.why_illegal(self.state, event):
                return False
            body = self.encode(event)
            try:
                self.bucket.create(self._key(self.length + 1), body)
            except Exists:
                new = False
                continue  # another writer was first, or our response was lost: read and check again
            self._add(event, self.step(self.state, event), body)
            self._appended()
            return True

    def _appended(self) -> None:
        """Run after each event that this process appended."""

    def append_or_raise(self, event: E, *, nonce: str, new: bool = False) -> None:
        """Append the event, or raise InvalidTransition with the reason."""
        if not self.append(event, nonce=nonce, new=new):
            raise InvalidTransition(
                f"{self.name}: {type(event).__name__} was refused: {self.why_illegal(self.state, event)}",
                hint=format_story(self.events),
            )


class Story(Log[Event, RunState]):
    """One run's story, with a snapshot beside it. `gap`: events between two snapshots."""

    def __init__(self, bucket: Bucket, run: str, *, each: ParallelMap | None = None, gap: int = GAP) -> None:
        super().__init__(bucket, run, prefix=f"runs/{run}/story/", empty=RunState(), each=each)
        self.run = run
        self.gap = gap
        # The length of the newest snapshot that this process knows of.
        self._kept = 0

    def decode(self, body: bytes) -> Event:
        return ev.decode(body)

    def encode(self, event: Event) -> bytes:
        return ev.encode(event)

    def step(self, state: RunState, event: Event) -> RunState:
        return step(state, event)

    def why_illegal(self, state: RunState, event: Event) -> str:
        return why_illegal(state, event)

    def _open_snapshot(self) -> bool:
        """Start from the snapshot and read the events after it.

        Its last event is fetched as well, so that a snapshot of another story, or ahead of its story, is not used.
        """
        found = read_snapshot(self.bucket, self.run)
        if found is None:
            return False
        try:
            listed = self._listed(found.length)
        except Damaged:
            return False  # reading the whole story reports the gap
        if not listed:
            return False
        bodies = self._fetched(listed[:_CHUNK])
        if zlib.crc32(next(bodies)) != found.last_crc32:
            return False
        self.state, self._skipped, self._nonces = found.state, found.length, list(found.nonces)
        self._last_crc32, self._kept = found.last_crc32, found.length
        try:
            for body in bodies:
                self._fold(body)
            self._read(listed[_CHUNK:])
        except Damaged:
            self._reset()
            return False  # reading the whole story shows whether the event or the snapshot is damaged
        return True

    def _appended(self) -> None:
        if is_due(self.length, self._kept, self.gap):
            nonces = tuple(self._nonces)
            if write_snapshot(self.bucket, self.run, self.state, last_crc32=self._last_crc32, nonces=nonces):
                self._kept = self.length


def format_story(events: Sequence[Any], describe: Callable[[Any], str] | None = None) -> str:
    """Return the story as text, one event per line."""
    describe = describe or (lambda event: type(event).__name__ + _fields(event))
    return "\n".join(f"{number:4d} {describe(event)}" for number, event in enumerate(events, 1))


def _fields(event: Any) -> str:
    shown = {k: v for k, v in msgspec.structs.asdict(event).items() if k not in ("at", "nonce", "by")}
    return "(" + ", ".join(f"{k}={v!r}" for k, v in shown.items()) + ")"
