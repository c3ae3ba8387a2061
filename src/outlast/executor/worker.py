"""The worker of a pool: the command of a run that claims calls and executes them, several at a time on one machine.

It decides nothing but which call is next. A claim and a result are create-only: whichever worker is first counts.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import tempfile
import time
import zlib

import msgspec

from outlast.errors import CallFailed, Exists, Missing, StoreUnreachable
from outlast.executor.records import (
    ACCESS,
    CallerHeartbeat,
    Claim,
    PoolKeys,
    PoolRecord,
    QueueEntry,
    name_of,
    number_of,
)
from outlast.executor.slots import CallSlot
from outlast.store.access import StoreAccess
from outlast.store.bucket import open_bucket
from outlast.store.codec import decoded
from outlast.workspace import Workspace

_POLL_S, _POLL_REMOTE_S = 0.02, 1.0
# All slots are busy: only a reply or a dead process matters.
_BUSY_POLL_S = 0.25
# How often a worker without calls looks whether it is still needed.
_NEEDED_S = 1.0
_RETRY_S = 1.0
# Entries of one listing, and those at its end that are listed again.
_LISTED, _BEHIND = 128, 64
_FEW = 4
# A caller without a heartbeat for this long has died.
CALLER_DEAD_S = 90.0


class PoolWorker:
    """One attempt of a worker's run."""

    def __init__(self, workspace: Workspace, pool: str, *, run: str, attempt: int, folder: str) -> None:
        self.bucket = workspace.bucket
        self.poll_s = _POLL_REMOTE_S if workspace.store.remote else _POLL_S
        self.keys = PoolKeys(pool)
        self.record = decoded(self.bucket.get(self.keys.record), PoolRecord, self.keys.record)
        self.run = run
        self.claim = msgspec.json.encode(Claim(run=run, attempt=attempt))
        self.blobs = os.path.join(folder, "blobs")
        os.makedirs(self.blobs, exist_ok=True)
        library = os.path.join(folder, "library.zip")
        self.bucket.download(self.keys.library, library)
        self.slots = [
            CallSlot(os.path.join(folder, str(number)), self.record, library=library, blobs=self.blobs)
            for number in range(self.record.per_machine)
        ]
        self.stop_requested = False
        self._crashes: dict[int, int] = {}
        # Entries that are claimed. All up to the cursor are.
        self._taken: set[int] = set()
        self._cursor = ""
        self._worked_at = time.monotonic()
        self._checked_at = 0.0

    def serve(self) -> None:
        """Execute calls until the pool is closed, this worker is idle for long, or the machine is preempted."""
        signal.signal(signal.SIGTERM, self._notice)
        try:
            while True:
                try:
                    worked = self._round()
                except StoreUnreachable as problem:
                    print(f"worker: {problem.message}; retrying", flush=True)
                    time.sleep(_RETRY_S)
                    continue
                if self._is_done():
                    return
                if not worked:
                    self._wait()
        finally:
            for slot in self.slots:
                slot.close()

    def _wait(self) -> None:
        """Wait for the reply of a call, or until the next poll of the queue."""
        busy = [slot.replies for slot in self.slots if slot.busy]
        if busy and (len(busy) == len(self.slots) or self.stop_requested):
            select.select(busy, [], [], _BUSY_POLL_S)
        else:
            select.select(busy, [], [], self.poll_s)

    def _notice(self, _number: int, _frame: object) -> None:
        self.stop_requested = True
        for slot in self.slots:
            if slot.busy:
                slot.notice()

    def _round(self) -> bool:
        """Conclude calls and claim new ones; return whether anything happened."""
        worked = sum(self._conclude(slot) for slot in self.slots if slot.busy) > 0
        for slot in self.slots:
            if not slot.busy and not self.stop_requested and self._take(slot):
                worked = True
        if worked or any(slot.busy for slot in self.slots):
            self._worked_at = time.monotonic()
        return worked

    # Claiming

    def _take(self, slot: CallSlot) -> bool:
        """Claim the next call and start it; return False if the queue has none."""
        entries = [number_of(one.key) for one in self.bucket.list(self.keys.queue, after=self._cursor, limit=_LISTED)]
        numbers = [number for number in entries if number not in self._taken]
        # Workers begin at different entries, so that they rarely compete for one.
        shift = zlib.crc32(self.claim) % len(numbers) if len(numbers) > _FEW else 0
        for number in [*numbers[shift:], *numbers[:shift]]:
            if self._claim(number) and self._start(slot, number):
                return True
        if len(entries) < _LISTED:
            return False
        # The caller writes several entries at a time, in any order: the last ones are listed again.
        self._cursor = self.keys.queue + name_of(entries[-_BEHIND])
        return self._take(slot)

    def _claim(self, number: int) -> bool:
        self._taken.add(number)
        try:
            self.bucket.create(self.keys.claims + name_of(number), self.claim, durable=False)
        except Exists:
            return False
        return True

    def _start(self, slot: CallSlot, number: int) -> bool:
        """Start a claimed call; return False if its result was delivered meanwhile."""
        key = self.keys.queue + name_of(number)
        try:
            entry = decoded(self.bucket.get(key), QueueEntry, key)
            payload = self.bucket.get(entry.payload)
            for digest in entry.blobs:
                self._fetch(digest)
        except Missing:
            return False
        slot.start(number, entry, payload)
        if self.stop_requested:
            slot.notice()  # it arrived while the call was starting
        return True

    def _fetch(self, digest: str) -> None:
        path = os.path.join(self.blobs, digest)
        if not os.path.exists(path):
            self.bucket.download(self.keys.blobs + digest, path)

    # Concluding

    def _conclude(self, slot: CallSlot) -> bool:
        """Store the result of an ended call; return whether it has ended."""
        reply, entry = slot.poll(), slot.entry
        assert entry is not None
        if not reply:
            return False
        if reply == "died":
            self._died(slot, entry)
            return True
        with open(slot.result, "rb") as file:
            body = file.read()
        if reply == "returned":
            self._create(self.keys.returns + name_of(slot.number), body)
        else:
            self._create(self.keys.results + name_of(entry.call), body)
        slot.clear()
        return True

    def _died(self, slot: CallSlot, entry: QueueEntry) -> None:
        """Execute the call again, or give up. After a notice, its death proves nothing: another machine repeats it."""
        if self.stop_requested:
            slot.clear()
            return
        count = self._crashes[entry.call] = self._crashes.get(entry.call, 0) + 1
        why = f"the process of the call died with {slot.exit_text}"
        print(f"worker: {why} ({count} of {self.record.crashes})", flush=True)
        if count < self.record.crashes:
            slot.repeat()
            return
        problem = CallFailed(f"{why}, {count} times", hint=f"see `outlast logs {self.run}`")
        self._create(self.keys.results + name_of(entry.call), pickle.dumps(("error", pickle.dumps(problem), "")))
        slot.clear()

    def _create(self, key: str, body: bytes) -> None:
        while True:
            try:
                self.bucket.create(key, body, durable=False)
            except Exists:
                pass  # another worker was first, or an answer was lost
            except StoreUnreachable as problem:
                print(f"worker: {problem.message}; retrying", flush=True)
                time.sleep(_RETRY_S)
                continue
            return

    # Ending

    def _is_done(self) -> bool:
        if any(slot.busy for slot in self.slots):
            return False
        if self.stop_requested:
            return True
        if time.monotonic() - self._checked_at < _NEEDED_S:
            return False
        self._checked_at = time.monotonic()
        try:
            return not self._is_needed()
        except StoreUnreachable:
            return False

    def _is_needed(self) -> bool:
        """Return whether the caller lives and needs this worker."""
        try:
            self.bucket.head(self.keys.closed)
            return False
        except Missing:
            pass
        if time.monotonic() - self._worked_at < self.record.idle_s:
            return True
        try:
            alive = self.bucket.head(self.keys.alive)
            keep = decoded(self.bucket.get(self.keys.alive), CallerHeartbeat, self.keys.alive).keep
        except Missing:
            return False
        return self.run in keep and self.bucket.now(self.keys.clock(self.run)) - alive.modified_at < CALLER_DEAD_S


def _workspace(url: str) -> Workspace:
    """Open the workspace. The access is removed from the environment: calls are programs of the user."""
    given = os.environ.pop(ACCESS, "")
    access = msgspec.json.decode(given, type=StoreAccess) if given else StoreAccess()
    return Workspace(open_bucket(url, access))


def main() -> None:
    """Run `python -m outlast.executor.worker WORKSPACE POOL`, the command of a worker's run."""
    url, pool = sys.argv[1:]
    run, attempt = os.environ["OUTLAST_RUN"], int(os.environ["OUTLAST_ATTEMPT"])
    with tempfile.TemporaryDirectory(prefix="outlast-pool-") as folder:
        try:
            worker = PoolWorker(_workspace(url), pool, run=run, attempt=attempt, folder=folder)
        except Missing:
            print("worker: the pool is over, and its records were deleted", flush=True)
            return
        worker.serve()


if __name__ == "__main__":
    main()
