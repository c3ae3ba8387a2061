"""Each example survives a preemption on the local cloud, with the result of an undisturbed run."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conventions.sources import ROOT
from tests.support.home import Home

REAL_DATA = ROOT.parent / "shared" / "data" / "census"
TORCH = importlib.util.find_spec("torch") is not None
MISSING = [name for name in ("xgboost", "sklearn") if importlib.util.find_spec(name) is None]


class Example:
    """A copy of an example's folder in a separate home."""

    def __init__(self, home: Home) -> None:
        self.home = home
        # `python` must be the interpreter with outlast, as in a reader's virtual environment.
        home.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), home.environment["PATH"]])

    def take(self, name: str) -> Path:
        shutil.copytree(ROOT / "examples" / name, self.home.project, dirs_exist_ok=True)
        # The packages of this computer: frameworks are large, and tests of environments install smaller ones.
        settings = self.home.project / "outlast.toml"
        settings.write_text('environment = "host"\n' + settings.read_text())
        return self.home.project

    def preempted_at(self, sign: str, *argv: str) -> str:
        """Run the example and preempt it once `sign` is in the output. Return the output."""
        process = self.home.start("run", *argv)
        self.home.until(lambda: self.home.workspace.runs() and sign in self.home.log(), f"`{sign}` in the output")
        # Call the cloud directly: starting a command could take longer than the rest of the run.
        self.home.cloud.preempt(self.home.machines()[0].name)
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        attempts = [attempt.outcome for attempt in self.home.state().attempts]
        assert attempts == ["preempted", "finished"], output
        return output

    def python(self, *argv: str) -> str:
        done = subprocess.run(
            [sys.executable, "train.py", *argv],
            cwd=self.home.project,
            env=self.home.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def result(self, name: str) -> object:
        answer = self.home.outlast("pull", "last", str(self.home.root / "pulled"))
        assert answer.returncode == 0, answer.stderr
        found = list((self.home.root / "pulled").rglob(name))
        assert len(found) == 1, answer.stdout
        return json.loads(found[0].read_text())


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    home = Home(tmp_path)
    yield Example(home)
    home.clean()


@pytest.mark.full
def test_survival_ends_with_the_weights_of_an_undisturbed_training(example: Example) -> None:
    example.take("survival")
    output = example.preempted_at("step 100 ", "-p", "train_steps=400")
    assert "resuming" in output
    example.python("--train-steps", "400", "--lr", "0.2", "--job-dir", "job")
    undisturbed = json.loads((example.home.project / "job" / "outputs" / "weights.json").read_text())
    assert example.result("weights.json") == undisturbed
    metrics = json.loads(example.python("--mode", "evaluate", "--job-dir", "job", "--eval-steps", "10"))
    assert metrics["accuracy"] > 0.8
    assert metrics["step"] == 400


@pytest.mark.full
def test_an_unmodified_script_survives(example: Example) -> None:
    example.take("unaware")
    output = example.preempted_at("epoch 30 ", "-p", "epochs=80")
    assert "resumed at epoch" in output
    example.python("--epochs", "80", "--pause", "0")
    assert example.result("curve.json") == json.loads((example.home.project / "outputs" / "curve.json").read_text())


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")
def test_the_census_search_resumes_with_the_next_candidate(example: Example) -> None:
    project = example.take("census")
    if REAL_DATA.is_dir():
        with (project / "outlast.toml").open("a") as file:
            file.write(f'[data]\n"data" = "{REAL_DATA}"\n')
    parameters = ["-p", "train_steps=12", "-p", "rows=400", "-p", "folds=2", "-p", "jobs=1"]
    output = example.preempted_at("candidate 2 ", *parameters)
    tried = [line.split()[1] for line in output.splitlines() if line.lstrip().startswith("candidate ")]
    assert {int(number) for number in tried} == set(range(1, 13))
    assert len(tried) <= 13, "at most one candidate is repeated"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")
@pytest.mark.skipif(importlib.util.find_spec("optuna") is None, reason="not installed here: optuna")
@pytest.mark.skipif(not REAL_DATA.is_dir(), reason="the census data are not on this computer")
def test_the_census_search_by_burst_and_by_sweep_gives_the_same_kind_of_table(example: Example) -> None:
    project = example.take("census")
    for name in ("outlast.toml", "sweep.toml"):
        with (project / name).open("a") as file:
            file.write(f'[data]\n"data" = "{REAL_DATA}"\n')
    few = ["-p", "rows=400", "-p", "folds=2", "-p", "jobs=1"]
    burst = example.home.outlast("burst", "-p", "train_steps=3", *few, "--pull", "burst", timeout_s=100)
    assert burst.returncode == 0, burst.stderr
    table = rows_of(project / "burst" / "candidates.csv")
    assert len(table) == 3
    best = max(table, key=lambda row: float(row["auc"]))
    # All parameters but the depth are those of the best candidate, whose grid point must have the same score.
    other = "3" if best["max_depth"] != "3" else "4"
    fixed = [f"{name}={best[name]}" for name in list(best)[3:]]
    argv = [word for pair in [f"max_depth={best['max_depth']},{other}", *fixed] for word in ("--param", pair)]
    sweep = example.home.outlast("sweep", "-f", "sweep.toml", "--sampler", "grid", *argv, *few, timeout_s=100)
    assert sweep.returncode == 0, sweep.stderr
    assert example.home.outlast("sweep", "export", "last", "table.csv").returncode == 0
    found = {row["max_depth"]: float(row["auc"]) for row in rows_of(project / "table.csv")}
    assert found.keys() == {best["max_depth"], other}
    assert found[best["max_depth"]] == pytest.approx(float(best["auc"]), abs=1e-12)


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")
def test_the_stored_census_model_is_scored_also_without_any_data(example: Example) -> None:
    example.take("census")
    example.python("--train-steps", "2", "--rows", "800", "--folds", "2", "--jobs", "1", "--job-dir", "job")
    metrics = json.loads(example.python("--mode", "evaluate", "--job-dir", "job"))
    assert metrics["candidates"] == 2
    assert metrics["auc"] > 0.7


def drilled(example: Example, *argv: str) -> dict[str, Any]:
    """Run a drill that must pass with at least one handover, and return its report."""
    answer = example.home.outlast("drill", "--json", "--compare", *argv, timeout_s=200.0)
    assert answer.stdout, answer.stderr
    report: dict[str, Any] = json.loads(answer.stdout)
    assert answer.returncode == 0, json.dumps(report["findings"], indent=1) + answer.stderr
    verdicts = {found["question"]: found["verdict"] for found in report["findings"]}
    assert verdicts["resumes"] == verdicts["same result as undisturbed"] == "pass", report["findings"]
    assert report["handovers"]
    return report


@pytest.mark.full
def test_survival_passes_the_drill(example: Example) -> None:
    example.take("survival")
    drilled(example, "--preemptions", "4", "-p", "train_steps=800")


@pytest.mark.full
def test_unaware_passes_the_drill(example: Example) -> None:
    example.take("unaware")
    drilled(example, "--preemptions", "3", "-p", "epochs=80")


@pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")
def test_census_passes_the_drill(example: Example) -> None:
    example.take("census")
    drilled(example, "--preemptions", "2", *("-p", "train_steps=30", "-p", "rows=600", "-p", "folds=2", "-p", "jobs=1"))


@pytest.mark.skipif(not TORCH, reason="torch is not installed: make frameworks")
def test_torch_digits_passes_the_drill_with_identical_results(example: Example) -> None:
    example.take("torch-digits")
    report = drilled(example, "--preemptions", "2", "--tolerance", "0", "-p", "train_steps=800", "-p", "eval_steps=2")
    assert len(report["handovers"]) == 2


@pytest.mark.skipif(not TORCH, reason="torch is not installed: make frameworks")
def test_torch_digits_learns_and_is_scored(example: Example) -> None:
    example.take("torch-digits")
    example.python("--train-steps", "600", "--lr", "0.1", "--job-dir", "job")
    assert json.loads(example.python("--mode", "evaluate", "--job-dir", "job"))["accuracy"] > 0.6


def test_examples_list_exact_versions() -> None:
    for path in (ROOT / "examples").glob("*/requirements.txt"):
        loose = [line for line in path.read_text().splitlines() if not line.startswith("#") and "==" not in line]
        assert [line for line in loose if not line.startswith("outlast")] == [], path


@pytest.mark.full
def test_a_resumable_function_continues_on_another_machine(example: Example) -> None:
    pytest.importorskip("cloudpickle", reason="the extra `executor` is not installed")
    home = example.home
    shutil.copytree(ROOT / "examples" / "resumable", home.project, dirs_exist_ok=True)
    argv = [sys.executable, "fit.py", "--terms", "10000", "--pause", "1"]
    with subprocess.Popen(
        argv, cwd=home.project, env=home.environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        home._started.append(process)
        home.until(lambda: home.workspace.runs() == ["fit-1"] and "begins at term 0" in home.log("fit-1"), "the call")
        home.cloud.preempt(home.machines()[0].name)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0
    assert "pi is about 3.14" in output
    assert output.rstrip().endswith("after 1 preemptions")
