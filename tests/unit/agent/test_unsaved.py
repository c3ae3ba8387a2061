"""The reason why a run commits nothing; commits of empty folders, links and many small files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.support.agent import Store, ThisProcess, restored, write
from tests.support.waiting import eventually

from outlast.agent.checkpoint.checkpointer import REPORT_AFTER_S, Checkpointer, Unsaved, rest_after_s
from outlast.agent.checkpoint.decide import why_left_out
from outlast.agent.checkpoint.snapshot import take_snapshot
from outlast.errors import StoreUnreachable


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["model.pt"], ""),
        (["model.pt", "model.pt.tmp"], ""),
        (["model.pt.tmp"], "all files have temporary names, such as `model.pt.tmp`"),
        (["checkpoint-5/config.json"], "the framework has not completed `checkpoint-5`"),
        (["model.pt", "shards/__0_0.distcp"], "the framework has not completed `shards`"),
        (["__0_0.distcp"], "the framework has not completed `.`"),
    ],
)
def test_files_that_are_left_out_have_a_reason(tmp_path: Path, paths: list[str], why: str) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("x")
    assert why_left_out(take_snapshot(str(tmp_path))) == why


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_reason_is_reported_when_it_has_lasted_and_withdrawn_with_the_next_commit() -> None:
    clock, reported = Clock(), list[str]()
    unsaved = Unsaved(reported.append, clock=clock)
    unsaved.note("`a` is open for writing")
    clock.now = REPORT_AFTER_S - 1
    unsaved.note("`a` is open for writing")
    assert (unsaved.text, reported) == ("", [])
    clock.now = REPORT_AFTER_S
    unsaved.note("the store is unreachable")
    assert unsaved.text == "the store is unreachable"
    assert reported == [
        "no checkpoint was committed for 2 minutes although the folder changes: the store is unreachable"
    ]
    unsaved.note("")
    assert unsaved.text == ""
    unsaved.note("`a` is open for writing")
    assert unsaved.text == ""


def test_a_store_that_refuses_every_commit_is_the_reason_until_one_succeeds(
    checkpointer: Checkpointer, store: Store
) -> None:
    clock, reported = Clock(), list[str]()
    checkpointer.unsaved = Unsaved(reported.append, clock=clock)

    def refuse(_key: str) -> None:
        raise StoreUnreachable("the bucket is unreachable")

    store.before_write = refuse
    write(checkpointer, "n", "1")
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    clock.now = REPORT_AFTER_S
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert checkpointer.unsaved.text == "the bucket is unreachable"
    assert "the bucket is unreachable" in reported[0]
    store.before_write = None
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert checkpointer.unsaved.text == ""


def test_files_that_change_before_they_are_stored_are_the_reason(checkpointer: Checkpointer, store: Store) -> None:
    checkpointer.unsaved = Unsaved(lambda _: None, clock=lambda: next(times))
    times = iter([0.0, REPORT_AFTER_S, REPORT_AFTER_S, REPORT_AFTER_S])
    write(checkpointer, "n", "0")
    store.before_write = lambda _key: write(checkpointer, "n", "changed")
    assert not checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert checkpointer.unsaved.text == "files change before they are stored"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_a_file_that_stays_open_is_the_reason_while_the_command_runs(checkpointer: Checkpointer) -> None:
    reported = threading.Event()
    clock = Clock()
    checkpointer.unsaved = Unsaved(lambda _: reported.set(), clock=clock)
    with open(Path(checkpointer.scanner.folder, "model.pt"), "wb") as file:
        file.write(b"half")
        file.flush()
        checkpointer.follow(ThisProcess())
        try:
            eventually(lambda: checkpointer.unsaved._why, what="the reason was noted")
            clock.now = REPORT_AFTER_S
            eventually(reported.is_set, what="the reason was reported")
            assert checkpointer.unsaved.text == "`model.pt` is open for writing"
        finally:
            checkpointer.stop()


@pytest.mark.parametrize(("scan_s", "rest_s"), [(0.0, 0.0), (0.001, 0.009), (0.5, 4.5), (60.0, 30.0)])
def test_scans_take_at_most_a_tenth_of_the_time(scan_s: float, rest_s: float) -> None:
    assert rest_after_s(scan_s) == pytest.approx(rest_s)


# Empty folders and links


def test_empty_folders_and_broken_links_are_restored(checkpointer: Checkpointer, tmp_path: Path) -> None:
    top = Path(checkpointer.scanner.folder)
    write(checkpointer, "model.pt", "m")
    write(checkpointer, "run.sh", "#!/bin/sh")
    os.chmod(top / "run.sh", 0o755)
    (top / "logs" / "version_0").mkdir(parents=True)
    os.symlink("model-9.pt", top / "latest")
    os.symlink(top / "later" / "model.pt", top / "absolute")
    os.symlink("/no/such/dataset", top / "data")
    os.symlink("loop", top / "loop")
    os.symlink("logs", top / "log")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    back = restored(checkpointer, tmp_path / "back")
    assert (back / "logs" / "version_0").is_dir()
    targets = {path.name: os.readlink(path) for path in back.iterdir() if path.is_symlink()}
    assert targets == {
        "latest": "model-9.pt",
        "absolute": "later/model.pt",
        "data": "/no/such/dataset",
        "loop": "loop",
        "log": "logs",
    }
    assert os.access(back / "run.sh", os.X_OK)
    assert not os.access(back / "model.pt", os.X_OK)


def test_an_empty_folder_is_committed_only_at_the_end(checkpointer: Checkpointer, tmp_path: Path) -> None:
    write(checkpointer, "n", "1")
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    Path(checkpointer.scanner.folder, "plots").mkdir()
    assert take_snapshot(checkpointer.scanner.folder).same(
        checkpointer.committer.committed or take_snapshot(str(tmp_path))
    )
    assert checkpointer.commit_last("orderly", died_at=0.0) == ""
    assert (restored(checkpointer, tmp_path / "back") / "plots").is_dir()


@pytest.mark.parametrize("name", ["checkpoint-500", "500", "step_3", "tmp_new"])
def test_an_empty_folder_that_may_be_the_next_checkpoint_is_left_out(
    checkpointer: Checkpointer, tmp_path: Path, name: str
) -> None:
    """Frameworks take the highest number for the newest checkpoint, and fail to load an empty folder."""
    write(checkpointer, "n", "1")
    Path(checkpointer.scanner.folder, name).mkdir()
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert sorted(path.name for path in restored(checkpointer, tmp_path / "back").iterdir()) == ["n"]


def test_a_link_to_a_checkpoint_that_is_left_out_is_left_out_with_it(
    checkpointer: Checkpointer, tmp_path: Path
) -> None:
    write(checkpointer, "n", "1")
    write(checkpointer, "checkpoint-5/config.json", "{}")
    os.symlink("checkpoint-5", Path(checkpointer.scanner.folder, "latest"))
    write(checkpointer, "shards/__0_0.distcp", "x")
    assert take_snapshot(checkpointer.scanner.folder).links == {}


def test_many_small_files_are_committed_and_restored(checkpointer: Checkpointer, store: Store, tmp_path: Path) -> None:
    for number in range(700):
        write(checkpointer, f"shard-{number // 100}/sample-{number}.json", str(number))
    assert checkpointer.commit(take_snapshot(checkpointer.scanner.folder))
    assert len(list(store.list("runs/run-1/parts/"))) == 2
    back = restored(checkpointer, tmp_path / "back")
    assert take_snapshot(str(back)).paths == take_snapshot(checkpointer.scanner.folder).paths
    assert (back / "shard-3" / "sample-321.json").read_text() == "321"
