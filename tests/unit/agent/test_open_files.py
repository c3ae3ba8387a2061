"""Files that stay open beside checkpoints: databases and logs come along, and are no reason to wait."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.waiting import eventually
from tests.unit.agent.saving import Store, restored, write

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.ready import take_snapshot
from outlast.agent.process import Command


def test_a_program_that_saves_on_while_its_database_is_stored_is_committed(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(saver, "n", "1")
    with closing(sqlite3.connect(Path(saver.folder, "study.db"))) as study:
        study.execute("CREATE TABLE trial (number INTEGER)")
        study.commit()
        written: list[str] = []

        def save_on(key: str) -> None:
            written.append(key)
            if len(written) == 2:  # the first is the file's own
                write(saver, "n", "2")

        store.before_write = save_on
        assert saver.commit(take_snapshot(saver.folder, databases={"study.db"}))
        store.before_write = None
    back = restored(saver, tmp_path / "back")
    assert (back / "n").read_text() == "1"
    with closing(sqlite3.connect(back / "study.db")) as study:
        assert study.execute("SELECT count(*) FROM trial").fetchone() == (0,)


class Ourselves(Command):
    """A command that is this very process."""

    def __init__(self) -> None:
        pass

    def members(self) -> list[int]:
        return [os.getpid()]

    def is_alive(self) -> bool:
        return True


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what is open")
def test_a_log_that_has_just_been_opened_is_no_checkpoint(saver: Checkpointer, tmp_path: Path) -> None:
    with open(Path(saver.folder, "train.log"), "w", buffering=1) as log:
        log.write("begun\n")
        os.utime(log.fileno(), (1.0, 1.0))  # nobody has written to it for a while
        saver.commit_quickly(Ourselves())
        assert saver.committed is None
        write(saver, "n", "1")
        eventually(lambda: saver.commit_quickly(Ourselves()) or saver.committed, what="a commit")
    assert sorted(path.name for path in restored(saver, tmp_path / "back").iterdir()) == ["n", "train.log"]
