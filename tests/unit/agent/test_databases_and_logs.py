"""Databases and logs that stay open beside checkpoints are committed with them."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.agent import Store, ThisProcess, restored, write
from tests.support.waiting import eventually

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.snapshot import take_snapshot


def test_a_save_while_the_database_is_stored_does_not_fail_the_commit(
    checkpointer: Checkpointer, store: Store, tmp_path: Path
) -> None:
    write(checkpointer, "n", "1")
    with closing(sqlite3.connect(Path(checkpointer.scanner.folder, "study.db"))) as study:
        study.execute("CREATE TABLE trial (number INTEGER)")
        study.commit()
        written: list[str] = []

        def save_again(key: str) -> None:
            written.append(key)
            if len(written) == 2:  # the first write is that of the file
                write(checkpointer, "n", "2")

        store.before_write = save_again
        assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder, databases={"study.db"}))
        store.before_write = None
    back = restored(checkpointer, tmp_path / "back")
    assert (back / "n").read_text() == "1"
    with closing(sqlite3.connect(back / "study.db")) as study:
        assert study.execute("SELECT count(*) FROM trial").fetchone() == (0,)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_log_that_was_just_opened_is_not_a_checkpoint(checkpointer: Checkpointer, tmp_path: Path) -> None:
    with open(Path(checkpointer.scanner.folder, "train.log"), "w", buffering=1) as log:
        log.write("started\n")
        os.utime(log.fileno(), (1.0, 1.0))  # idle for a while
        checkpointer.commit_quickly(ThisProcess())
        assert checkpointer.committer.committed is None
        write(checkpointer, "n", "1")
        eventually(
            lambda: checkpointer.commit_quickly(ThisProcess()) or checkpointer.committer.committed, what="a commit"
        )
    assert sorted(path.name for path in restored(checkpointer, tmp_path / "back").iterdir()) == ["n", "train.log"]
