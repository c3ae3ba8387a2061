"""Sweeps under preemptions and killed drivers: one result per trial, and reproducible."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from outlast.errors import OutlastError
from outlast.sweep.events import ResultRecorded
from outlast.sweep.record import SweepStory, find
from outlast.sweep.state import SweepState, best
from tests.support.home import Home

pytest.importorskip("optuna", reason="sweeps are chosen by Optuna")

# Logs its loss over a few steps and saves each; the result depends only on the parameters.
TRIAL = """
import argparse, json, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--depth", type=int)
parser.add_argument("--opt")
given = parser.parse_args()
assert json.loads(os.environ["OUTLAST_PARAMS"])["depth"] == given.depth
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
while step < 4:
    time.sleep(PAUSE)
    step += 1
    loss = abs(given.lr - 0.01) + abs(given.depth - 6) + (given.opt == "sgd") + 1 / step
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "loss": loss}) + "\\n")
    with open(path + ".tmp", "w") as file:
        file.write(str(step))
    os.replace(path + ".tmp", path)
open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "model.txt"), "w").write(f"{given.lr} {given.depth} {given.opt}")
"""
SEARCHED = ["--param", "lr=log(1e-4..1e-1)", "--param", "depth=3..10", "--param", "opt=adam,sgd", "--goal", "min:loss"]


def write_trial(home: Home, *, pause_s: float) -> list[str]:
    home.write("train.py", TRIAL.replace("PAUSE", str(pause_s)))
    home.environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), home.environment["PATH"]])
    return ["--", "python", "train.py"]


def state_of(home: Home) -> SweepState:
    try:
        return SweepStory(home.workspace.bucket, find(home.workspace, "last").name).refresh()
    except OutlastError:
        return SweepState()


def preempt_one(home: Home, rng: random.Random) -> bool:
    """Preempt a machine, with or without a notice."""
    running = [machine.name for machine in home.machines() if machine.status == "running"]
    if not running:
        return False
    try:
        home.cloud.preempt(rng.choice(running), notice=rng.random() < 0.5)
    except OutlastError:
        return False  # it ended by itself just now
    return True


class Storm:
    """Regular preemptions, and kills of the driver, which also supervises: another driver takes over."""

    def __init__(self, home: Home, argv: list[str], *, every_s: float, kills: int) -> None:
        self.home = home
        self.rng = random.Random(1)
        self.every_s = every_s
        self.kills = kills
        self.taken = 0
        self.process = home.start(*argv)
        self.due = time.monotonic() + every_s

    def disturb(self) -> bool:
        """Preempt or kill if it is time; return whether the sweep is over."""
        state = state_of(self.home)
        # The first one after the first result: on a fast computer the sweep may end before a fixed time.
        if time.monotonic() > self.due or (state.ended and not self.taken):
            self.taken += preempt_one(self.home, self.rng)
            self.due = time.monotonic() + self.every_s
        if self.kills and state.wanted and len(state.ended) > state.wanted // (self.kills + 1):
            self.kills -= 1
            self.process.kill()
            self.process.wait()
            self.process = self.home.start("sweep", "resume", "last")
        return state.over

    def last(self, within_s: float) -> None:
        self.home.until(self.disturb, "the end of the sweep", within_s=within_s)
        output, _ = self.process.communicate(timeout=600)
        assert self.process.returncode == 0, output
        assert self.taken > 0
        assert not self.kills


def check_each_once(home: Home, trials: int) -> SweepState:
    """Check that the story and the output have exactly one result per trial."""
    story = SweepStory(home.workspace.bucket, find(home.workspace, "last").name)
    state = story.refresh()
    result = [event.trial for event in story.events if isinstance(event, ResultRecorded)]
    assert sorted(result) == list(range(trials))
    assert [trial.outcome for trial in state.trials] == ["complete"] * trials, [
        (trial.why, [attempt.why for attempt in home.state(trial.run).attempts]) for trial in state.trials if trial.why
    ]
    answer = home.outlast("sweep", "show", "last", "--json")
    assert answer.returncode == 0, answer.stderr
    assert len(json.loads(answer.stdout)["trials"]) == trials
    home.until(lambda: not home.machines(), "the end of all machines", within_s=60)
    return state


def check_best_again(home: Home, state: SweepState) -> None:
    [leader] = best(state, ("min:loss",))
    answer = home.outlast("sweep", "best", "last", "--rerun", timeout_s=100)
    assert answer.returncode == 0, answer.stderr
    value = f"{leader.values[0]:.10g}"
    assert f"loss {value}; trial {leader.number} had {value}" in answer.stdout


def run_with_preemptions(
    home: Home, trials: int, machines: int, *, pause_s: float, every_s: float, within_s: float
) -> None:
    command = write_trial(home, pause_s=pause_s)
    # High limit: on a busy computer a machine is often preempted before its first save.
    unlimited = ["--set", "limits.no_progress=1000"]
    argv = ["sweep", *SEARCHED, "--trials", str(trials), "--parallel", str(machines), *unlimited, *command]
    Storm(home, argv, every_s=every_s, kills=2).last(within_s)
    state = check_each_once(home, trials)
    runs = [home.state(trial.run) for trial in state.trials]
    assert any(attempt.preempted for run in runs for attempt in run.attempts)
    check_best_again(home, state)


@pytest.mark.full
def test_each_trial_has_one_result_despite_preemptions_and_killed_drivers(home: Home) -> None:
    run_with_preemptions(home, 9, 3, pause_s=0.2, every_s=1.5, within_s=200.0)


@pytest.mark.soak
def test_sixty_trials_over_six_machines_with_a_preemption_every_few_seconds(home: Home) -> None:
    run_with_preemptions(home, 60, 6, pause_s=0.5, every_s=3.0, within_s=800.0)


def test_workers_run_several_trials_at_a_time_and_resume_them(home: Home) -> None:
    command = write_trial(home, pause_s=0.2)
    argv = ["sweep", *SEARCHED, "--trials", "10", "--parallel", "4", "--per-machine", "2", *command]
    Storm(home, argv, every_s=4.0, kills=1).last(200.0)
    state = check_each_once(home, 10)
    assert {trial.run for trial in state.trials} <= {f"project-s1-w{n}" for n in range(1, 9)}
    answer = home.outlast("pull", state.trials[0].run, "pulled")
    assert answer.returncode == 0, answer.stderr
    assert (home.project / "pulled" / "t0" / "model.txt").exists()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--param", "lr=3..1", "--goal", "min:loss"], "[sweep.params] lr: range '3..1' is empty: 3 is more than 1"),
        (["--param", "lr=1..3"], "[sweep] goal: missing"),
        (["--goal", "min:loss"], "[sweep.params]: missing"),
        (["--param", "lr=0.1..1", "--goal", "min:loss", "--sampler", "grid"], "give `lr` a step"),
    ],
)
def test_bad_input_is_reported_before_a_launch(home: Home, argv: list[str], said: str) -> None:
    answer = home.outlast("sweep", *argv, "--", "true")
    assert answer.returncode == 2
    assert said in answer.stderr
    assert not home.workspace.runs()
    assert not home.machines()


@pytest.mark.full
def test_a_missing_metric_halts_the_sweep_and_lists_the_logged_ones(home: Home) -> None:
    home.write("train.py", "import json; print(json.dumps({'accuracy': 0.5, 'auc': 0.75}))")
    answer = home.outlast(
        "sweep", "--param", "lr=1..30", "--goal", "min:loss", "--trials", "30", "--", "python3", "train.py"
    )
    assert answer.returncode == 6, answer.stderr
    assert "no number logged for `loss`; the trial logged `accuracy`, `auc`" in answer.stderr
    assert len(home.workspace.runs()) <= 4


@pytest.mark.full
def test_repeated_crashes_halt_the_sweep(home: Home) -> None:
    home.write("train.py", "raise SystemExit('no such luck')")
    argv = ["--param", "lr=1..90", "--goal", "min:loss", "--trials", "90", "--crashes", "1"]
    answer = home.outlast("sweep", *argv, "--", "python3", "train.py")
    assert answer.returncode == 6, answer.stderr
    assert "3 trials in a row failed" in answer.stderr
    assert len(home.workspace.runs()) <= 5


@pytest.mark.full
def test_the_last_json_line_is_the_result_and_trials_can_be_added(home: Home) -> None:
    home.write(
        "train.py", "import json, sys; print('hello'); print(json.dumps({'score': int(sys.argv[-1])})); print('x')"
    )
    argv = ["--param", "n=1..4", "--goal", "max:score", "--sampler", "grid", "--trials", "2", "--parallel", "2"]
    first = home.outlast("sweep", *argv, "--", "python3", "train.py", "{n}")
    assert first.returncode == 0, first.stderr
    more = home.outlast("sweep", "resume", "last", "--trials", "+2")
    assert more.returncode == 0, more.stderr
    answer = home.outlast("sweep", "best", "last", "--json")
    assert json.loads(answer.stdout)[0]["params"] == {"n": 4}
    too_many = home.outlast("sweep", "resume", "last", "--trials", "+1")
    assert too_many.returncode == 2
    assert "the grid has 4 points" in too_many.stderr


@pytest.mark.full
def test_a_detached_sweep_can_be_stopped_and_shown_from_elsewhere(home: Home, tmp_path: Path) -> None:
    command = write_trial(home, pause_s=0.3)
    answer = home.outlast("sweep", *SEARCHED, "--trials", "40", "--parallel", "2", "--detach", *command)
    assert answer.returncode == 0, answer.stderr
    name = answer.stdout.strip()
    home.until(lambda: len(state_of(home).ended) >= 1, "the first result", within_s=60)
    elsewhere = home.outlast("sweep", "show", name, HOME=str(tmp_path / "another home"))
    assert f"{name}: " in elsewhere.stdout
    assert "driven by" in elsewhere.stderr
    assert home.outlast("sweep", "stop", name, "--now").returncode == 0
    home.until(lambda: state_of(home).over and not home.machines(), "the end of all machines", within_s=60)
    state = state_of(home)
    assert state.stopped
    assert len(state.trials) < 40
    listed: list[dict[str, Any]] = json.loads(home.outlast("sweep", "list", "--json").stdout)
    assert [(row["sweep"], row["state"]) for row in listed] == [(name, "stopped")]


@pytest.mark.full
def test_ctrl_c_moves_the_sweep_of_a_file_to_the_background(home: Home) -> None:
    write_trial(home, pause_s=1.0)
    home.write(
        "outlast.toml",
        'name = "filed"\ncommand = "python train.py"\n[sweep]\ngoal = "min:loss"\ntrials = 4\nparallel = 2\n'
        '[sweep.params]\nlr = "log(1e-4..1e-1)"\ndepth = "3..10"\nopt = ["adam", "sgd"]\n',
    )
    process = home.start("sweep")
    home.until(lambda: len(state_of(home).trials) >= 2, "the first two trials")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "`filed-s1` continues" in output
    home.until(lambda: state_of(home).over, "the end of the sweep", within_s=90)
    check_each_once(home, 4)


@pytest.mark.full
def test_the_pruner_ends_hopeless_trials_of_a_worker(home: Home) -> None:
    home.write(
        "train.py",
        "import json, os, sys, time\n"
        "for step in range(1, 9):\n"
        "    with open(os.environ['OUTLAST_METRICS_FILE'], 'a') as file:\n"
        "        file.write(json.dumps({'step': step, 'loss': int(sys.argv[1]) + 1 / step}) + '\\n')\n"
        "    time.sleep(0.4)\n",
    )
    argv = ["--param", "x=0..1000", "--goal", "min:loss", "--sampler", "random", "--pruner", "asha"]
    packed = ["--trials", "8", "--parallel", "4", "--per-machine", "4"]
    answer = home.outlast("sweep", *argv, *packed, "--", "python3", "train.py", "{x}", timeout_s=100)
    assert answer.returncode == 0, answer.stderr
    state = state_of(home)
    outcomes = {trial.outcome for trial in state.trials}
    assert outcomes == {"complete", "pruned"}
    assert sorted(state.ended) == list(range(8))
    assert all(trial.reports for trial in state.trials if trial.outcome == "pruned")


@pytest.mark.full
def test_results_are_drawn_and_exported(home: Home) -> None:
    home.write(
        "train.py", "import json, sys; print(json.dumps({'loss': (int(sys.argv[1]) - 3) ** 2 + len(sys.argv[2])}))"
    )
    argv = ["--param", "n=1..6", "--param", "word=a,bb", "--goal", "min:loss", "--trials", "6", "--parallel", "3"]
    done = home.outlast("sweep", *argv, "--", "python3", "train.py", "{n}", "{word}")
    assert done.returncode == 0, done.stderr
    picture = home.outlast("sweep", "plot", "last")
    assert "best so far" in picture.stdout, picture.stderr
    assert "word a..bb" in picture.stdout
    assert home.outlast("sweep", "plot", "last", "--png", "sweep.png").returncode == 0
    assert (home.project / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert home.outlast("sweep", "export", "last", "trials.csv").returncode == 0
    lines = (home.project / "trials.csv").read_text().splitlines()
    assert lines[0] == "trial,state,loss,n,word,seconds,run"
    assert len(lines) == 7
    assert home.outlast("sweep", "export", "last", "trials.xls").returncode == 2
