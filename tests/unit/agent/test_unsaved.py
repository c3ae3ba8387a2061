"""A run that commits nothing reports why; and what a folder is besides files is committed, too."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from tests.support.waiting import eventually
from tests.unit.agent.saving import Store, restored, write
from tests.unit.agent.test_open_files import Ourselves

from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.ready import FolderSnapshot, take_snapshot, why_left_out, why_not
from outlast.agent.checkpoint.unsaved import REPORT_AFTER_S, Unsaved, rest_after_s
from outlast.errors import StoreUnreachable

OLD, NOW = 1, 1000.0


def snapshot(**rest: object) -> FolderSnapshot:
    return FolderSnapshot(files={"model.pt": (5, OLD, 1), "log.txt": (5, OLD, 2)}, changed_at=OLD / 1e9, **rest)  # type: ignore[arg-type]


def reason(seen: FolderSnapshot, **rest: object) -> str:
    given: dict[str, object] = {"writing": (), "databases": (), "logs": (), "now": NOW, **rest}
    return why_not(seen, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "given", "why"),
    [
        (snapshot(), {}, ""),
        (snapshot(), {"writing": ["model.pt", "a.bin"]}, "`a.bin` is open for writing"),
        (snapshot(), {"logs": ["log.txt"]}, "`log.txt` was just opened"),
        (snapshot(databases={"study.db": (1, 1, 1)}), {}, "`study.db` was just closed"),
        (
            snapshot(waits=True, incomplete="checkpoint-5"),
            {"writing": ["model.pt"]},
            "the framework has not completed `checkpoint-5`",
        ),
        (snapshot(), {"now": 0.1}, "files change all the time, such as `model.pt`"),
        (snapshot(), {"now": 0.1, "restless_s": 60.0}, ""),
        (snapshot(), {"now": 0.001, "restless_s": 60.0}, "`model.pt` is being written"),
        (FolderSnapshot(files={}), {}, "there is no file yet"),
    ],
)
def test_a_snapshot_that_may_not_be_committed_has_a_reason(
    seen: FolderSnapshot, given: dict[str, object], why: str
) -> None:
    assert reason(seen, **given) == why


@pytest.mark.parametrize(
    ("paths", "why"),
    [
        (["model.pt"], ""),
        (["model.pt", "model.pt.tmp"], ""),
        (["model.pt.tmp"], "there are only files with temporary names, such as `model.pt.tmp`"),
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
    clock, told = Clock(), list[str]()
    unsaved = Unsaved(told.append, clock=clock)
    unsaved.note("`a` is open for writing")
    clock.now = REPORT_AFTER_S - 1
    unsaved.note("`a` is open for writing")
    assert (unsaved.text, told) == ("", [])
    clock.now = REPORT_AFTER_S
    unsaved.note("the store is away")
    assert unsaved.text == "the store is away"
    assert told == ["no checkpoint was committed for 2 minutes although the folder changes: the store is away"]
    unsaved.note("")
    assert unsaved.text == ""
    unsaved.note("`a` is open for writing")
    assert unsaved.text == ""


def test_a_store_that_refuses_every_commit_is_the_reason_until_one_succeeds(saver: Checkpointer, store: Store) -> None:
    clock, told = Clock(), list[str]()
    saver.unsaved = Unsaved(told.append, clock=clock)

    def refuse(_key: str) -> None:
        raise StoreUnreachable("the bucket is away")

    store.before_write = refuse
    write(saver, "n", "1")
    assert not saver.commit(take_snapshot(saver.folder))
    clock.now = REPORT_AFTER_S
    assert not saver.commit(take_snapshot(saver.folder))
    assert saver.unsaved.text == "the bucket is away"
    assert "the bucket is away" in told[0]
    store.before_write = None
    assert saver.commit(take_snapshot(saver.folder))
    assert saver.unsaved.text == ""


def test_files_that_change_before_they_are_stored_are_the_reason(saver: Checkpointer, store: Store) -> None:
    saver.unsaved = Unsaved(lambda _: None, clock=lambda: next(times))
    times = iter([0.0, REPORT_AFTER_S, REPORT_AFTER_S, REPORT_AFTER_S])
    write(saver, "n", "0")
    store.before_write = lambda _key: write(saver, "n", "changed")
    assert not saver.commit(take_snapshot(saver.folder))
    assert saver.unsaved.text == "files change before they are stored"


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what is open")
def test_a_file_that_stays_open_is_the_reason_while_the_command_runs(saver: Checkpointer) -> None:
    reported = threading.Event()
    clock = Clock()
    saver.unsaved = Unsaved(lambda _: reported.set(), clock=clock)
    with open(Path(saver.folder, "model.pt"), "wb") as file:
        file.write(b"half")
        file.flush()
        saver.follow(Ourselves())
        try:
            eventually(lambda: saver.unsaved._why, what="the reason was noted")
            clock.now = REPORT_AFTER_S
            eventually(reported.is_set, what="the reason was reported")
            assert saver.unsaved.text == "`model.pt` is open for writing"
        finally:
            saver.stop()


@pytest.mark.parametrize(("look_s", "rest_s"), [(0.0, 0.0), (0.001, 0.009), (0.5, 4.5), (60.0, 30.0)])
def test_looks_take_at_most_a_tenth_of_the_time(look_s: float, rest_s: float) -> None:
    assert rest_after_s(look_s) == pytest.approx(rest_s)


# Empty folders and links


def test_empty_folders_and_links_to_nothing_come_back(saver: Checkpointer, tmp_path: Path) -> None:
    top = Path(saver.folder)
    write(saver, "model.pt", "m")
    write(saver, "run.sh", "#!/bin/sh")
    os.chmod(top / "run.sh", 0o755)
    (top / "logs" / "version_0").mkdir(parents=True)
    os.symlink("model-9.pt", top / "latest")
    os.symlink(top / "later" / "model.pt", top / "absolute")
    os.symlink("/no/such/dataset", top / "data")
    os.symlink("loop", top / "loop")
    os.symlink("logs", top / "log")
    assert saver.commit(take_snapshot(saver.folder))
    back = restored(saver, tmp_path / "back")
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


def test_an_empty_folder_is_no_reason_for_a_commit_while_the_program_runs(saver: Checkpointer, tmp_path: Path) -> None:
    write(saver, "n", "1")
    assert saver.commit(take_snapshot(saver.folder))
    Path(saver.folder, "plots").mkdir()
    assert take_snapshot(saver.folder).same(saver.committed or take_snapshot(str(tmp_path)))
    assert saver.commit_last("orderly", died_at=0.0) == ""
    assert (restored(saver, tmp_path / "back") / "plots").is_dir()


@pytest.mark.parametrize("name", ["checkpoint-500", "500", "step_3", "tmp_new"])
def test_an_empty_folder_that_may_be_the_next_checkpoint_is_left_out(
    saver: Checkpointer, tmp_path: Path, name: str
) -> None:
    """Frameworks take the highest number for the newest checkpoint, and fail to load an empty folder."""
    write(saver, "n", "1")
    Path(saver.folder, name).mkdir()
    assert saver.commit(take_snapshot(saver.folder))
    assert sorted(path.name for path in restored(saver, tmp_path / "back").iterdir()) == ["n"]


def test_a_link_to_a_checkpoint_that_is_left_out_is_left_out_with_it(saver: Checkpointer, tmp_path: Path) -> None:
    write(saver, "n", "1")
    write(saver, "checkpoint-5/config.json", "{}")
    os.symlink("checkpoint-5", Path(saver.folder, "latest"))
    write(saver, "shards/__0_0.distcp", "x")
    assert take_snapshot(saver.folder).links == {}


def test_many_small_files_are_committed_and_restored_by_the_saver(
    saver: Checkpointer, store: Store, tmp_path: Path
) -> None:
    for number in range(700):
        write(saver, f"shard-{number // 100}/sample-{number}.json", str(number))
    assert saver.commit(take_snapshot(saver.folder))
    assert len(list(store.list("runs/run-1/parts/"))) == 2
    back = restored(saver, tmp_path / "back")
    assert take_snapshot(str(back)).paths == take_snapshot(saver.folder).paths
    assert (back / "shard-3" / "sample-321.json").read_text() == "321"
