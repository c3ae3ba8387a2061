"""Evidence of the drill, row by row: comparison, files that a command read, saves and trackers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from outlast.drill.compare import compared
from outlast.drill.cpu_time import CpuWatch, used_from, used_until
from outlast.drill.evidence import Curves, Evidence
from outlast.drill.reads import ReadWatch, accesses_are_recorded
from outlast.drill.saves import is_state, split_save, state_files
from outlast.drill.steps import StepMark
from outlast.drill.trackers import tracker_run, tracker_run_in
from outlast.drill.witnesses import trends
from outlast.runs.state import Attempt, Checkpoint, RunState
from tests.support.waiting import eventually

# Comparison


_FIRST = Attempt(
    number=1,
    machine="m",
    cloud="c",
    region="r",
    zone="z",
    type="t",
    spot=True,
    price_usd_per_hour=1.0,
    on_demand_usd_per_hour=2.0,
    placed_at=0.0,
)


def evidence(curves: dict[str, dict[int, float]], *, first: int = 0) -> Evidence:
    """Return a run whose first attempt reported the first points of its curves."""
    own = {1: {name: dict(list(points.items())[:first]) for name, points in curves.items()}}
    state = RunState(attempts=(_FIRST,))
    return Evidence(run="r", state=state, curves=curves, own_curves=own)


def test_an_unseeded_program_is_not_compared() -> None:
    undisturbed = evidence({"loss": {1: 0.9, 2: 0.8, 3: 0.7}})
    found = compared(undisturbed, evidence({"loss": {1: 0.91, 2: 0.81, 3: 0.71}}, first=2), 1e-6)
    assert (found.verdict, "at step 1, before any restore" in found.answer) == ("warn", True)
    assert "fix the seeds" in found.hint


def test_a_booster_that_counts_again_is_compared_from_its_end() -> None:
    def marks(*steps: int) -> list[StepMark]:
        return [StepMark(word="[", step=step, at=0.0) for step in steps]

    losses = {0: 0.9, 1: 0.8, 2: 0.7, 3: 0.6}
    undisturbed = Evidence(run="u", state=RunState(), curves={"loss": losses}, steps={1: marks(0, 1, 2, 3)})
    second = replace(_FIRST, number=2, resumed_from="c1")
    for last, verdict in ((0.6, "pass"), (0.5, "fail")):
        own: dict[int, Curves] = {1: {"loss": {0: 0.9, 1: 0.8}}, 2: {"loss": {0: 0.7, 1: last}}}
        drilled = Evidence(
            run="d",
            state=RunState(attempts=(_FIRST, second)),
            curves={"loss": {0: 0.7, 1: last}},
            own_curves=own,
            steps={1: marks(0, 1), 2: marks(0, 1)},
        )
        assert compared(undisturbed, drilled, 1e-6).verdict == verdict


def test_a_rate_with_an_unknown_name_is_ignored() -> None:
    undisturbed = evidence({"loss": {1: 0.9, 2: 0.8, 3: 0.7}, "zips": {1: 5.0, 2: 5.1, 3: 5.2}})
    found = compared(undisturbed, evidence({"loss": {1: 0.9, 2: 0.8, 3: 0.7}, "zips": {1: 4.0, 3: 9.0}}, first=2), 1e-6)
    assert (found.verdict, "among them `loss`" in found.answer) == ("pass", True)


def test_a_comparison_of_settings_only_does_not_pass() -> None:
    same = evidence({"lr": {1: 0.1, 2: 0.1, 3: 0.01}})
    found = compared(same, same, 1e-6)
    assert (found.verdict, "nothing was compared" in found.answer) == ("warn", True)


# Files that a command read


@pytest.fixture
def restored(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    if not accesses_are_recorded(str(folder)):
        pytest.skip("this file system does not record when files are read")
    for name, size in (("model.pt", 4000), ("config.json", 20)):
        (folder / name).write_bytes(b"x" * size)
        os.utime(folder / name, (1e9, 1e9))
    return folder


def watch(folder: Path) -> ReadWatch:
    files = {path.name: (path.stat().st_size, path.stat().st_mtime_ns) for path in folder.iterdir()}
    return ReadWatch(str(folder), files, started_at=2e9)


def test_a_file_that_the_command_read_is_named(restored: Path) -> None:
    seen = watch(restored)
    seen.poll(working=False, first_write_ns=0, first_save_ns=0)
    assert (seen.read, seen.unread) == ("", "")
    (restored / "config.json").read_bytes()
    seen.poll(working=True, first_write_ns=0, first_save_ns=0)
    assert (seen.read, seen.unread) == ("", "model.pt"), "settings are not the state"
    (restored / "model.pt").read_bytes()
    for _ in range(2):
        seen.poll(working=True, first_write_ns=0, first_save_ns=0)
    assert (seen.read, seen.unread) == ("model.pt", "")
    seen.close()


def test_an_access_is_judged_after_the_next_listing(restored: Path) -> None:
    seen = watch(restored)
    (restored / "model.pt").read_bytes()
    seen.poll(working=False, first_write_ns=0, first_save_ns=0)
    # The command had written before, and the agent had read the files for a commit.
    seen.poll(working=True, first_write_ns=int(1.5e18), first_save_ns=int(1.5e18))
    assert (seen.read, seen.unread) == ("", "model.pt")
    seen.close()


def test_weights_count_beside_a_much_larger_file(restored: Path) -> None:
    (restored / "replay_buffer.pkl").write_bytes(b"x" * 100_000)
    os.utime(restored / "replay_buffer.pkl", (1e9, 1e9))
    seen = watch(restored)
    (restored / "model.pt").read_bytes()
    for _ in range(2):
        seen.poll(working=True, first_write_ns=0, first_save_ns=0)
    assert (seen.read, seen.unread) == ("model.pt", "")
    seen.close()


@pytest.mark.parametrize("replace", [True, False], ids=["renamed", "in place"])
@pytest.mark.parametrize("reads", [True, False])
def test_a_file_is_judged_although_the_command_replaced_it_at_once(restored: Path, replace: bool, reads: bool) -> None:
    seen = watch(restored)
    if reads:
        (restored / "model.pt").read_bytes()
    new = restored / ("model.pt.tmp" if replace else "model.pt")
    new.write_bytes(b"y" * 4000)
    if replace:
        new.rename(restored / "model.pt")
    changed_ns = (restored / "model.pt").stat().st_mtime_ns
    seen.poll(working=True, first_write_ns=changed_ns, first_save_ns=changed_ns)
    assert (seen.read, seen.unread) == (("model.pt", "") if reads else ("", "model.pt"))
    seen.close()


@pytest.mark.parametrize(("first_save_ns", "unread"), [(0, ""), (int(1.6e18), "model.pt")])
def test_a_read_after_the_first_write_may_be_the_commit(restored: Path, first_save_ns: int, unread: str) -> None:
    seen = watch(restored)
    (restored / "model.pt").read_bytes()
    # After the first save it was the commit: a command loads before it saves.
    seen.poll(working=True, first_write_ns=int(1.5e18), first_save_ns=first_save_ns)
    assert (seen.read, seen.unread) == ("", unread)
    seen.close()


# Checkpoints of several files


def checkpoint(changed_at: float, attempt: int = 1) -> Checkpoint:
    return Checkpoint(id="c1", attempt=attempt, step=None, at=changed_at + 0.3, bytes=1, changed_at=changed_at)


TWO = [(1.0, "m-1.pt"), (2.0, "o-1.pt"), (5.0, "m-2.pt"), (6.0, "o-2.pt"), (9.0, "m-3.pt"), (10.0, "o-3.pt")]


@pytest.mark.parametrize(
    ("writes", "committed", "expected"),
    [
        ({1: TWO}, checkpoint(5.0), ("m-#.pt", "o-#.pt")),
        ({1: TWO}, checkpoint(6.0), ()),
        # The first save, cut by the preemption; the second attempt shows what follows.
        ({1: TWO[:1], 2: TWO}, checkpoint(1.0), ("m-#.pt", "o-#.pt")),
        # One file, a file that is seldom written, and two files that are written in turns.
        ({1: [(1.0, "m"), (5.0, "m"), (9.0, "m")]}, checkpoint(5.0), ()),
        ({1: [(1.0, "m"), (2.0, "best"), (5.0, "m"), (9.0, "n"), (9.1, "m"), (12.0, "n")]}, checkpoint(5.0), ()),
        ({1: [(1.0, "m"), (1.1, "o"), (1.2, "m"), (1.3, "o"), (1.4, "m")]}, checkpoint(1.4), ()),
        # A file that is written under another name, and renamed.
        ({1: [(1.0, "next"), (1.0, "m"), (5.0, "next"), (5.0, "m"), (9.0, "next"), (9.0, "m")]}, checkpoint(1.0), ()),
    ],
)
def test_a_checkpoint_between_two_files_of_a_save(
    writes: dict[int, list[tuple[float, str]]], committed: Checkpoint, expected: tuple[str, ...]
) -> None:
    assert split_save(writes, committed) == expected


def test_beside_weights_other_files_are_not_the_state() -> None:
    assert state_files(["a/model.pt", "a/trainer_state.json", "log.csv"]) == {"a/model.pt"}
    assert state_files(["state.json", "log.csv"]) == {"state.json"}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        *(("checkpoint-10/model.safetensors", True), ("state.json", True), ("model.txt", True), ("count", True)),
        *(("0/default/d/1f3c", True), ("checkpoint.csv", True), ("study.db", True), ("step-9/__0_0.distcp", True)),
        *(("20261118_205525/20261118_205525.log", False), ("vis_data/config.py", False), ("args.yaml", False)),
        *(("vis_data/20261118_210307.json", False), ("catboost_training.json", False)),
        *(
            ("results.csv", False),
            ("runs/events.out.tfevents.17.host.1.0", False),
            ("config.json", False),
            ("0/_CHECKPOINT_METADATA", False),
        ),
    ],
)
def test_logs_and_settings_are_not_the_state_of_a_training(path: str, expected: bool) -> None:
    assert is_state(path) == expected


# Experiment trackers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("wandb: 🚀 View run at https://wandb.ai/ada/census/runs/x1y2z3ab\n", "x1y2z3ab"),
        (
            "wandb: Run data is saved locally in /machine/work/wandb/run-20261118_201001-census-drill-1\n",
            "census-drill-1",
        ),
        ("wandb sync /machine/work/wandb/offline-run-20261118_201001-x1y2z3ab\n", "x1y2z3ab"),
        (f"View run at: http://localhost:5000/#/experiments/0/runs/{'ab' * 16}\n", "ab" * 16),
        ("https://app.neptune.ai/ada/census/e/CEN-12\n", "CEN-12"),
        (f"ClearML Task: created new task id={'cd' * 16}\n", "cd" * 16),
        ("epoch 3 loss 0.5\n", ""),
    ],
)
def test_the_run_of_a_tracker_in_the_output(text: str, expected: str) -> None:
    assert tracker_run(text) == expected


def test_the_run_of_a_tracker_in_its_files(tmp_path: Path) -> None:
    assert tracker_run_in(str(tmp_path)) == ""
    (tmp_path / "mlruns" / "0" / ("ab" * 16) / "metrics").mkdir(parents=True)
    assert tracker_run_in(str(tmp_path)) == "ab" * 16
    (tmp_path / "wandb" / "offline-run-20261118_201001-x1y2z3ab").mkdir(parents=True)
    assert tracker_run_in(str(tmp_path)) == "x1y2z3ab"


# Processor time


def _samples(*watches: CpuWatch) -> int:
    for watch in watches:
        watch.poll()
    return len(watches[0].samples)


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_the_processor_time_of_a_command_is_that_of_its_processes() -> None:
    code = "import sys\nwhile True:\n    sum(range(10_000))\n"
    environment = {**os.environ, "OUTLAST_RUN": "cpu-1", "OUTLAST_ATTEMPT": "2"}
    watch, other = CpuWatch("cpu-1", 2), CpuWatch("cpu-1", 1)
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as process:
        try:
            eventually(lambda: _samples(watch, other) > 2, what="three samples")
        finally:
            process.kill()
    used = [used_s for _, used_s in watch.samples]
    assert 0 < used[0] < used[1] < used[2]
    assert other.samples == []
    assert used_until(watch.samples, watch.samples[1][0]) == used[1]
    assert used_until(watch.samples, 0.0) == 0.0
    assert used_from(watch.samples, watch.samples[0][0] + 1e-3) == used[1]
    assert used_from(watch.samples, math.inf) == used[-1]


@pytest.mark.parametrize(
    ("loss", "is_trend"),
    [
        ([19.3, 9.2, 3.1, 1.0], True),
        ([2.31, 2.28, 2.33, 2.30], False),
        ([2.31, 2.30, 2.29, 2.28], False),
        ([0.1, 0.2, 0.5, 0.9], True),
    ],
)
def test_values_that_only_fall_or_rise_are_a_trend(loss: list[float], is_trend: bool) -> None:
    assert bool(trends({"loss": loss}, {"loss": [loss[-1]]})) == is_trend
