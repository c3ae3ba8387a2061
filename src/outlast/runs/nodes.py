"""The objects by which the machines of one attempt report to the one that leads. Hints: the story alone decides.

All are below `runs/RUN/nodes/ATTEMPT/RANK/`. Each is created once, except the sign of life. The machine with rank 0
leads: it reads them, and appends the events of the attempt.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal, TypeVar

import msgspec

from outlast.errors import Damaged, Exists, Missing
from outlast.runs.events import Outcome
from outlast.store.bucket import Bucket
from outlast.store.codec import decoded, sealed, unsealed
from outlast.store.parts import StoredFile


class NodeAlive(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of life. `writes`: the machine has written to its checkpoint folder, or is about to."""

    phase: str = ""
    writes: bool = False


class NodeReady(msgspec.Struct, frozen=True, kw_only=True):
    """The machine has code, environment, data and a checkpoint."""

    address: str = ""


class NodeStart(msgspec.Struct, frozen=True, kw_only=True):
    """Written by the leader after `Started`: all machines restore this checkpoint and start the command."""

    checkpoint: str = ""
    addresses: tuple[str, ...] = ()


class NodeShard(msgspec.Struct, frozen=True, kw_only=True):
    """The files that one machine adds to a checkpoint; all their parts are stored."""

    files: tuple[StoredFile, ...]
    folders: tuple[str, ...] = ()
    step: int | None = None
    # When each file was changed, in nanoseconds: a program may resume from its newest one.
    changed_ns: dict[str, int] = {}
    # The sha256 of each file, or of its parts, by which equal files of several machines are recognised.
    digests: dict[str, str] = {}


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The command ended on this machine, and its last files are stored."""

    finished: bool
    outcome: Outcome = "stopped"
    why: str = ""
    hopeless: bool = False
    hint: str = ""
    exit_code: int | None = None
    # The command may have been in the middle of a write.
    cut: bool = False
    outputs: int = 0
    # Its folder holds more than it has stored.
    unsaved: bool = False
    # The number of its last shard; 0 if it wrote none.
    shards: int = 0


T = TypeVar("T")
Kind = Literal["alive", "ready", "start", "end"]


def nodes_prefix(run: str, attempt: int) -> str:
    return f"runs/{run}/nodes/{attempt}/"


class NodeObjects:
    """The reports of the machines of one attempt."""

    def __init__(self, bucket: Bucket, run: str, attempt: int) -> None:
        self.bucket = bucket
        self.prefix = nodes_prefix(run, attempt)
        self.damaged_prefix = f"runs/{run}/nodes/damaged/"

    def report_alive(self, node: int, alive: NodeAlive) -> None:
        self.bucket.put(self._key(node, "alive"), msgspec.json.encode(alive), durable=False)

    def report_ready(self, node: int, ready: NodeReady) -> None:
        self._create(self._key(node, "ready"), ready)

    def report_start(self, start: NodeStart) -> None:
        self._create(self._key(0, "start"), start)

    def report_shard(self, node: int, number: int, shard: NodeShard) -> None:
        with suppress(Exists):  # an earlier response was lost
            self.bucket.create(self._shard_key(node, number), sealed(msgspec.json.encode(shard)))

    def report_end(self, node: int, end: NodeEnd) -> None:
        self._create(self._key(node, "end"), end)

    def changed_at(self) -> dict[tuple[int, str], float]:
        """Return when each report was written, by the store's clock: (rank, kind) → time. One listing.

        The kind of a shard is `shards/NUMBER`.
        """
        found: dict[tuple[int, str], float] = {}
        for entry in self.bucket.list(self.prefix):
            node, _, kind = entry.key.removeprefix(self.prefix).partition("/")
            if node.isdigit():
                found[int(node), kind] = entry.modified_at
        return found

    def alive(self, node: int) -> NodeAlive | None:
        return self._read(self._key(node, "alive"), NodeAlive)

    def ready(self, node: int) -> NodeReady | None:
        return self._read(self._key(node, "ready"), NodeReady)

    def start(self) -> NodeStart | None:
        return self._read(self._key(0, "start"), NodeStart)

    def shard(self, node: int, number: int) -> NodeShard | None:
        key = self._shard_key(node, number)
        try:
            return decoded(unsealed(self.bucket.get(key), key), NodeShard, key)
        except (Missing, Damaged):
            return None  # a checkpoint that needs it is not committed

    def delete_shard(self, node: int, number: int) -> None:
        """Delete the report of a shard that is older than the newest checkpoint."""
        self.bucket.delete(self._shard_key(node, number))

    def end(self, node: int) -> NodeEnd | None:
        return self._read(self._key(node, "end"), NodeEnd)

    def report_damaged(self, checkpoint: str) -> None:
        """Exclude a checkpoint for all nodes and for all later attempts."""
        with suppress(Exists):
            self.bucket.create(self.damaged_prefix + checkpoint, b"", durable=False)

    def damaged(self) -> frozenset[str]:
        """Return the checkpoints that a node could not restore."""
        return frozenset(e.key.removeprefix(self.damaged_prefix) for e in self.bucket.list(self.damaged_prefix))

    def _key(self, node: int, kind: Kind) -> str:
        return f"{self.prefix}{node}/{kind}"

    def _shard_key(self, node: int, number: int) -> str:
        return f"{self.prefix}{node}/shards/{number:05d}"

    def _create(self, key: str, report: msgspec.Struct) -> None:
        with suppress(Exists):  # an earlier response was lost
            self.bucket.create(key, msgspec.json.encode(report), durable=False)

    def _read(self, key: str, kind: type[T]) -> T | None:
        try:
            return decoded(self.bucket.get(key), kind, key)
        except (Missing, Damaged):
            return None  # an unreadable hint is ignored


def forget_nodes(bucket: Bucket, run: str) -> None:
    """Delete the reports of all attempts of a run that is over."""
    for entry in list(bucket.list(f"runs/{run}/nodes/")):
        bucket.delete(entry.key)
