"""A saver of checkpoints, and a store that a test can step into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.errors import StoreUnreachable
from outlast.runs.checkpoints import restore
from outlast.store.folder import FolderBucket

RUN = "run-1"


class Store(FolderBucket):
    """A folder that lets a test step in before a write, refuse a read, or lose the answer to a create."""

    before_write: Callable[[str], None] | None = None
    unreachable = ""
    answer_lost = ""

    def write(self, key: str, body: bytes | memoryview) -> None:
        if self.before_write:
            self.before_write(key)
        super().write(key, body)

    def get(self, key: str) -> bytes:
        if self.unreachable and self.unreachable in key:
            raise StoreUnreachable("the store is away")
        return super().get(key)

    def read_into(self, key: str, room: memoryview) -> int:
        if self.unreachable and self.unreachable in key:
            raise StoreUnreachable("the store is away")
        return super().read_into(key, room)

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        super().create(key, body, durable=durable)
        if self.answer_lost and self.answer_lost in key:
            self.answer_lost = ""
            raise StoreUnreachable("the answer was lost")


def write(saver: Checkpointer, name: str, text: str) -> None:
    path = Path(saver.folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def restored(saver: Checkpointer, folder: Path) -> Path:
    checkpoints = list(reversed(saver.attempt.story.refresh().checkpoints))
    manifest, problems = restore(saver.attempt.workspace.bucket, RUN, checkpoints, str(folder))
    assert manifest is not None, problems
    return folder
