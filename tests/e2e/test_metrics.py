"""A plain script that appends to its metrics file: its curve is complete after a preemption, and can be drawn."""

from __future__ import annotations

import json
import subprocess

import pytest

from outlast.runs.metrics import Curves, stitched, unstitched, write_piece
from tests.support.home import Home

# Logs each step and saves every fifth. The first attempt waits at a step for its preemption.
LOGGER = """
import json, os, sys, time
folder = os.environ["OUTLAST_CHECKPOINT_DIR"]
saved = [int(name.split("-")[1]) for name in os.listdir(folder) if not name.endswith(".tmp")]
step, total, hold = max(saved, default=0), int(sys.argv[1]), int(sys.argv[2])
print("resumed at", step, flush=True)
while step < total:
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        row = {"step": step, "at": time.time(), "loss": 1 / (1 + step), "accuracy": 1 - 1 / (2 + step)}
        file.write(json.dumps(row) + "\\n")
    if step == hold and os.environ["OUTLAST_ATTEMPT"] == "1":
        time.sleep(1000)
    step += 1
    if step % 5 == 0:
        path = os.path.join(folder, f"step-{step}")
        with open(path + ".tmp", "w") as file:
            file.write(str(step))
        os.rename(path + ".tmp", path)
"""


def start_logger(home: Home, total: int, hold: int) -> subprocess.Popen[str]:
    home.write("log.py", LOGGER)
    return home.start("run", "--name", "log", "--", "python3", "log.py", str(total), str(hold))


def curves(home: Home) -> Curves:
    run = home.only_run()
    return stitched(home.workspace.bucket, run, home.state())


def newest_step(home: Home) -> int:
    return max((point.step for points in curves(home).series.values() for point in points), default=-1)


def saved_step(home: Home) -> int:
    checkpoints = home.state().checkpoints
    return (checkpoints[-1].step or 0) if checkpoints else 0


def preempted_run(home: Home) -> str:
    """Run 60 steps: the machine is lost at step 32 without notice, the run resumes from 30 and finishes."""
    process = start_logger(home, 60, 32)
    home.until(lambda: home.workspace.runs() and saved_step(home) == 30 and newest_step(home) == 32, "step 32")
    answer = home.outlast("preempt", "last", "--no-notice")
    assert answer.returncode == 0, answer.stderr
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return home.only_run()


@pytest.mark.full
def test_the_curve_of_a_preempted_run_is_complete_and_monotonic(home: Home) -> None:
    run = preempted_run(home)
    state, found = home.state(), curves(home)
    assert len(state.attempts) == 2
    for points in found.series.values():
        assert [point.step for point in points] == list(range(60)), "the last piece comes before the last word"
        assert {point.attempt for point in points} == {1, 2}
    assert [round(1 / point.value) for point in found.series["loss"]] == list(range(1, 61))
    assert [(mark.kind, mark.attempt, mark.step) for mark in found.marks] == [("preempted", 1, 32), ("resumed", 2, 30)]
    everything = unstitched(home.workspace.bucket, run, state).series["loss"]
    assert [(p.step, p.attempt) for p in everything] == [(s, 1) for s in range(33)] + [(s, 2) for s in range(30, 60)]
    result = home.outlast("show", "last").stdout
    assert "metrics  step 59: loss 0.01667, accuracy 0.9836\n" in result


@pytest.mark.full
def test_a_preempted_run_is_drawn_with_its_mark(home: Home) -> None:
    run = preempted_run(home)
    answer = home.outlast("plot", "last")
    assert answer.returncode == 0, answer.stderr
    first, second = answer.stdout.index("loss\n"), answer.stdout.index("accuracy\n")
    for panel in (answer.stdout[first:second], answer.stdout[second:]):
        assert "✗" in panel
        assert any("\u2800" < sign <= "\u28ff" for sign in panel), "a curve"
    assert "✗ attempt 1 preempted at step 32\n↻ attempt 2 resumed at step 30\n" in answer.stdout
    assert "\x1b" not in answer.stdout, "no colours in a pipe"
    data = json.loads(home.outlast("plot", "last", "--json", "--metric", "loss").stdout)
    assert [point["step"] for point in data["metrics"].pop("loss")] == list(range(60))
    assert data["metrics"] == {}
    assert (data["run"], [mark["kind"] for mark in data["marks"]]) == (run, ["preempted", "resumed"])
    assert_draws_a_picture(home)


def assert_draws_a_picture(home: Home) -> None:
    from matplotlib.image import imread

    for name, options in (("a.png", ()), ("b.png", ("--log", "--all-attempts", "--width", "640", "--height", "200"))):
        answer = home.outlast("plot", "last", "--png", name, *options)
        # On a busy computer a progress line precedes it.
        assert (answer.returncode, answer.stderr.splitlines()[-1]) == (0, f"wrote {name}")
        height, width, *_ = imread(str(home.project / name)).shape
        assert (width, height) == ((640, 400) if options else (1000, 720))
        assert not list(home.project.glob(f"{name}.*"))


@pytest.mark.full
def test_metrics_that_cannot_be_drawn_are_reported_with_the_next_step(home: Home) -> None:
    answer = home.outlast("run", "--", "true")
    assert answer.returncode == 0, answer.stderr
    answer = home.outlast("plot", "last", "--png", "none.png")
    assert (answer.returncode, not (home.project / "none.png").exists()) == (1, True)
    assert "run-1 has logged no metrics yet\nhint: log them" in answer.stderr.replace(home.only_run(), "run-1")
    assert json.loads(home.outlast("plot", "last", "--json").stdout)["metrics"] == {}

    write_piece(home.workspace.bucket, home.only_run(), 1, 1, b'{"step": 1, "loss": -1, "accuracy": 0.5}\n')
    answer = home.outlast("plot", "last", "--metric", "los")
    assert answer.returncode == 2
    assert "has no metric `los`; there are: loss, accuracy" in answer.stderr
    answer = home.outlast("plot", "last", "--log", "--metric", "loss")
    assert (answer.returncode, "no value is positive" in answer.stderr) == (1, True)
    assert home.outlast("plot", "last").returncode == 0, "one point"

    for package, option in (("plotext", ()), ("matplotlib", ("--png", "none.png"))):
        # A broken package that shadows the working one.
        home.write(f"without-{package}/{package}.py", "raise ImportError('not here')")
        answer = home.outlast("plot", "last", *option, PYTHONPATH=str(home.project / f"without-{package}"))
        assert answer.returncode == 1
        assert f"error: cannot import {package}" in answer.stderr
        assert "hint: pip install 'outlast[plot]'" in answer.stderr


@pytest.mark.full
def test_ps_shows_the_newest_logged_step(home: Home) -> None:
    start_logger(home, 60, 7)
    home.until(lambda: [row["step"] for row in home.ps()] == [7], "a step that is in no checkpoint")


SILENT = """
import os, time
begin = time.time()
while time.time() < begin + 4:
    time.sleep(0.1)
    open(os.environ["OUTLAST_METRICS_FILE"], "a").write('{"step": %d}\\n' % (10 * (time.time() - begin)))
"""


@pytest.mark.full
def test_a_program_that_only_logs_metrics_is_not_hung(home: Home) -> None:
    home.write("silent.py", SILENT)
    answer = home.outlast("run", "--hang-after", "2s", "--", "python3", "silent.py")
    assert answer.returncode == 0, answer.stderr
    assert [a.outcome for a in home.state().attempts] == ["finished"]
