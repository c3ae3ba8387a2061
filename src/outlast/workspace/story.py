"""The story of a run: append-only, optimistic, one winner per number. The log protocol everything rests on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlast.errors import Damaged, Exists, InvalidTransition, Missing
from outlast.workspace import events as ev
from outlast.workspace.bucket import Bucket
from outlast.workspace.codec import HINT, UNREADABLE
from outlast.workspace.events import Event
from outlast.workspace.state import RunState, illegal, step


def event_key(run: str, number: int) -> str:
    return f"runs/{run}/story/{number:08d}.json"


class Story:
    """One run's story as far as this process has read it. Not shared between threads."""

    def __init__(self, bucket: Bucket, run: str) -> None:
        self.bucket = bucket
        self.run = run
        self.events: list[Event] = []
        self.state = RunState()

    def refresh(self) -> RunState:
        """Read what others have appended since. Events are never changed, so the old ones are not read again."""
        if self.events:
            while self._read_next():
                pass
            return self.state
        for entry in self.bucket.list(f"runs/{self.run}/story/"):
            key = event_key(self.run, len(self.events) + 1)
            if entry.key != key or not self._read_next():
                # Going on would fill the gap beneath what is there, and tell another story.
                raise Damaged(f"the story of {self.run} is damaged: {key} is missing", hint=HINT)
        return self.state

    def _read_next(self) -> bool:
        key = event_key(self.run, len(self.events) + 1)
        try:
            body = self.bucket.get(key)
        except Missing:
            return False
        try:
            event = ev.decode(body)
            self.state = step(self.state, event)
        except (*UNREADABLE, InvalidTransition) as problem:
            raise Damaged(f"the story of {self.run} is damaged at {key}: {problem}", hint=HINT) from problem
        self.events.append(event)
        return True

    def append(self, event: Event, *, nonce: str) -> bool:
        """Append the event if it is a legal step from whatever the story has become; False if it is none.

        Exactly one writer wins each number. A lost answer is no harm: the nonce shows that the event found is ours.
        Raises StoreUnreachable; then the event may or may not be there, and appending it again with the same nonce
        is right.
        """
        event = msgspec.structs.replace(event, nonce=nonce)
        while True:
            self.refresh()
            if any(known.nonce == nonce for known in self.events):
                return True
            if illegal(self.state, event):
                return False
            try:
                self.bucket.create(event_key(self.run, len(self.events) + 1), ev.encode(event))
            except Exists:
                continue  # somebody was first, or it was we and the answer was lost: read again, check again
            self.state = step(self.state, event)
            self.events.append(event)
            return True

    def demand(self, event: Event, *, nonce: str) -> None:
        """Append, or raise InvalidTransition with the reason: for writers for whom a refusal is a bug or the end."""
        if not self.append(event, nonce=nonce):
            raise InvalidTransition(
                f"{self.run}: {type(event).__name__} was refused: {illegal(self.state, event)}",
                hint=tell(self.events),
            )


def tell(events: list[Event], describe: Callable[[Event], str] | None = None) -> str:
    """The story as text, an event a line, for errors and golden tests."""
    describe = describe or (lambda event: type(event).__name__ + _fields(event))
    return "\n".join(f"{number:4d} {describe(event)}" for number, event in enumerate(events, 1))


def _fields(event: Event) -> str:
    shown = {k: v for k, v in msgspec.structs.asdict(event).items() if k not in ("at", "nonce", "by")}
    return "(" + ", ".join(f"{k}={v!r}" for k, v in shown.items()) + ")"
