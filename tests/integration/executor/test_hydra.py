"""The Hydra launcher: the jobs of `--multirun` run on machines, and their output folders come back."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conventions.sources import ROOT
from tests.support.home import Home

pytest.importorskip("hydra", reason="hydra-core is not installed")
pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")


def multirun(home: Home, *argv: str) -> subprocess.CompletedProcess[str]:
    shutil.copytree(ROOT / "examples" / "hydra", home.project, dirs_exist_ok=True)
    spec = importlib.util.find_spec("hydra")
    assert spec is not None
    assert spec.origin is not None
    packages = str(Path(spec.origin).parent.parent)
    # The machines use this computer's packages.
    more = ["hydra.launcher.environment=host", f"+hydra.launcher.env.PYTHONPATH='{packages}'"]
    return subprocess.run(
        [sys.executable, "train.py", "--multirun", *argv, *more],
        cwd=home.project,
        env={**os.environ, **home.environment, "PYTHONPATH": packages},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.full
def test_a_multirun_runs_on_machines_and_its_files_come_back(here: Home) -> None:
    answer = multirun(here, "hydra.launcher.max_workers=2", "hydra.sweep.dir=sweep", "lr=0.1,0.2,0.4")
    assert answer.returncode == 0, answer.stderr
    results = [json.loads((here.project / "sweep" / str(n) / "result.json").read_text()) for n in range(3)]
    assert [one["lr"] for one in results] == [0.1, 0.2, 0.4]
    assert results[2]["loss"] < results[0]["loss"]
    assert (here.project / "sweep" / "1" / ".hydra" / "overrides.yaml").read_text() == "- lr=0.2\n"
    assert here.workspace.runs()[0].startswith("hydra-")


@pytest.mark.full
def test_a_job_that_fails_is_reported_with_its_error(here: Home) -> None:
    answer = multirun(here, "hydra.launcher.max_workers=1", "hydra.sweep.dir=sweep", "steps=ten")
    assert answer.returncode != 0
    assert "Error executing job with overrides: ['steps=ten']" in answer.stderr
    assert "TypeError" in answer.stderr
