"""The caller's side of a pool: a thread that queues calls, delivers results and repeats calls of lost machines."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from outlast.errors import Exists, Missing, OutlastError, StoreUnreachable, WorkspaceError
from outlast.executor import pickling
from outlast.executor.fleet import Fleet, Report
from outlast.executor.futures import BrokenPool, CallFuture, settle
from outlast.executor.records import CallerHeartbeat, Claim, PoolKeys, PoolRecord, QueueEntry, name_of, number_of
from outlast.store.codec import decoded
from outlast.user import current_user

if TYPE_CHECKING:
    from outlast.workspace import Workspace

_POLL_S, _POLL_REMOTE_S = 0.01, 1.0
# How often stories and claims are read: less often than results.
_WATCH_S, _WATCH_REMOTE_S = 0.25, 5.0
_ALIVE_S = 20.0
_RETRY_S = 1.0
# Calls that are written in one round.
_BATCH = 32
# Keys in one deletion.
_DELETED = 1000
# Workers that fail in a row, without any call completed, break the pool.
_FAILURES = 3

R = TypeVar("R")

# The pools whose thread runs: their results are still awaited when the interpreter ends.
_serving: set[WorkerPool] = set()


class PendingCall:
    """A call whose result was not delivered yet."""

    def __init__(self, number: int, future: CallFuture, payload: bytes, blobs: tuple[str, ...]) -> None:
        self.number = number
        self.future = future
        # Kept until it is written.
        self.payload = payload
        self.blobs = blobs
        # Its newest queue entry; 0 before it was written.
        self.entry = 0


class WorkerPool:
    """The queue, the results and the workers of one Executor."""

    def __init__(
        self,
        workspace: Workspace,
        options: Mapping[str, Any],
        *,
        min_workers: int,
        max_workers: int,
        per_machine: int,
        idle_s: float,
        report: Report,
    ) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        self.id = f"{time.strftime('%Y%m%d')}-{workspace.ids()}"
        self.keys = PoolKeys(self.id)
        self.min_workers, self.max_workers, self.per_machine = min_workers, max_workers, per_machine
        self.fleet = Fleet(workspace, self.id, options, report=report)
        self._far = workspace.store.remote
        self._write_records(idle_s)
        self._lock = threading.Lock()
        self._calls: dict[int, PendingCall] = {}
        self._outbox: list[PendingCall] = []
        self._entries: dict[int, PendingCall] = {}
        self._claims: dict[int, Claim] = {}
        self._stored: set[str] = set()
        self._numbers = [0, 0]
        self._completed = 0
        self._watched_at = self._alive_at = 0.0
        self._wakeup = threading.Event()
        self._closing = False
        self.broken = ""
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="outlast-results")
        self._thread = threading.Thread(target=self._serve, name=f"outlast-pool-{self.id}", daemon=True)
        _serving.add(self)
        self._thread.start()

    def _write_records(self, idle_s: float) -> None:
        record = PoolRecord(
            id=self.id,
            who=current_user(),
            python="{}.{}".format(*sys.version_info),
            interpreter=self.fleet.interpreter,
            per_machine=self.per_machine,
            idle_s=idle_s,
        )
        self.bucket.create(self.keys.library, pickling.library())
        self.bucket.create(self.keys.record, msgspec.json.encode(record))
        self._write_heartbeat()

    # Called by users' threads

    def submit(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallFuture:
        """Queue a call. Raises BrokenPool, RuntimeError after the shutdown, and errors of pickling."""
        blobs: list[str] = []

        def store(digest: str, body: bytes) -> None:
            blobs.append(digest)
            self._store_blob(digest, body)

        payload = pickling.dumps((function, tuple(args), dict(kwargs)), store)
        with self._lock:
            if self.broken:
                raise BrokenPool(self.broken)
            if self._closing:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._numbers[0] += 1
            call = PendingCall(self._numbers[0], CallFuture(self), payload, tuple(dict.fromkeys(blobs)))
            call.future.call = call
            self._calls[call.number] = call
            self._outbox.append(call)
        self._wakeup.set()
        return call.future

    def _store_blob(self, digest: str, body: bytes) -> None:
        if digest in self._stored:
            return
        try:
            self.bucket.create(self.keys.blobs + digest, body, durable=False)
        except Exists:
            pass
        self._stored.add(digest)

    def withdraw(self, call: PendingCall) -> bool:
        """Return whether no worker executes the call, now or later: its entry is claimed for the caller."""
        with self._lock:
            if call.number not in self._calls or call.future.running():
                return False
            entry = call.entry
            if not entry:  # not queued yet: `_enqueue` leaves it out
                del self._calls[call.number]
        # Without the lock: the store may take long, and other calls go on.
        if entry:
            if not self._claim_for_caller(entry):
                return False
            with self._lock:
                if self._calls.pop(call.number, None) is None:
                    return False  # an earlier attempt has delivered its result
                self._entries.pop(entry, None)
        self._wakeup.set()
        return True

    def _claim_for_caller(self, entry: int) -> bool:
        """Claim an entry. A claim that exists may be ours: an earlier answer was lost."""
        key = self.keys.claims + name_of(entry)
        self._create(key, msgspec.json.encode(Claim()))
        return decoded(self._retried(self.bucket.get, key), Claim, key).is_callers

    def cancel(self, futures: Iterable[Future[Any]]) -> None:
        """Cancel what no worker has begun."""
        self.workspace.each(Future.cancel, list(futures))

    def pending(self) -> list[CallFuture]:
        with self._lock:
            return [call.future for call in self._calls.values()]

    def close(self) -> None:
        """Accept no more calls; the thread ends when all results were delivered."""
        with self._lock:
            self._closing = True
        self._wakeup.set()

    def join(self) -> None:
        self._thread.join()

    # The thread

    def _serve(self) -> None:
        poll_s = _POLL_REMOTE_S if self._far else _POLL_S
        while True:
            worked = False
            try:
                worked = not self.broken and self._round()
            except StoreUnreachable:
                time.sleep(_RETRY_S)
            except OutlastError as problem:
                # Nothing repeats what the workspace refuses; without this the futures would wait for ever.
                self._break(f"{problem.message}; {problem.hint}" if problem.hint else problem.message)
            except Exception as problem:  # noqa: BLE001 - the outermost loop of this thread: without it calls never end
                self._break(f"{type(problem).__name__}: {problem}")
            with self._lock:
                if self._closing and not self._calls:
                    break
            if not worked and self._wakeup.wait(poll_s):
                self._wakeup.clear()
        self._decoder.shutdown()
        self._remove()
        _serving.discard(self)

    def _round(self) -> bool:
        """Write new calls, deliver results, and from time to time look after the workers."""
        now = time.monotonic()
        if now - self._alive_at > _ALIVE_S:
            self._write_heartbeat()
        written = self._write_calls()
        if written or now - self._watched_at > (_WATCH_REMOTE_S if self._far else _WATCH_S):
            self.fleet.refresh()
            # After the stories: a result is stored before the end of its attempt is recorded.
            delivered = self._deliver()
            self._repeat_lost()
            self._scale()
            self._watched_at = now
            return delivered or written
        return self._deliver()

    def _write_heartbeat(self) -> None:
        keep = self.fleet.live[: self.min_workers]
        self.bucket.put(self.keys.alive, msgspec.json.encode(CallerHeartbeat(keep=keep)))
        self._alive_at = time.monotonic()

    def _write_calls(self) -> bool:
        with self._lock:
            batch, self._outbox = self._outbox[:_BATCH], self._outbox[_BATCH:]
        if not batch:
            return False
        self.workspace.each(self._write_call, batch)
        return True

    def _write_call(self, call: PendingCall) -> None:
        key = self.keys.calls + name_of(call.number)
        self._create(key, call.payload)
        call.payload = b""
        self._enqueue(call, QueueEntry(call=call.number, payload=key, blobs=call.blobs))

    def _enqueue(self, call: PendingCall, entry: QueueEntry) -> None:
        with self._lock:
            if call.number not in self._calls:
                return  # cancelled meanwhile
            self._numbers[1] += 1
            number = call.entry = self._numbers[1]
            self._entries[number] = call
        self._create(self.keys.queue + name_of(number), msgspec.json.encode(entry))

    def _create(self, key: str, body: bytes) -> None:
        """Create an object of this caller; one that exists is ours, whose answer was lost."""
        try:
            self._retried(self.bucket.create, key, body, durable=False)
        except Exists:
            pass

    def _retried(self, act: Callable[..., R], *args: Any, **options: Any) -> R:
        """Repeat an operation while the store is unreachable."""
        while True:
            try:
                return act(*args, **options)
            except StoreUnreachable:
                time.sleep(_RETRY_S)

    # Results

    def _deliver(self) -> bool:
        """Set the results of futures. A second result of a call is ignored."""
        keys = [entry.key for entry in self.bucket.list(self.keys.results)]
        if not keys:
            return False
        with self._lock:
            new = [key for key in keys if number_of(key) in self._calls]
        # All are read before any is delivered: a store that fails in between loses none.
        for key, body in zip(new, self.workspace.each(self.bucket.get, new), strict=True):
            with self._lock:
                call = self._calls.pop(number_of(key), None)
                if call is None:
                    continue  # cancelled meanwhile
                self._entries.pop(call.entry, None)
            self._claims.pop(call.entry, None)
            self._completed += 1
            self._decoder.submit(pickling.outcome, body).add_done_callback(_setter(call.future))
            keys += [self.keys.queue + name_of(call.entry), self.keys.calls + name_of(call.number)]
        self.bucket.delete_many(keys)
        return True

    def _repeat_lost(self) -> None:
        """Read new claims; queue calls again whose attempt is over, or that saved themselves at a preemption."""
        with self._lock:
            entries = dict(self._entries)
        if not entries:
            return
        before = self.keys.claims + name_of(min(entries) - 1)
        claimed = [number_of(one.key) for one in self.bucket.list(self.keys.claims, after=before)]
        for number in claimed:
            if number in entries and number not in self._claims:
                key = self.keys.claims + name_of(number)
                claim = self._claims[number] = decoded(self.bucket.get(key), Claim, key)
                if not claim.is_callers:
                    entries[number].future.mark_running()
        returned = {number_of(one.key) for one in self.bucket.list(self.keys.returns)}
        for number, call in entries.items():
            held = self._claims.get(number)
            if number in returned:
                # The call goes on from where it saved itself; large objects are inside.
                self._again(number, call, QueueEntry(call=call.number, payload=self.keys.returns + name_of(number)))
            elif held is not None and self.fleet.is_lost(held):
                self._again(number, call, None)

    def _again(self, number: int, call: PendingCall, entry: QueueEntry | None) -> None:
        key = self.keys.queue + name_of(number)
        if entry is None:
            try:
                entry = decoded(self.bucket.get(key), QueueEntry, key)
            except Missing:
                return  # delivered meanwhile
        with self._lock:
            if self._entries.pop(number, None) is None or call.number not in self._calls:
                return
        self._claims.pop(number, None)
        self._enqueue(call, entry)
        self.bucket.delete(key)

    # Workers

    def _scale(self) -> None:
        with self._lock:
            calls = len(self._calls)
        if len(self.fleet.failures) >= _FAILURES and not self._completed:
            self._break(f"workers fail: {self.fleet.failures[-1]}")
            return
        if self._completed:
            self.fleet.failures.clear()
            self._completed = 0
        needed = -(-calls // self.per_machine)
        least = 0 if self._closing else self.min_workers
        wanted = min(self.max_workers, max(least, needed))
        if wanted > len(self.fleet.live):
            self.fleet.grow(wanted)
            self._write_heartbeat()

    def _break(self, why: str) -> None:
        with self._lock:
            self.broken = why
            calls, self._calls = list(self._calls.values()), {}
            self._outbox.clear()
            self._entries.clear()
        for call in calls:
            settle(call.future, BrokenPool(why))

    def _remove(self) -> None:
        """Close the pool and delete its calls. If the store fails, they stay for `outlast prune`."""
        try:
            self.bucket.put(self.keys.closed, b"")
            for prefix in self.keys.of_calls:
                keys = [entry.key for entry in self.bucket.list(prefix)]
                batches = [keys[begin : begin + _DELETED] for begin in range(0, len(keys), _DELETED)]
                self.workspace.each(self.bucket.delete_many, batches)
        except WorkspaceError:
            pass


def _setter(future: CallFuture) -> Any:
    def set_result(decoding: Future[Any]) -> None:
        future.deliver(decoding)

    return set_result


def finish_all() -> None:
    """Wait for all calls at the end of the interpreter, as the executors of the standard library do."""
    for pool in list(_serving):
        pool.close()
    for pool in list(_serving):
        pool.join()


# Before the end of the standard library's own pools, which results need; `atexit` comes after it.
getattr(threading, "_register_atexit", atexit.register)(finish_all)
