"""A bucket in the simulated world: slow, failing, losing answers; one store, and a view of it for each actor."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from outlast.errors import Exists, Missing, StoreUnreachable
from outlast.testing.faults import Faults
from outlast.testing.hub import Actor, Hub
from outlast.workspace.bucket import Entry, check_key

T = TypeVar("T")


class SimStore:
    """The objects themselves, by the store's own clock. `changed` is told of each change before anybody else acts."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.faults = Faults()
        self.calls: dict[str, int] = {}
        self.changed: Callable[[str, bytes | None], None] = lambda _key, _body: None
        # What a power cut would take away: written and not settled.
        self.unsettled: set[str] = set()
        self._sorted: list[str] = []

    def put(self, key: str, body: bytes) -> Entry:
        if key not in self.objects:
            bisect.insort(self._sorted, key)
        self.objects[key] = (body, self.hub.now)
        self.changed(key, body)
        return Entry(key, len(body), self.hub.now)

    def delete(self, key: str) -> None:
        self.unsettled.discard(key)
        if self.objects.pop(key, None) is not None:
            del self._sorted[bisect.bisect_left(self._sorted, key)]
            self.changed(key, None)

    def keys(self, prefix: str) -> list[str]:
        first = bisect.bisect_left(self._sorted, prefix)
        return self._sorted[first : bisect.bisect_left(self._sorted, prefix + "\U0010ffff")]


class SimBucket:
    """One actor's view of the store. Keeps the `Bucket` contract, cruelly."""

    url = "sim://workspace"

    def __init__(self, store: SimStore, actor: Actor) -> None:
        self.store = store
        self.actor = actor

    def _read(self, label: str, act: Callable[[], T]) -> T:
        """As an effect, but without points: to die beside a read is to have died after the effect before it."""
        return self._effect(label, act, points=False)

    def _effect(self, label: str, act: Callable[[], T], *, points: bool = True) -> T:
        """Time passes, the call may fail before or after it did its work, and the actor may die on either side."""
        hub, faults, actor = self.store.hub, self.store.faults, self.actor
        self.store.calls[label] = self.store.calls.get(label, 0) + 1
        if points:
            hub.point(actor, f"before {label}")
        actor.sleep(hub.dice.expovariate(1.0 / faults.store_slow_s))
        if actor.cut_off or hub.dice.random() < faults.store_fails:
            raise StoreUnreachable(f"the store did not answer to {label}")
        result = act()
        if points:
            hub.point(actor, f"after {label}")
        if hub.dice.random() < faults.store_loses_answers:
            raise StoreUnreachable(f"the answer to {label} was lost")
        return result

    def get(self, key: str) -> bytes:
        return self._read("get", lambda: self._object(key)[0])

    def fill(self, key: str, room: memoryview) -> int:
        body = self._read("get", lambda: self._object(key)[0])[: len(room)]
        room[: len(body)] = body
        return len(body)

    def _object(self, key: str) -> tuple[bytes, float]:
        try:
            return self.store.objects[check_key(key)]
        except KeyError:
            raise Missing(f"`{key}` is not in the workspace") from None

    def put(self, key: str, body: bytes, *, durable: bool = False) -> Entry:
        return self._effect("put", lambda: self.store.put(check_key(key), body))

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        def act() -> None:
            if check_key(key) in self.store.objects:
                raise Exists(f"`{key}` is there already")
            self.store.put(key, body)

        self._effect("create", act)

    def write(self, key: str, body: bytes | memoryview) -> None:
        def act() -> None:
            self.store.unsettled.add(check_key(key))
            self.store.put(key, bytes(body))

        self._effect("write", act)

    def settle(self, keys: Sequence[str]) -> None:
        def act() -> None:
            for key in keys:
                self._object(key)
                self.store.unsettled.discard(key)

        self._effect("settle", act)

    def sweep(self, *, older_s: float) -> int:
        return self._effect("sweep", lambda: 0)

    def upload(self, key: str, path: str) -> None:
        with open(path, "rb") as file:
            body = file.read()
        self._effect("upload", lambda: self.store.put(check_key(key), body))

    def download(self, key: str, path: str) -> None:
        body = self._read("download", lambda: self._object(key)[0])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(body)

    def head(self, key: str) -> Entry:
        def act() -> Entry:
            body, at = self._object(key)
            return Entry(key, len(body), at)

        return self._read("head", act)

    def list(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        def act() -> Sequence[Entry]:
            keys = [key for key in self.store.keys(prefix) if key > after]
            return [Entry(key, len(self.store.objects[key][0]), self.store.objects[key][1]) for key in keys]

        return iter(self._read("list", act))

    def children(self, prefix: str) -> Sequence[str]:
        def act() -> Sequence[str]:
            return sorted({key.removeprefix(prefix).split("/")[0] for key in self.store.keys(prefix)})

        return self._read("children", act)

    def delete(self, key: str) -> None:
        self._effect("delete", lambda: self.store.delete(check_key(key)))
