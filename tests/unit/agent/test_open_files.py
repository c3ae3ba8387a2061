"""Files that are open for writing: unfinished checkpoints, and logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent.checkpoint.open_files import OpenFiles, being_written, without_idle
from outlast.agent.checkpoint.snapshot import take_snapshot


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_files_open_for_writing_are_found_and_files_open_for_reading_are_not(tmp_path: Path) -> None:
    (tmp_path / "read").write_text("x")
    (tmp_path / "deep").mkdir()
    with open(tmp_path / "deep" / "log", "a"), open(tmp_path / "read"):
        assert being_written(str(tmp_path), [os.getpid()]) == {"deep/log"}
    assert being_written(str(tmp_path), [os.getpid()]) == frozenset()


@pytest.mark.parametrize(
    ("name", "is_log"),
    [
        ("version_0/metrics.csv", True),
        ("slurm-12.out", True),
        ("model.pt", False),
        ("epoch=3-step=300.ckpt", False),
        ("study.db", False),
        ("catboost_info/catboost_training.json", True),
        ("logs/progress.json", True),
        ("population.json", False),
    ],
)
def test_a_file_is_a_log_if_it_is_named_like_one_and_stays_open(name: str, is_log: bool) -> None:
    files = OpenFiles()
    for now in (100.0, 105.0, 109.0):
        files.update([name], now=now)
        assert files.logs == frozenset()
    files.update([name], now=110.0)
    assert files.logs == ({name} if is_log else frozenset())
    assert files.open_too_long == []
    files.update([name], now=170.0)
    assert files.open_too_long == ([] if is_log else [name])
    # Closed in between, as other files are.
    files.update([], now=171.0)
    files.update([name], now=172.0)
    assert files.logs == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "runs/Nov17/events.out.tfevents.1794885356.vm.1.0",
        "catboost_info/learn/events.out.tfevents",
        "train.log",
        "nohup.out",
        "out/logs/log_1794885356.txt",
        "train_log.txt",
        "a/run.wandb",
    ],
)
def test_a_file_with_the_name_of_a_log_is_one_at_once(name: str) -> None:
    files = OpenFiles()
    files.update([name, "model.pt"], now=100.0)
    assert files.logs == {name}
    files.update(["model.pt"], now=100.1)
    assert files.logs == frozenset()


def test_a_log_is_included_and_its_changes_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    (tmp_path / "train.log").write_text("one\n")
    before = take_snapshot(str(tmp_path), logs={"train.log"})
    (tmp_path / "train.log").write_text("one\ntwo\n")
    after = take_snapshot(str(tmp_path), logs={"train.log"})
    assert after.same(before)
    assert after != before
    assert after.paths == ["train.log", "weights"]
    assert after.changed_at == os.stat(tmp_path / "weights").st_mtime


def test_an_idle_temporary_file_does_not_count_as_open(tmp_path: Path) -> None:
    for name in ("index.tmp", "model.pt.tmp", "model.pt"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (100.0, 100.0))
    os.utime(tmp_path / "model.pt.tmp", (105.0, 105.0))
    names = ["index.tmp", "model.pt.tmp", "model.pt", "renamed.tmp"]
    assert without_idle(str(tmp_path), names, now=159.0) == set(names)
    assert without_idle(str(tmp_path), names, now=160.0) == {"model.pt.tmp", "model.pt", "renamed.tmp"}
    assert without_idle(str(tmp_path), ["index.tmp"], now=160.0, names=["index.tmp"]) == {"index.tmp"}
