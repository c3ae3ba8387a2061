"""`outlast rerun`, `outlast compare` and `outlast burst`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.home import Home

PROGRAM = """
import json, os, sys
lr = float(sys.argv[1])
for step in range(3):
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "loss": lr / (step + 1)}) + "\\n")
open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "result.txt"), "w").write(str(lr))
print("lr", lr)
"""
# A program with the options of `@outlast.trainer`.
TRAINER = """
import outlast

@outlast.trainer
def train(run, *, step_size: int = 2):
    state = run.restore() or {"step": 0, "sum": 0}
    for step in run.steps(state["step"]):
        state = {"step": step + 1, "sum": state["sum"] + step_size}
        run.save_if_due(step, lambda: state)
    return {"sum": state["sum"]}

@train.evaluate
def score(run, state):
    return {"sum": state["sum"]}

if __name__ == "__main__":
    train()
"""


@pytest.mark.full
def test_rerun_repeats_the_recorded_run_and_compare_shows_differences(home: Home) -> None:
    home.write("train.py", PROGRAM)
    argv = ["run", "--name", "lr", "-p", "lr=0.5", "--", "python3", "train.py", "{lr}"]
    first = home.outlast(*argv)
    assert first.returncode == 0, first.stderr
    # The folder has changed; the recorded code has not.
    home.write("train.py", PROGRAM.replace('print("lr", lr)', 'print("new code")'))
    again = home.outlast("rerun", "lr-1", "-p", "lr=0.25")
    assert again.returncode == 0, again.stderr
    assert "lr 0.25" in again.stdout
    assert (home.project / "outputs" / "lr-2" / "result.txt").read_text() == "0.25"
    third = home.outlast(*argv)
    assert "new code" in third.stdout, third.stderr

    result = home.outlast("compare", "lr-1", "lr-2", "lr-3", "--diff", "--curves")
    assert result.returncode == 0, result.stderr
    assert "code: lr-2 and lr-1 are the same" in result.stdout
    assert "changed  train.py  +1 -1" in result.stdout
    assert '+print("new code")' in result.stdout
    facts = result.stdout.partition("code: lr-2")[0].splitlines()
    lines = {line.lstrip("≠ ").split()[0]: line for line in facts}
    assert lines["lr"].startswith("≠")
    assert lines["lr"].split()[2:] == ["0.5", "0.25", "0.5"]
    assert "0.166667" in lines["loss"]
    data = json.loads(home.outlast("compare", "lr-1", "lr-2", "--json").stdout)
    assert [run["metrics"]["loss"] for run in data["runs"]] == [0.5 / 3, 0.25 / 3]
    assert home.outlast("compare", "lr-1", "lr-1").returncode == 2
    assert home.outlast("compare", "lr-1", "lr-2", "--png", "curves.png").returncode == 0
    assert (home.project / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.full
def test_missing_recorded_parts_are_reported_and_nothing_is_launched(home: Home) -> None:
    home.write("train.py", "print('hello')")
    data = home.root / "data"
    data.mkdir()
    (data / "rows.csv").write_text("1")
    home.write("outlast.toml", f'name = "gone"\ncommand = ["python3", "train.py"]\n[data]\n"data" = "{data}"\n')
    assert home.outlast("run", "--no-pull").returncode == 0
    for entry in list(home.workspace.bucket.list("code/")):
        home.workspace.bucket.delete(entry.key)
    (data / "rows.csv").unlink()
    data.rmdir()
    answer = home.outlast("rerun", "gone-1")
    assert answer.returncode == 1
    assert "its code (code/" in answer.stderr
    assert '[data] "data"' in answer.stderr
    assert "nothing was launched" in answer.stderr
    assert home.workspace.runs() == ["gone-1"]
    unknown = home.outlast("rerun", "gone-1", "-p", "lr=1")
    assert unknown.returncode == 2
    assert "no parameter `lr`" in unknown.stderr


@pytest.mark.full
def test_burst_fetches_model_and_outputs_and_evaluates_the_model_locally(home: Home) -> None:
    home.write("train.py", TRAINER)
    argv = ["burst", "--name", "big", "--evaluate", "--", sys.executable, "train.py", "--train-steps", "5"]
    answer = home.outlast(*argv)
    assert answer.returncode == 0, answer.stderr
    assert "burst: local-64, 64 cores, spot" in answer.stderr
    assert json.loads(answer.stdout.splitlines()[-1]) == {"sum": 10.0}
    [place] = (home.project / "bursts").iterdir()
    assert place.name.startswith("big-1-20")
    assert (place / "checkpoint").is_dir()
    result = json.loads((place / "burst.json").read_text())
    assert result["ending"] == "finished"
    assert result["machine"]["cpus"] == 64
    assert not home.machines()


def test_burst_passes_the_number_of_cores_and_respects_the_price(home: Home, tmp_path: Path) -> None:
    answer = home.outlast("burst", "--most", "0.2", "--pull", str(tmp_path / "x"), "--", "echo", "cores", "{cpus}")
    assert answer.returncode == 0, answer.stderr
    assert "cores 16" in answer.stdout
    dear = home.outlast("burst", "--most", "0.001", "--", "true")
    assert dear.returncode == 1
    assert "costs more than $0.001/h" in dear.stderr
    assert len(home.workspace.runs()) == 1
