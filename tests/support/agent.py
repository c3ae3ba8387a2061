"""The checkpointer of an attempt that has started, and a store that a test can disturb."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.paths import AttemptPaths
from outlast.agent.process import Command
from outlast.errors import StoreUnreachable
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.spec.spec import CheckpointSpec
from outlast.store.folder import FolderBucket
from outlast.workspace import Workspace

RUN = "run-1"


class Store(FolderBucket):
    """A folder that can run a hook before a write, refuse a read, or lose the response to a create."""

    before_write: Callable[[str], None] | None = None
    unreachable = ""
    response_lost = ""

    def write(self, key: str, body: bytes | memoryview) -> None:
        if self.before_write:
            self.before_write(key)
        super().write(key, body)

    def get(self, key: str) -> bytes:
        if self.unreachable and self.unreachable in key:
            raise StoreUnreachable("the store is unreachable")
        return super().get(key)

    def read_into(self, key: str, room: memoryview) -> int:
        if self.unreachable and self.unreachable in key:
            raise StoreUnreachable("the store is unreachable")
        return super().read_into(key, room)

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        super().create(key, body, durable=durable)
        if self.response_lost and self.response_lost in key:
            self.response_lost = ""
            raise StoreUnreachable("the response was lost")


def write(checkpointer: Checkpointer, name: str, text: str) -> None:
    path = Path(checkpointer.scanner.folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def restored(checkpointer: Checkpointer, folder: Path) -> Path:
    attempt = checkpointer.committer.attempt
    checkpoints = list(reversed(attempt.story.refresh().checkpoints))
    manifest, problems = restore(attempt.workspace.bucket, RUN, checkpoints, str(folder))
    assert manifest is not None, problems
    return folder


class ThisProcess(Command):
    """A command that is the process of the test."""

    def __init__(self) -> None:
        pass

    def members(self) -> list[int]:
        return [os.getpid()]

    def is_alive(self) -> bool:
        return True


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "workspace"))


@pytest.fixture
def checkpointer(store: Store, tmp_path: Path) -> Checkpointer:
    """The checkpointer of attempt 1, which has started."""
    workspace = Workspace(store)
    placed = ev.Placed(
        attempt=1, cloud="local", region="r", zone="z", type="t", spot=True, price_usd_per_hour=1.0, machine="m"
    )
    for number, event in enumerate([ev.Submitted(), placed, ev.Started(attempt=1)]):
        workspace.story(RUN).append_or_raise(event, nonce=str(number))
    home = str(tmp_path / "home")
    place = AttemptPaths(
        home=home,
        code=f"{home}/work",
        checkpoints=f"{home}/work/checkpoints",
        outputs=f"{home}/work/outputs",
        cache=f"{home}/cache",
        notice_file=f"{home}/notice.json",
        done_file=f"{home}/done.json",
    )
    place.make()
    nonces = iter(range(1000))
    attempt = AttemptWriter(workspace, RUN, 1, clock=time.time, ids=lambda: f"n{next(nonces)}")
    return Checkpointer(attempt, paths=place, rule=CheckpointSpec(), report=lambda _: None)
