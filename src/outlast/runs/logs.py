"""The logs of attempts, in numbered pieces. Pieces are created in order, so a reader needs no listing."""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import Exists, Missing
from outlast.store.bucket import Bucket

PIECE_BYTES = 64 * 1024


def piece_key(run: str, attempt: int, number: int) -> str:
    return f"runs/{run}/logs/{attempt}/{number:08d}.log"


def write_piece(bucket: Bucket, run: str, attempt: int, number: int, body: bytes) -> None:
    """Create one piece. An attempt has one writer: if the piece exists, an earlier response was lost."""
    try:
        bucket.create(piece_key(run, attempt, number), body, durable=False)
    except Exists:
        pass


def attempts_with_logs(bucket: Bucket, run: str) -> list[int]:
    return sorted(int(name) for name in bucket.children(f"runs/{run}/logs/") if name.isdigit())


class LogReader:
    """Reads the log of one attempt incrementally."""

    def __init__(self, bucket: Bucket, run: str, attempt: int) -> None:
        self.bucket = bucket
        self.run = run
        self.attempt = attempt
        self.next = 1

    def read(self) -> Iterator[bytes]:
        """Yield the pieces written since the last call."""
        while True:
            try:
                body = self.bucket.get(piece_key(self.run, self.attempt, self.next))
            except Missing:
                return
            self.next += 1
            yield body
