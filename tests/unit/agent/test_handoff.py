"""How long a noticed command may work on, and the sign of a successor that is ready."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.waiting import eventually

from outlast.agent.handoff import (
    SavingMeasured,
    SuccessorWatch,
    announce_ready,
    is_successor_ready,
    needed_s,
    read_measured,
)
from outlast.spec.spec import CheckpointSpec
from outlast.trainer.environment import detect_environment
from outlast.trainer.training import Training
from outlast.workspace import Workspace, open_workspace

MEASURED = SavingMeasured(step_s=1.0, save_s=2.0)


@pytest.mark.parametrize(
    ("on_notice", "measured", "commit_s", "expected"),
    [
        ("", None, 5.0, None),
        ("", MEASURED, 3.0, 1.5 * (1 + 2 + 3) + 3),
        ("", MEASURED, 0.0, 1.5 * (1 + 2 + 2) + 3),
        ("save-now", MEASURED, 3.0, None),
        ("work-on", MEASURED, 3.0, 1.5 * (1 + 2 + 3) + 3),
        ("work-on", None, 1.0, 10.0),
        ("work-on", None, 8.0, 2 * 8 * 1.5 + 3),
    ],
)
def test_the_time_for_saving(
    on_notice: str, measured: SavingMeasured | None, commit_s: float, expected: float | None
) -> None:
    assert needed_s(CheckpointSpec(on_notice=on_notice), measured, commit_s=commit_s, grace_s=30.0) == expected


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(str(tmp_path / "workspace"))


def test_the_sign_of_a_later_attempt_is_noticed_and_that_of_an_earlier_one_is_not(workspace: Workspace) -> None:
    watch = SuccessorWatch(workspace, "run-1", 2)
    watch.start()
    announce_ready(workspace, "run-1", 2)
    announce_ready(workspace, "run-10", 3)
    assert not is_successor_ready(workspace, "run-1", 2)
    assert not watch.ready.is_set()
    announce_ready(workspace, "run-1", 3)
    eventually(watch.ready.is_set)


def test_the_trainer_library_reports_how_long_it_saves(tmp_path: Path) -> None:
    signals = tmp_path / "signals"
    found = {"OUTLAST_RUN": "run-1", "OUTLAST_METRICS_FILE": str(signals / "metrics.jsonl")}
    environment = detect_environment(found, folder=str(tmp_path))
    training = Training(environment, every_s=0.001, every_steps=1, keep=2, replicated=False)
    assert read_measured(str(signals)) is None
    for step in training.steps(0, total=3):
        training.save_if_due(step, lambda: {"step": 1})
        training._saver.wait()
    training.close()
    measured = read_measured(str(signals))
    assert measured is not None
    assert measured.save_s > 0
