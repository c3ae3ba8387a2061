"""What only some pages show, read by one reader for all who look at it, and by nobody when nobody does.

A topic is read in a thread, again and again while it has viewers; they are told in the event loop, when it changed.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from nicegui import background_tasks, run

from outlast.errors import OutlastError, StoreUnreachable
from outlast.ui.feed import Feed
from outlast.ui.layout import PageView

T = TypeVar("T")
# How long a reading that failed is waited with, at the longest.
_PATIENCE_S = 10.0


@runtime_checkable
class Closes(Protocol):
    """A reader that holds something, a connection say, and lets go of it when nobody looks any more."""

    def close(self) -> None: ...


class TopicUpdate(Generic[T]):
    """What viewers are told: the newest value, if there is one, and what went wrong since."""

    def __init__(self, value: T | None = None, *, at: float = 0.0, problem: str = "", hint: str = "") -> None:
        self.value = value
        self.at = at
        self.problem = problem
        self.hint = hint
        self.offline = False


class Topic(Generic[T]):
    def __init__(self, read: Callable[[], T], *, every_s: float) -> None:
        self.read = read
        self.every_s = every_s
        self.told: TopicUpdate[T] = TopicUpdate()
        self.viewers: dict[int, Callable[[TopicUpdate[T]], None]] = {}
        self._numbers = iter(range(1, 2**62))
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, viewer: Callable[[TopicUpdate[T]], None]) -> Callable[[], None]:
        """For the event loop. Comes at once with what there is, if there is something; the answer ends it."""
        number = next(self._numbers)
        self.viewers[number] = viewer
        if self.told.at:
            viewer(self.told)
        if self._task is None or self._task.done():
            self._task = background_tasks.create(self._follow(), name="topic")

        def leave() -> None:
            self.viewers.pop(number, None)

        return leave

    async def _follow(self) -> None:
        failures = 0
        while self.viewers:
            began = time.monotonic()
            failures = 0 if await self._look() else failures + 1
            took_s = time.monotonic() - began
            # Half of the time at most, and less often what does not answer.
            await asyncio.sleep(min(_PATIENCE_S, max(self.every_s, took_s) * 2 ** min(failures, 4)))
        reader: object = self.read
        if isinstance(reader, Closes):
            await run.io_bound(reader.close)

    async def _look(self) -> bool:
        before = self.told
        try:
            value = await run.io_bound(self.read)
        except OutlastError as problem:
            told = TopicUpdate(before.value, at=time.time(), problem=problem.message, hint=problem.hint)
            told.offline = isinstance(problem, StoreUnreachable)
        else:
            told = TopicUpdate(value, at=time.time())
        self.told = told
        if not before.at or (told.value, told.problem) != (before.value, before.problem):
            for viewer in list(self.viewers.values()):
                viewer(told)
        return not told.problem


_TOPICS: weakref.WeakKeyDictionary[Feed, dict[Hashable, Topic[Any]]] = weakref.WeakKeyDictionary()


def follow(
    view: PageView,
    key: Hashable,
    make: Callable[[], Callable[[], T]],
    viewer: Callable[[TopicUpdate[T]], None],
    *,
    every_s: float = 1.0,
    far_s: float = 5.0,
) -> None:
    """Tell a page of a topic for as long as it is open. `make` makes the reader, which may have a memory, for the first
    who asks; it is called in threads, one at a time. `far_s`: how often where every look is a request."""
    topics = _TOPICS.setdefault(view.feed, {})
    far = "://" in view.workspace.url
    slot = view.client.content
    left: list[Callable[[], None]] = []

    def tell(told: TopicUpdate[T]) -> None:
        if not view.client.is_deleted:
            with slot:
                viewer(told)

    def begin() -> None:
        if left:
            return
        topic: Topic[T] | None = topics.get(key)
        if topic is None:
            topic = topics[key] = Topic(make(), every_s=far_s if far else every_s)
        left.append(topic.subscribe(tell))

    def end() -> None:
        for leave in left:
            leave()
        if key in topics and not topics[key].viewers:
            del topics[key]

    view.client.on_connect(begin)
    view.client.on_delete(end)
