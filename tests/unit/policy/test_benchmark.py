"""The benchmark's rules are the public ones, to the last digit; and both ways to perfect foresight agree."""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outlast.policy import OnDemand
from outlast.policy.oracle import least_cost_path
from outlast.policy.replay import ReplayJob, ReplayZone

ROOT = Path(__file__).parents[3]
BENCHMARK = ROOT / "benchmarks" / "policies.py"
TRACES = ROOT.parent / "shared" / "data" / "spot-traces"


def run(*argv: str) -> dict[str, list[dict[str, Any]]]:
    answer = subprocess.run(
        [sys.executable, str(BENCHMARK), "--json", *argv], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr
    rows: dict[str, list[dict[str, Any]]] = json.loads(answer.stdout)
    return rows


@pytest.mark.full
@pytest.mark.skipif(not TRACES.is_dir(), reason="the recorded traces are not beside this repository")
def test_reproduces_the_public_figures_and_reaches_our_goals() -> None:
    rows = run("--set", "first", "--set", "second", "--no-foresight")
    first, second = ({row["policy"]: row for row in rows[name]} for name in ("first", "second"))
    assert (first["greedy"]["average_usd"], first["Uniform Progress"]["average_usd"]) == (119.0345, 101.6827)
    assert (second["greedy"]["average_usd"], second["Uniform Progress"]["average_usd"]) == (96.5154, 92.0643)
    assert first["outlast"]["score"] >= 51.7
    assert second["outlast"]["average_usd"] <= 87.6
    assert first["outlast"]["late"] == second["outlast"]["late"] == 0


def test_replays_other_traces_deadlines_and_starts(tmp_path: Path) -> None:
    rng = random.Random(7)
    for name in ("east_x_1", "west_x_1"):
        windows = {str(number): "".join(rng.choice("0001") for _ in range(60)) for number in range(4)}
        (tmp_path / f"{name}.json").write_text(json.dumps({"gap_seconds": 900, "windows": windows}))
    argv = ["--set", "own", "--traces", str(tmp_path), "--work", "6", "--deadlines", "8,12", "--starts", "0.1"]
    alone = {row["policy"]: row for row in run(*argv, "--prices", "2,0.5")["own"]}
    assert alone["outlast"]["runs"] == 2 * 2 * 4
    assert alone["outlast"]["late"] == 0
    assert alone["perfect foresight"]["average_usd"] <= alone["outlast"]["average_usd"] < 12
    together = {row["policy"]: row for row in run(*argv, "--together", "--prices", "2,0.5")["own"]}
    assert together["outlast"]["runs"] == 2 * 4
    assert together["outlast"]["average_usd"] < alone["outlast"]["average_usd"]


def test_problems_of_a_folder_of_traces_are_reported(tmp_path: Path) -> None:
    answer = subprocess.run(
        [sys.executable, str(BENCHMARK), "--traces", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 1
    assert "contains no trace" in answer.stderr
    assert "Traceback" not in answer.stderr


def grid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("oracle_grid", BENCHMARK.with_name("oracle_grid.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(12))
def test_the_grid_oracle_agrees_with_the_reference(seed: int) -> None:
    pytest.importorskip("numpy")
    rng = random.Random(seed)
    start_s = rng.choice([0, 72, 180, 600, 1440])
    job = ReplayJob(
        work_s=24 * 600 + rng.choice([0, 60, 300]),
        deadline_s=(24 + rng.randint(5, 30)) * 600,
        on_demand=OnDemand(price=3.06, start_s=start_s),
    )
    zones = [
        ReplayZone(
            name=str(number),
            ticks="".join(rng.choice("01") * rng.randint(1, 6) for _ in range(20)),
            price=0.97,
            start_s=start_s,
        )
        for number in range(rng.randint(1, 2))
    ]
    assert grid().foresight_on_grid(job, zones, tick_s=600) == pytest.approx(least_cost_path(job, zones, tick_s=600))
