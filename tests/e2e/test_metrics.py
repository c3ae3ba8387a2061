"""A plain script that appends to its metrics file: its curve is whole after a preemption, and can be drawn."""

from __future__ import annotations

import subprocess

from outlast.workspace.metrics import Curves, stitched, unstitched
from tests.e2e.conftest import Home

# Logs each step, saves every fifth, and dies of the signal like most programs: what it did since is done again.
LOGGER = """
import json, os, sys, time
folder = os.environ["OUTLAST_CHECKPOINT_DIR"]
saved = [int(name.split("-")[1]) for name in os.listdir(folder) if not name.endswith(".tmp")]
step, total = max(saved, default=0), int(sys.argv[1])
print("resumed at", step, flush=True)
while step < total:
    time.sleep(0.05)
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        row = {"step": step, "at": time.time(), "loss": 1 / (1 + step), "accuracy": 1 - 1 / (2 + step)}
        file.write(json.dumps(row) + "\\n")
    step += 1
    if step % 5 == 0:
        path = os.path.join(folder, f"step-{step}")
        with open(path + ".tmp", "w") as file:
            file.write(str(step))
        os.rename(path + ".tmp", path)
"""


def start_logger(home: Home, total: int, *options: str) -> subprocess.Popen[str]:
    home.write("log.py", LOGGER)
    return home.start("run", "--name", "log", *options, "--", "python3", "log.py", str(total))


def curves(home: Home) -> Curves:
    run = home.only_run()
    return stitched(home.workspace.bucket, run, home.state())


def newest_step(home: Home) -> int:
    return max((point.step for points in curves(home).series.values() for point in points), default=-1)


def preempted_run(home: Home, total: int) -> str:
    """A run that lost its machine in the middle, without notice, and finished."""
    process = start_logger(home, total)
    home.until(
        lambda: home.workspace.runs() and home.state().checkpoints and newest_step(home) > total // 3, "some metrics"
    )
    answer = home.outlast("preempt", "last", "--no-notice")
    assert answer.returncode == 0, answer.stderr
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return home.only_run()


def test_the_curve_of_a_preempted_run_is_whole_and_never_goes_back(home: Home) -> None:
    run = preempted_run(home, 60)
    state, found = home.state(), curves(home)
    assert len(state.attempts) == 2
    for points in found.series.values():
        assert [point.step for point in points] == list(range(60)), "the last piece comes before the last word"
        assert {point.attempt for point in points} == {1, 2}
    assert [round(1 / point.value) for point in found.series["loss"]] == list(range(1, 61))
    assert [(mark.kind, mark.attempt) for mark in found.marks] == [("preempted", 1), ("resumed", 2)]
    resumed = found.marks[1].step
    assert resumed == state.attempts[1].resumed_step
    everything = unstitched(home.workspace.bucket, run, state).series["loss"]
    assert [point.step for point in everything if point.attempt == 2] == list(range(resumed, 60))


def test_ps_shows_the_newest_step_that_was_logged(home: Home) -> None:
    start_logger(home, 10_000)

    def newest() -> int:
        listed = home.ps()
        return int(listed[0]["step"] or 0) if listed else 0

    home.until(lambda: newest() > 5 and newest() % 5, "a step that no checkpoint tells")


SILENT = """
import os, time
begin = time.time()
while time.time() < begin + 4:
    time.sleep(0.1)
    open(os.environ["OUTLAST_METRICS_FILE"], "a").write('{"step": %d}\\n' % (10 * (time.time() - begin)))
"""


def test_a_program_that_only_logs_metrics_is_not_taken_for_a_hung_one(home: Home) -> None:
    home.write("silent.py", SILENT)
    answer = home.outlast("run", "--hang-after", "2s", "--", "python3", "silent.py")
    assert answer.returncode == 0, answer.stderr
    assert [a.outcome for a in home.state().attempts] == ["finished"]
