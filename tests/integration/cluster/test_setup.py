"""The set-up of a machine: phase by phase, each command once, and the words of the one that failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.cluster.paths import NodePaths
from outlast.cluster.setup import run_phases
from outlast.errors import OutlastError


def run(home: Path, **phases: list[str]) -> list[str]:
    told: list[str] = []
    place = NodePaths(machine="m", role="worker", kind="cpu", address="10.0.0.1", home=str(home))
    tell = lambda phase, why="", goes_in_s=-1.0: told.append(why)  # noqa: E731
    run_phases(list(phases.items()), place, dict(os.environ), tell=tell)
    return told


def test_what_was_done_is_not_done_again_and_a_changed_command_runs_anew_with_all_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    phases = {"setup": [f"echo one >> {log}", f"echo two >> {log}"], "worker_setup": [f"echo three >> {log}"]}
    assert run(tmp_path, **phases) == ["setup 1 of 2", "setup 2 of 2", "worker_setup 1 of 1"]
    assert run(tmp_path, **phases) == []
    phases["setup"][1] = f"echo other >> {log}"
    assert run(tmp_path, **phases) == ["setup 2 of 2", "worker_setup 1 of 1"]
    assert log.read_text().split() == ["one", "two", "three", "other", "three"]


def test_a_command_that_fails_ends_the_set_up_with_its_words_and_is_tried_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    command = f"test -e {flag} || {{ echo the disk is full >&2; exit 3; }}"
    with pytest.raises(OutlastError, match=r"setup\[0\] ended with 3: the disk is full"):
        run(tmp_path, setup=[command, "true"])
    flag.touch()
    assert run(tmp_path, setup=[command, "true"]) == ["setup 1 of 2", "setup 2 of 2"]
