"""The story of a run: append-only, optimistic, one winner per number. The log protocol everything rests on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from outlast.errors import Damaged, Exists, InvalidTransition, Missing
from outlast.workspace import events as ev
from outlast.workspace.bucket import Bucket
from outlast.workspace.codec import HINT, UNREADABLE
from outlast.workspace.events import Event
from outlast.workspace.state import RunState, illegal, step

E = TypeVar("E", bound=msgspec.Struct)
S = TypeVar("S")


def event_key(run: str, number: int) -> str:
    return f"runs/{run}/story/{number:08d}.json"


class Log(ABC, Generic[E, S]):
    """A story as far as this process has read it: events in numbered objects, and the state that they tell. Not shared
    between threads. Who makes one says where its events are and what they mean."""

    def __init__(self, bucket: Bucket, name: str, *, prefix: str, empty: S) -> None:
        self.bucket = bucket
        self.name = name
        self.prefix = prefix
        self.events: list[E] = []
        self.state = empty

    @abstractmethod
    def decode(self, body: bytes) -> E:
        """Raises what is in `UNREADABLE`."""

    @abstractmethod
    def encode(self, event: E) -> bytes:
        """The event as it is stored."""

    @abstractmethod
    def step(self, state: S, event: E) -> S:
        """The state after one more event. Raises InvalidTransition."""

    @abstractmethod
    def illegal(self, state: S, event: E) -> str:
        """Why the event is no legal step; empty if it is one."""

    def _key(self, number: int) -> str:
        return f"{self.prefix}{number:08d}.json"

    def refresh(self) -> S:
        """Read what others have appended since. Events are never changed, so the old ones are not read again."""
        if self.events:
            while self._read_next():
                pass
            return self.state
        for entry in self.bucket.list(self.prefix):
            key = self._key(len(self.events) + 1)
            if entry.key != key or not self._read_next():
                # Going on would fill the gap beneath what is there, and tell another story.
                raise Damaged(f"the story of {self.name} is damaged: {key} is missing", hint=HINT)
        return self.state

    def _read_next(self) -> bool:
        key = self._key(len(self.events) + 1)
        try:
            body = self.bucket.get(key)
        except Missing:
            return False
        try:
            event = self.decode(body)
            self.state = self.step(self.state, event)
        except (*UNREADABLE, InvalidTransition) as problem:
            raise Damaged(f"the story of {self.name} is damaged at {key}: {problem}", hint=HINT) from problem
        self.events.append(event)
        return True

    def append(self, event: E, *, nonce: str) -> bool:
        """Append the event if it is a legal step from whatever the story has become; False if it is none.

        Exactly one writer wins each number. A lost answer is no harm: the nonce shows that the event found is ours.
        Raises StoreUnreachable; then the event may or may not be there, and appending it again with the same nonce
        is right.
        """
        event = msgspec.structs.replace(event, nonce=nonce)
        while True:
            self.refresh()
            if any(getattr(known, "nonce", "") == nonce for known in self.events):
                return True
            if self.illegal(self.state, event):
                return False
            try:
                self.bucket.create(self._key(len(self.events) + 1), self.encode(event))
            except Exists:
                continue  # somebody was first, or it was we and the answer was lost: read again, check again
            self.state = self.step(self.state, event)
            self.events.append(event)
            return True

    def demand(self, event: E, *, nonce: str) -> None:
        """Append, or raise InvalidTransition with the reason: for writers for whom a refusal is a bug or the end."""
        if not self.append(event, nonce=nonce):
            raise InvalidTransition(
                f"{self.name}: {type(event).__name__} was refused: {self.illegal(self.state, event)}",
                hint=tell(self.events),
            )


class Story(Log[Event, RunState]):
    """One run's story."""

    def __init__(self, bucket: Bucket, run: str) -> None:
        super().__init__(bucket, run, prefix=f"runs/{run}/story/", empty=RunState())
        self.run = run

    def decode(self, body: bytes) -> Event:
        return ev.decode(body)

    def encode(self, event: Event) -> bytes:
        return ev.encode(event)

    def step(self, state: RunState, event: Event) -> RunState:
        return step(state, event)

    def illegal(self, state: RunState, event: Event) -> str:
        return illegal(state, event)


def tell(events: Sequence[Any], describe: Callable[[Any], str] | None = None) -> str:
    """The story as text, an event a line, for errors and golden tests."""
    describe = describe or (lambda event: type(event).__name__ + _fields(event))
    return "\n".join(f"{number:4d} {describe(event)}" for number, event in enumerate(events, 1))


def _fields(event: Any) -> str:
    shown = {k: v for k, v in msgspec.structs.asdict(event).items() if k not in ("at", "nonce", "by")}
    return "(" + ", ".join(f"{k}={v!r}" for k, v in shown.items()) + ")"
