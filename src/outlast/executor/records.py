"""The objects of a pool in the workspace.

pools/ID/pool.json            what a worker must know; written once
pools/ID/library.zip          cloudpickle, in the version of the caller
pools/ID/blobs/SHA256         large arguments, stored once by their content
pools/ID/calls/CALL           function and arguments
pools/ID/queue/ENTRY          a call that may be executed; deleted when its result was delivered
pools/ID/claims/ENTRY         the attempt that executes it, or the caller that withdrew it; create-only
pools/ID/returns/ENTRY        a call that saved itself at a preemption; create-only
pools/ID/results/CALL         the first result; create-only
pools/ID/alive                heartbeat of the caller, with the workers that it keeps although they are idle
pools/ID/closed               the caller needs no more workers
"""

from __future__ import annotations

import msgspec

_WITHDRAWN = "caller"
# The variable that keeps the PYTHONPATH of the user from the worker, which needs its own.
OWN_PATH = "POOL_PYTHONPATH"
# The variable with the access to the workspace where that of the machine is not enough.
ACCESS = "POOL_STORE_ACCESS"


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`pool.json`"""

    id: str
    who: str
    # Of the caller: functions that were pickled by another minor version cannot be loaded.
    python: str
    # The caller's interpreter, if machines share the files of its computer; else `python3` of the machine.
    interpreter: str = ""
    per_machine: int = 1
    idle_s: float = 120.0
    # The crashes of its process that end a call.
    crashes: int = 3


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One permission to execute a call."""

    call: int
    # The key of function and arguments, and the large objects that they refer to.
    payload: str
    blobs: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a queue entry: one attempt of a worker's run."""

    run: str = _WITHDRAWN
    attempt: int = 0

    @property
    def is_callers(self) -> bool:
        """Whether the call was withdrawn."""
        return self.run == _WITHDRAWN


class CallerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """`alive`"""

    keep: tuple[str, ...] = ()


class PoolKeys:
    """The keys of one pool."""

    def __init__(self, pool: str) -> None:
        self.root = f"pools/{pool}/"
        self.record = f"{self.root}pool.json"
        self.library = f"{self.root}library.zip"
        self.blobs = f"{self.root}blobs/"
        self.calls = f"{self.root}calls/"
        self.queue = f"{self.root}queue/"
        self.claims = f"{self.root}claims/"
        self.returns = f"{self.root}returns/"
        self.results = f"{self.root}results/"
        self.alive = f"{self.root}alive"
        self.closed = f"{self.root}closed"
        # The pool deletes these when it closes. A worker that boots later still finds the records.
        self.of_calls = (self.queue, self.calls, self.results, self.returns, self.blobs, self.claims)

    def clock(self, run: str) -> str:
        """Return the key of a small object by which a worker reads the store's clock."""
        return f"{self.root}clocks/{run}"


def name_of(number: int) -> str:
    return f"{number:010d}"


def number_of(key: str) -> int:
    """Return the number at the end of a key."""
    return int(key.rpartition("/")[2])
