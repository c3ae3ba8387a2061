"""The set-up of a machine: every command runs once, and a failure reports its output."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.cluster.paths import NodePaths
from outlast.cluster.setup import run_phases
from outlast.errors import OutlastError


def run(home: Path, **phases: list[str]) -> list[str]:
    reports: list[str] = []
    paths = NodePaths(machine="m", role="worker", kind="cpu", address="10.0.0.1", home=str(home))
    report = lambda phase, why="", down_in_s=-1.0: reports.append(why)  # noqa: E731
    run_phases(list(phases.items()), paths, dict(os.environ), report_state=report)
    return reports


def test_completed_commands_are_skipped_and_a_changed_command_runs_with_all_after_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    phases = {"setup": [f"echo one >> {log}", f"echo two >> {log}"], "worker_setup": [f"echo three >> {log}"]}
    assert run(tmp_path, **phases) == ["setup 1 of 2", "setup 2 of 2", "worker_setup 1 of 1"]
    assert run(tmp_path, **phases) == []
    phases["setup"][1] = f"echo other >> {log}"
    assert run(tmp_path, **phases) == ["setup 2 of 2", "worker_setup 1 of 1"]
    assert log.read_text().split() == ["one", "two", "three", "other", "three"]


def test_a_failed_command_ends_the_set_up_with_its_output_and_is_retried(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    command = f"test -e {flag} || {{ echo the disk is full >&2; exit 3; }}"
    with pytest.raises(OutlastError, match=r"setup\[0\] exited with 3: the disk is full"):
        run(tmp_path, setup=[command, "true"])
    flag.touch()
    assert run(tmp_path, setup=[command, "true"]) == ["setup 1 of 2", "setup 2 of 2"]
