"""Files that are open for writing: checkpoints in the making, and logs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent.checkpoint.open_files import OpenFiles, being_written, but_idle
from outlast.agent.checkpoint.ready import take_snapshot


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells what is open")
def test_what_a_process_has_open_for_writing_is_told_and_what_it_reads_is_not(tmp_path: Path) -> None:
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
def test_a_log_is_what_is_called_like_one_and_stays_open(name: str, is_log: bool) -> None:
    files = OpenFiles()
    for now in (100.0, 105.0, 109.0):
        files.see([name], now=now)
        assert files.logs == frozenset()
    files.see([name], now=110.0)
    assert files.logs == ({name} if is_log else frozenset())
    assert files.strange == []
    files.see([name], now=170.0)
    assert files.strange == ([] if is_log else [name])
    # Closed in between: it was written, as other files are.
    files.see([], now=171.0)
    files.see([name], now=172.0)
    assert files.logs == frozenset()


@pytest.mark.parametrize(
    "name",
    [
        "runs/Nov17/events.out.tfevents.1794885356.vm.1.0",
        "catboost_info/learn/events.out.tfevents",
        "train.log",
        "nohup.out",
        "a/run.wandb",
    ],
)
def test_what_nothing_but_a_log_is_called_is_one_at_once(name: str) -> None:
    files = OpenFiles()
    files.see([name, "model.pt"], now=100.0)
    assert files.logs == {name}
    files.see(["model.pt"], now=100.1)
    assert files.logs == frozenset()


def test_a_log_comes_along_and_is_no_reason_to_wait(tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    (tmp_path / "train.log").write_text("one\n")
    before = take_snapshot(str(tmp_path), logs={"train.log"})
    (tmp_path / "train.log").write_text("one\ntwo\n")
    after = take_snapshot(str(tmp_path), logs={"train.log"})
    assert after.same(before)
    assert after != before
    assert after.paths == ["train.log", "weights"]
    assert after.changed_at == os.stat(tmp_path / "weights").st_mtime


def test_a_temporary_file_that_stays_open_and_idle_is_no_reason_to_wait(tmp_path: Path) -> None:
    for name in ("index.tmp", "model.pt.tmp", "model.pt"):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (100.0, 100.0))
    os.utime(tmp_path / "model.pt.tmp", (105.0, 105.0))
    names = ["index.tmp", "model.pt.tmp", "model.pt", "renamed.tmp"]
    assert but_idle(str(tmp_path), names, now=159.0) == set(names)
    assert but_idle(str(tmp_path), names, now=160.0) == {"model.pt.tmp", "model.pt", "renamed.tmp"}
    assert but_idle(str(tmp_path), ["index.tmp"], now=160.0, names=["index.tmp"]) == {"index.tmp"}
