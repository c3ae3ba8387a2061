"""Data that only some pages show, read once for all viewers and only while there are any.

A topic is read in a thread, repeatedly while it has viewers; they are called in the event loop after a change.
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
# The maximum interval after failed reads.
_RETRY_MAX_S = 10.0


@runtime_checkable
class Closable(Protocol):
    """A reader with a resource, such as a connection, that must be closed after the last viewer has left."""

    def close(self) -> None: ...


class TopicUpdate(Generic[T]):
    """The newest value, if there is one, and the problem of the last read."""

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
        self.latest: TopicUpdate[T] = TopicUpdate()
        self.viewers: dict[int, Callable[[TopicUpdate[T]], None]] = {}
        self._numbers = iter(range(1, 2**62))
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, viewer: Callable[[TopicUpdate[T]], None]) -> Callable[[], None]:
        """Call `viewer` now, if there is a value, and after every change. Return a function that ends it."""
        number = next(self._numbers)
        self.viewers[number] = viewer
        if self.latest.at:
            viewer(self.latest)
        if self._task is None or self._task.done():
            self._task = background_tasks.create(self._follow(), name="topic")

        def unsubscribe() -> None:
            self.viewers.pop(number, None)

        return unsubscribe

    async def _follow(self) -> None:
        failures = 0
        while self.viewers:
            began = time.monotonic()
            failures = 0 if await self._refresh() else failures + 1
            took_s = time.monotonic() - began
            # At most half of the time, and less often after failures.
            await asyncio.sleep(min(_RETRY_MAX_S, max(self.every_s, took_s) * 2 ** min(failures, 4)))
        reader: object = self.read
        if isinstance(reader, Closable):
            await run.io_bound(reader.close)

    async def _refresh(self) -> bool:
        before = self.latest
        try:
            value = await run.io_bound(self.read)
        except OutlastError as problem:
            latest = TopicUpdate(before.value, at=time.time(), problem=problem.message, hint=problem.hint)
            latest.offline = isinstance(problem, StoreUnreachable)
        else:
            latest = TopicUpdate(value, at=time.time())
        self.latest = latest
        if not before.at or (latest.value, latest.problem) != (before.value, before.problem):
            for viewer in list(self.viewers.values()):
                viewer(latest)
        return not latest.problem


_TOPICS: weakref.WeakKeyDictionary[Feed, dict[Hashable, Topic[Any]]] = weakref.WeakKeyDictionary()


def follow(
    view: PageView,
    key: Hashable,
    make: Callable[[], Callable[[], T]],
    viewer: Callable[[TopicUpdate[T]], None],
    *,
    every_s: float = 1.0,
    remote_s: float = 5.0,
) -> None:
    """Send a topic to a page while it is open.

    `make` creates the reader for the first viewer; it is called in threads, one at a time. `remote_s` is the interval
    for a remote store.
    """
    topics = _TOPICS.setdefault(view.feed, {})
    remote = view.workspace.store.remote
    slot = view.client.content
    subscriptions: list[Callable[[], None]] = []

    def update(latest: TopicUpdate[T]) -> None:
        if not view.client.is_deleted:
            with slot:
                viewer(latest)

    def begin() -> None:
        if subscriptions:
            return
        topic: Topic[T] | None = topics.get(key)
        if topic is None:
            topic = topics[key] = Topic(make(), every_s=remote_s if remote else every_s)
        subscriptions.append(topic.subscribe(update))

    def end() -> None:
        for unsubscribe in subscriptions:
            unsubscribe()
        if key in topics and not topics[key].viewers:
            del topics[key]

    view.client.on_connect(begin)
    view.client.on_delete(end)
