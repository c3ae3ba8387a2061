"""Copies of SQLite databases that a program keeps open."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.waiting import eventually

from outlast.agent.checkpoint import database
from outlast.agent.checkpoint.database import copy_database, databases_among, with_sidecar_files
from outlast.agent.checkpoint.decide import Commit, Scan, decide
from outlast.agent.checkpoint.snapshot import take_snapshot


@pytest.fixture(params=["delete", "wal"])
def study(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database of a thousand rows whose values add up to zero, in both journal modes."""
    path = tmp_path / "checkpoints" / "study #1?.db"
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as opened:
        opened.execute(f"PRAGMA journal_mode = {request.param}")
        opened.execute("CREATE TABLE account (number INTEGER PRIMARY KEY, value INTEGER, padding TEXT)")
        opened.executemany("INSERT INTO account VALUES (?, 0, ?)", [(n, "x" * 3000) for n in range(1000)])
        opened.commit()
    return path


def total(path: Path) -> int:
    with closing(sqlite3.connect(path)) as opened:
        assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(opened.execute("SELECT total(value) FROM account").fetchone()[0])


def test_a_copy_has_committed_transactions_only(study: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(study)) as program:
        program.execute("UPDATE account SET value = 1 WHERE number < 10")
        program.commit()
        program.execute("UPDATE account SET value = 5 WHERE number < 20")
        copy_database(str(study), str(tmp_path / "copies" / "copy.db"))
        program.rollback()
    assert total(tmp_path / "copies" / "copy.db") == 10
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["copy.db"]


def copies(source: Path, target: Path) -> bool:
    try:
        copy_database(str(source), str(target))
    except OSError as problem:
        if "database is locked" in str(problem):
            return False
        raise
    return True


def test_a_copy_of_a_database_under_constant_writes_is_consistent(study: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def move_values() -> None:
        with closing(sqlite3.connect(study)) as program:
            while not stop.wait(0.01):
                program.execute("UPDATE account SET value = value + 1 WHERE number = 1")
                program.execute("UPDATE account SET value = value - 1 WHERE number = 999")
                program.commit()

    writer = threading.Thread(target=move_values)
    writer.start()
    try:
        for number in range(5):
            # A busy computer can starve the reader for the second that it waits for the writer: the agent tries again.
            eventually(lambda target=tmp_path / f"{number}.db": copies(study, target), what="a copy")
    finally:
        stop.set()
        writer.join()
    assert [total(tmp_path / f"{number}.db") for number in range(5)] == [0] * 5


def test_an_exclusively_locked_database_raises_an_error_that_names_it(study: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(study)) as program:
        program.execute("PRAGMA locking_mode = EXCLUSIVE")
        program.execute("PRAGMA journal_mode = delete")
        program.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="study"):
            copy_database(str(study), str(tmp_path / "copy.db"))


def test_a_database_is_recognised_by_its_header_and_known_ones_are_not_opened(study: Path) -> None:
    folder = str(study.parent)
    (study.parent / "fake.db").write_text("SQLite format 4")
    (study.parent / "empty.db").write_text("")
    paths = [study.name, "fake.db", "empty.db", "gone.db"]
    assert databases_among(folder, paths) == {study.name}
    assert databases_among(folder, paths, known={"gone.db"}) == {study.name, "gone.db"}


def test_sidecar_files_of_a_database_are_never_opened(study: Path, tmp_path: Path) -> None:
    """Closing one would release the locks of a copy in progress, which would become inconsistent."""
    for side in ("-wal", "-shm", "-journal"):
        os.mkfifo(study.parent / f"a.db{side}")  # opening it blocks forever
    assert databases_among(str(study.parent), ["a.db-wal", "a.db-shm", "a.db-journal", study.name]) == {study.name}


def test_a_copy_that_takes_long_does_not_time_out(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "_TIMEOUT_S", 0.05)
    monkeypatch.setattr(database, "_STEP_BYTES", 4096)
    copy_database(str(study), str(tmp_path / "copy.db"))
    assert total(tmp_path / "copy.db") == 0


def test_a_damaged_database_is_not_copied(study: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.db"
    half.write_bytes(study.read_bytes())
    with open(half, "r+b") as file:
        file.seek(study.stat().st_size // 2)
        file.write(b"\0" * (study.stat().st_size // 2))
    with pytest.raises(OSError, match="half"):
        copy_database(str(half), str(tmp_path / "copy.db"))


def test_opening_a_database_is_not_a_change_and_writing_to_it_is(study: Path) -> None:
    folder = str(study.parent)
    closed = take_snapshot(folder)
    with closing(sqlite3.connect(study)) as program:
        program.execute("SELECT count(*) FROM account").fetchone()
        opened = take_snapshot(folder, databases={study.name})
        assert opened.same(closed)
        assert not opened.holds(closed)
        program.execute("UPDATE account SET value = 1")
        program.commit()
        written = take_snapshot(folder, databases={study.name})
        assert not written.same(opened)
        assert written.holds(opened)
        # Consistent at any time, also in the moment after it was written.
        assert not written.empty
        assert written.files == {}
        scan = Scan(
            snapshot=written, taken_at=study.stat().st_mtime, databases=frozenset({study.name}), free_bytes=1 << 40
        )
        assert decide(scan) == Commit()
        assert written.bytes >= study.stat().st_size
    assert with_sidecar_files({"a"}) == {"a", "a-journal", "a-wal", "a-shm"}
