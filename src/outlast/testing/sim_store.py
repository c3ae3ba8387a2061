"""The store of the simulated world, with faults, and one bucket per actor."""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from outlast.errors import Exists, Missing, StoreUnreachable, WorkspaceError
from outlast.store.bucket import Entry, check_key
from outlast.testing.faults import WorldFaults
from outlast.testing.scheduler import Actor, Scheduler

T = TypeVar("T")
# Events between two snapshots of a story: few, so that most worlds have some.
SNAPSHOT_GAP = 3


class SimStore:
    """The objects, with the store's clock. `changed` is called at each change, before any actor continues."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.faults = WorldFaults()
        self.calls: dict[str, int] = {}
        self.changed: Callable[[str, bytes | None], None] = lambda _key, _body: None
        # Key → the body that a power cut would leave (None: no object), for writes that are not durable.
        self.not_durable: dict[str, bytes | None] = {}
        # Keys whose objects a fault has damaged or removed → the time of the last fault.
        self.damaged: dict[str, float] = {}
        self.lost: set[str] = set()
        # Prefixes below which the store permanently refuses uploads.
        self.refused: set[str] = set()
        self._sorted: list[str] = []

    def put(self, key: str, body: bytes, *, durable: bool = True) -> Entry:
        if durable:
            self.not_durable.pop(key, None)
        elif key not in self.not_durable:
            self.not_durable[key] = self.objects[key][0] if key in self.objects else None
        if key not in self.objects:
            bisect.insort(self._sorted, key)
        self.objects[key] = (body, self.scheduler.now)
        self.changed(key, body)
        return Entry(key, len(body), self.scheduler.now)

    def delete(self, key: str) -> None:
        self.not_durable.pop(key, None)
        if self._drop(key):
            self.changed(key, None)

    def _drop(self, key: str) -> bool:
        if self.objects.pop(key, None) is None:
            return False
        del self._sorted[bisect.bisect_left(self._sorted, key)]
        return True

    def damage(self, key: str, body: bytes | None) -> None:
        """Damage an object, or lose it (None). `changed` is not called, since no process did it."""
        self.damaged[key] = self.scheduler.now
        if body is None:
            self.lost.add(key)
            self._drop(key)
        elif key in self.objects:
            self.objects[key] = (body, self.objects[key][1])

    def cut_power(self) -> None:
        """Lose every write that is not durable."""
        for key, body in self.not_durable.items():
            self.damage(key, body)
        self.not_durable.clear()

    def keys(self, prefix: str) -> list[str]:
        first = bisect.bisect_left(self._sorted, prefix)
        return self._sorted[first : bisect.bisect_left(self._sorted, prefix + "\U0010ffff")]


class SimBucket:
    """One actor's view of the store: the `Bucket` contract with faults."""

    url = "sim://workspace"

    def __init__(self, store: SimStore, actor: Actor) -> None:
        self.store = store
        self.actor = actor

    def _read(self, label: str, act: Callable[[], T]) -> T:
        """Apply an effect without crash points: dying at a read is the same as dying after the previous effect."""
        return self._effect(label, act, points=False)

    def _effect(self, label: str, act: Callable[[], T], *, points: bool = True) -> T:
        """Apply an effect: time passes, the call may fail before or after it, and the actor may die on either side."""
        scheduler, faults, actor = self.store.scheduler, self.store.faults, self.actor
        self.store.calls[label] = self.store.calls.get(label, 0) + 1
        if points:
            scheduler.point(actor, f"before {label}")
        actor.sleep(scheduler.rng.expovariate(1.0 / (faults.store_slow_s * actor.slowness)))
        if actor.cut_off or scheduler.rng.random() < faults.store_fails:
            raise StoreUnreachable(f"the store did not answer {label}")
        result = act()
        if points:
            scheduler.point(actor, f"after {label}")
        if scheduler.rng.random() < faults.store_loses_answers:
            raise StoreUnreachable(f"the response to {label} was lost")
        return result

    def get(self, key: str) -> bytes:
        return self._read("get", lambda: self._object(key)[0])

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._read("get", lambda: self._object(key)[0][start : start + length])

    def read_into(self, key: str, room: memoryview) -> int:
        body = self._read("get", lambda: self._object(key)[0])[: len(room)]
        room[: len(body)] = body
        return len(body)

    def _object(self, key: str) -> tuple[bytes, float]:
        try:
            return self.store.objects[check_key(key)]
        except KeyError:
            raise Missing(f"`{key}` is not in the workspace") from None

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        self._effect("put", lambda: self.store.put(check_key(key), body, durable=durable))

    def now(self, key: str) -> float:
        return self._effect("put", lambda: self.store.put(check_key(key), b"", durable=False)).modified_at

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        def act() -> None:
            if check_key(key) in self.store.objects:
                raise Exists(f"`{key}` already exists")
            self.store.put(key, body, durable=durable)

        self._effect("create", act)

    def write(self, key: str, body: bytes | memoryview) -> None:
        def act() -> None:
            self.store.put(check_key(key), bytes(body), durable=False)

        self._effect("write", act)

    def make_durable(self, keys: Sequence[str]) -> None:
        def act() -> None:
            for key in keys:
                self._object(key)
                self.store.not_durable.pop(key, None)

        self._effect("make_durable", act)

    def remove_stale_writes(self, *, older_s: float) -> int:
        return self._effect("remove_stale_writes", lambda: 0)

    def upload(self, key: str, path: str) -> None:
        with open(path, "rb") as file:
            body = file.read()

        def act() -> None:
            if key.rpartition("/")[0] in self.store.refused:
                raise WorkspaceError(f"the store refuses `{key}`: permission denied")
            self.store.put(check_key(key), body)

        self._effect("upload", act)

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

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        def act() -> Sequence[Entry]:
            keys = [key for key in self.store.keys(prefix) if key > after][: limit or None]
            return [Entry(key, len(self.store.objects[key][0]), self.store.objects[key][1]) for key in keys]

        return iter(self._read("list", act))

    def children(self, prefix: str) -> Sequence[str]:
        def act() -> Sequence[str]:
            return sorted({key.removeprefix(prefix).split("/")[0] for key in self.store.keys(prefix)})

        return self._read("children", act)

    def delete(self, key: str) -> None:
        self._effect("delete", lambda: self.store.delete(check_key(key)))

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)
