"""A caller's script passes `mypy --strict`, and wrong arguments do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import concurrent.futures
from pathlib import Path

import outlast


def train(lr: float) -> dict[str, float]:
    return {"lr": lr}


run = outlast.submit(
    "python train.py --lr {lr}", params={"lr": 0.1}, gpu="T4", checkpoint=Path("checkpoints"), limits={"cost_usd": 3.0},
    nodes=2
)
status: str = run.wait(timeout=10.0)
cost: float = run.cost_usd
columns: dict[str, list[float]] = run.metrics("loss")
text: str = run.outputs()["scores.json"].read_text()
space = outlast.workspace("gs://team/workspace")
names: list[str] = [one.name for one in space.runs(state="running", user="me")]
total: float = space.cost(since="30d").total_usd
try:
    space.run("census-7").cancel()
except outlast.NoSuchRun as problem:
    print(problem.hint)
with outlast.Executor(gpu="T4", max_workers=8, env={"A": "1"}) as pool:
    futures = [pool.submit(train, lr) for lr in (0.1, 0.2)]
    for done in concurrent.futures.as_completed(futures):
        value: dict[str, float] = done.result()
"""
WRONG = """
import outlast

outlast.submit("true", gppu="T4")
outlast.submit("true", params=3)
with outlast.Executor(max_workers="8") as pool:
    pass
"""


def mypy(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    argv = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(folder / "cache"),
        "script.py",
    ]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.full
def test_a_strict_script_passes_and_a_wrong_one_does_not(tmp_path: Path) -> None:
    answer = mypy(tmp_path, SCRIPT)
    own = [line for line in answer.stdout.splitlines() if line.startswith("script.py")]
    assert not own, answer.stdout
    wrong = mypy(tmp_path, WRONG).stdout
    assert wrong.count("script.py:") >= 3, wrong
