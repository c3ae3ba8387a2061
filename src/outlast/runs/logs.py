"""The logs of attempts, in numbered pieces. Pieces are created in order, so a reader needs no listing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from outlast.errors import Exists, Missing
from outlast.store.bucket import Bucket

PIECE_BYTES = 64 * 1024


def piece_key(run: str, attempt: int, number: int, node: int = 0) -> str:
    place = f"{attempt}/node-{node}" if node else f"{attempt}"
    return f"runs/{run}/logs/{place}/{number:08d}.log"


def write_piece(bucket: Bucket, run: str, attempt: int, number: int, body: bytes, *, node: int = 0) -> None:
    """Create one piece. An attempt has one writer: if the piece exists, an earlier response was lost."""
    try:
        bucket.create(piece_key(run, attempt, number, node), body, durable=False)
    except Exists:
        pass


def attempts_with_logs(bucket: Bucket, run: str) -> list[int]:
    return sorted(int(name) for name in bucket.children(f"runs/{run}/logs/") if name.isdigit())


def nodes_with_logs(bucket: Bucket, run: str, attempt: int) -> list[int]:
    """Return the ranks whose machines wrote output in an attempt."""
    names = bucket.children(f"runs/{run}/logs/{attempt}/")
    others = sorted(int(name.removeprefix("node-")) for name in names if name.startswith("node-"))
    return [0, *others]


class LogReader:
    """Reads the log of one attempt, of one of its machines, incrementally."""

    def __init__(self, bucket: Bucket, run: str, attempt: int, *, node: int = 0) -> None:
        self.bucket = bucket
        self.node = node
        self.run = run
        self.attempt = attempt
        self.next = 1

    def read(self) -> Iterator[bytes]:
        """Yield the pieces written since the last call."""
        while True:
            try:
                body = self.bucket.get(piece_key(self.run, self.attempt, self.next, self.node))
            except Missing:
                return
            self.next += 1
            yield body


class NodesLogReader:
    """Reads the log of one attempt on several machines; each line starts with the rank of its machine."""

    def __init__(self, bucket: Bucket, run: str, attempt: int, *, nodes: Iterable[int]) -> None:
        self.readers = {node: LogReader(bucket, run, attempt, node=node) for node in nodes}
        self.bucket, self.run, self.attempt = bucket, run, attempt
        # Lines without their end yet.
        self._rest: dict[int, bytes] = {}

    def read(self) -> Iterator[bytes]:
        """Yield the lines written since the last call."""
        for node, reader in self.readers.items():
            for body in reader.read():
                *lines, rest = (self._rest.pop(node, b"") + body).split(b"\n")
                if rest:
                    self._rest[node] = rest
                if lines:
                    yield b"".join(f"[{node}] ".encode() + line + b"\n" for line in lines)


def open_log(bucket: Bucket, run: str, attempt: int, *, nodes: int) -> LogReader | NodesLogReader:
    """Return the reader of an attempt on one or several machines."""
    return LogReader(bucket, run, attempt) if nodes == 1 else NodesLogReader(bucket, run, attempt, nodes=range(nodes))
