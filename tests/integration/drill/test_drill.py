"""Complete drills: real processes, real machines of the local cloud, real preemptions."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from outlast.app.left_behind import left_behind
from tests.support.gang import write_gang
from tests.support.home import Home

# Waits for the preemptions that a test expects, however busy the computer is: attempt 1 before its first checkpoint,
# and all others in their second half. An undisturbed run does not wait.
PAUSE = """
def pause():
    expected = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    attempt = int(os.environ["OUTLAST_ATTEMPT"])
    if attempt > expected or "undisturbed" in os.environ["OUTLAST_RUN"]:
        return 0.1
    if attempt == 1 and expected > 2:
        return 3.0 if step else 0.1
    return 0.1 if step < total / 2 else 0.7
"""
# The trainer that the others are variants of: start, step, save.
GOOD = """
import json, os, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "state.json")
x, v, step = 10.0, 0.0, 0
if os.path.exists(path):
    x, v, step = json.load(open(path))
total = int(sys.argv[1])
while step < total:
    time.sleep(pause())
    step += 1
    v = 0.9 * v - 0.02 * x
    x += v
    if step % 4 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump([x, v, step], file)
        os.replace(path + ".tmp", path)
    print(f"step {step}/{total} loss {x * x:.9f}", flush=True)
print(json.dumps({"loss": x * x}))
"""
GOOD = GOOD.replace("x, v, step = 10.0", PAUSE + "x, v, step = 10.0")
# Its counter is only in memory.
NAIVE = """
import os, sys, time
expected = int(sys.argv[2]) if len(sys.argv) > 2 else 0
for step in range(1, int(sys.argv[1]) + 1):
    time.sleep(0.5 if int(os.environ["OUTLAST_ATTEMPT"]) <= expected else 0.1)
    print("step", step, flush=True)
"""
IGNORES = GOOD.replace("if os.path.exists(path):", "if False:")
FORGETS_MOMENTUM = GOOD.replace("x, v, step = json.load(open(path))", "x, _, step = json.load(open(path))")
# Draws the order of each epoch from an RNG whose state is not saved: after a resume it starts over.
FORGETS_ORDER = GOOD.replace(
    "import json, os, sys, time", "import json, os, random, sys, time\nrandom.seed(3)"
).replace("v = 0.9 * v - 0.02 * x", "v = 0.9 * v - 0.02 * (x - random.choice([-1.0, 0.0, 1.0]))")
EXITS_0 = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n" + GOOD


def drill(home: Home, script: str, *argv: str, steps: int = 30, expected: int = 1) -> tuple[int, dict[str, Any]]:
    home.write("train.py", script)
    answer = home.outlast("drill", "--json", *argv, "--", "python3", "train.py", str(steps), str(expected))
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def finding(report: dict[str, Any], question: str) -> dict[str, Any]:
    found: dict[str, Any] = next(f for f in report["findings"] if f["question"].startswith(question))
    return found


def test_a_good_trainer_passes(home: Home) -> None:
    code, report = drill(home, GOOD, expected=3)
    assert (code, report["passed"]) == (0, True), report
    assert finding(report, "resumes")["verdict"] == "pass"
    assert finding(report, "from the right step")["verdict"] == "pass"
    assert len(report["handovers"]) == 3
    assert report["prices"]["spot_usd_per_useful_hour"] < report["prices"]["on_demand_usd_per_hour"]
    assert home.machines() == []


@pytest.mark.full
def test_a_handler_that_leaves_an_incomplete_checkpoint_is_reported(home: Home) -> None:
    half = GOOD.replace("import json, os, sys, time", "import json, os, signal, sys, time").replace(
        "total = int(sys.argv[1])", "total = int(sys.argv[1])\nsignal.signal(signal.SIGTERM, on_sigterm)"
    )
    # The handler opens the file, and the process ends before it is complete.
    handler = """def on_sigterm(*_):
    file = open(path, "w")
    file.write("[")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    _, report = drill(home, half.replace("x, v, step = 10.0", handler + "x, v, step = 10.0"), steps=30)
    assert finding(report, "saved after the notice")["verdict"] != "pass", report
    assert finding(report, "finishes")["verdict"] == "pass", "the incomplete checkpoint was not restored"


def test_a_script_without_checkpoints_fails_with_the_right_reason(home: Home) -> None:
    code, report = drill(home, NAIVE, "--wait", "1s", steps=20, expected=3)
    assert (code, report["passed"]) == (8, False)
    found = finding(report, "resumes")
    assert found["verdict"] == "fail"
    assert "started again from the beginning after every preemption: nothing was restored" in found["answer"]
    assert "OUTLAST_CHECKPOINT_DIR" in found["hint"]
    assert len(report["handovers"]) == 3


@pytest.mark.full
def test_a_trainer_that_ignores_its_checkpoint_fails(home: Home) -> None:
    code, report = drill(home, IGNORES, "--preemptions", "1")
    assert code == 8
    assert "restored but ignored" in finding(report, "resumes")["answer"]
    assert "OUTLAST_RESUME" in finding(report, "resumes")["hint"]


@pytest.mark.full
def test_a_trainer_that_exits_with_0_on_sigterm_passes_with_a_remark(home: Home) -> None:
    code, report = drill(home, EXITS_0, "--preemptions", "1")
    assert code == 0, report
    assert finding(report, "on SIGTERM")["verdict"] == "note"
    assert "exits with 0 while it is unfinished" in finding(report, "on SIGTERM")["answer"]


@pytest.mark.full
@pytest.mark.parametrize("script", [FORGETS_MOMENTUM, FORGETS_ORDER], ids=["the optimizer's", "the order of the data"])
def test_compare_catches_a_trainer_that_forgets_part_of_its_state(home: Home, script: str) -> None:
    code, report = drill(home, script, "--compare", "--preemptions", "1")
    assert code == 8
    assert finding(report, "resumes")["verdict"] == "pass"
    found = finding(report, "same result")
    assert found["verdict"] == "fail"
    assert "keeps state that no checkpoint holds" in found["answer"]
    assert "after attempt 2 began" in found["answer"]


@pytest.mark.full
def test_compare_passes_a_trainer_that_keeps_all_of_its_state_and_plots_both_curves(home: Home) -> None:
    home.write("train.py", GOOD)
    argv = ("--compare", "--preemptions", "2", "--no-notice")
    answer = home.outlast("drill", *argv, "--", "python3", "train.py", "30", "2")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "are the same within 1e-06" in " ".join(answer.stdout.split())
    assert "· undisturbed  × drilled  • both" in answer.stdout
    assert "with notice" not in answer.stderr
    assert "the drill passed" in answer.stdout


@pytest.mark.full
def test_a_distributed_training_passes_although_all_its_machines_are_lost(home: Home) -> None:
    """A loss without notice stops the other machine, which waits for the lost one: no save is expected of it."""
    write_gang(home, "local", "", nodes=2, hold=0, steps=400)
    answer = home.outlast("drill", "--preemptions", "4", timeout_s=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    for what in ("before the start, without notice", "in the middle, without notice, all machines"):
        assert f" {what}\n" in answer.stderr
    assert home.machines() == []


def test_a_program_that_fails_by_itself_is_not_drilled(home: Home) -> None:
    home.write("train.py", "import sys; print('no data'); sys.exit(3)")
    answer = home.outlast("drill", "--compare", "--crashes", "1", "--", "python3", "train.py")
    assert answer.returncode == 8
    assert "without any preemption" in answer.stderr
    assert home.machines() == []


def test_ignored_data_is_named_when_the_program_fails(home: Home) -> None:
    home.write(".gitignore", "data/\n")
    home.write("data/train.csv", "1,2\n")
    home.write("train.py", "print(open('data/train.csv').read())")
    answer = home.outlast("drill", "--compare", "--crashes", "1", "--", "python3", "train.py")
    assert answer.returncode == 8
    assert "`data/train.csv` exists here, but git or .outlastignore ignores it" in " ".join(answer.stderr.split())
    assert "`--data data=data`" in " ".join(answer.stderr.split())


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'", ["data/train.csv"]),
        ("cannot open /machine/work/data/train.csv: no such file", ["data/train.csv"]),
        ("FileNotFoundError: 'data'; see train.py", ["data"]),
        ("FileNotFoundError: 'data/other.csv', '../secret', '/etc/passwd', 'train.py', 'conf'", []),
    ],
)
def test_ignored_files_are_found_in_the_output(tmp_path: Path, output: str, expected: list[str]) -> None:
    for name, text in ((".gitignore", "data/"), ("data/train.csv", "1"), ("train.py", ""), ("conf/a.yaml", "")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert left_behind(str(tmp_path), output) == expected


@pytest.mark.full
def test_ctrl_c_cancels_the_drill_and_leaves_nothing(home: Home) -> None:
    home.write("train.py", GOOD)
    process = home.start("drill", "--", "python3", "train.py", "1000")
    home.until(lambda: home.workspace.runs() and "step 2/" in home.log(), "a step")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "nothing is left running" in output
    assert home.state().ending == "cancelled"
    assert home.machines() == []


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--preemptions", "0"), "--preemptions: 0 is not between 1 and 50"),
        (("--preemptions", "many"), "many"),
        (("--tolerance", "-1"), "--tolerance: -1 must be a finite number"),
        (("--tolerance", "nan"), "--tolerance: nan must be a finite number"),
        (("--mean-life", "long"), "--mean-life: invalid duration 'long'"),
        (("--grace", "0s"), "--grace: expected a duration above zero, got '0s'"),
        ((), "command"),
    ],
)
def test_invalid_options_are_reported_and_nothing_is_launched(
    home: Home, argv: tuple[str, ...], complaint: str
) -> None:
    answer = home.outlast("drill", *argv)
    assert answer.returncode == 2
    assert complaint in answer.stderr
    assert home.workspace.runs() == []


@pytest.mark.full
def test_every_moment_is_preempted_as_by_a_real_cloud(home: Home) -> None:
    code, report = drill(home, GOOD, "--preemptions", "6", steps=60, expected=6)
    assert (code, report["passed"]) == (0, True), report
    preempted = {(h["moment"], h["notice"]) for h in report["handovers"]}
    assert preempted == {
        ("before the first checkpoint", False),
        ("in the middle", True),
        ("in the middle", False),
        ("while saving", True),
        ("while saving", False),
        ("right before the end", True),
    }
    by_moment = {h["moment"]: h for h in report["handovers"]}
    assert by_moment["before the first checkpoint"]["committed"] == ""
    assert by_moment["in the middle"]["committed"] != ""
    assert by_moment["right before the end"]["last_step"] >= 51
    assert finding(report, "moments") == {**finding(report, "moments"), "verdict": "pass", "answer": "6 preemptions"}


@pytest.mark.soak
def test_a_short_script_that_never_saves_is_preempted_in_a_second_run(home: Home) -> None:
    code, report = drill(home, NAIVE, "--preemptions", "2", steps=20, expected=0)
    assert (code, len(report["handovers"])) == (8, 2), report
    assert "it saves nothing" in finding(report, "resumes")["answer"]
    assert "preempted anyway" in finding(report, "moments")["answer"]


@pytest.mark.soak
def test_the_end_of_a_program_without_steps_is_estimated_by_time(home: Home) -> None:
    silent = GOOD.replace("""print(f"step {step}/{total} loss {x * x:.9f}", flush=True)""", "pass")
    code, report = drill(home, silent, "--preemptions", "4", "--compare", "--no-notice", steps=40, expected=4)
    assert code == 0, report
    assert [h["moment"] for h in report["handovers"]][-1] == "right before the end"
    assert finding(report, "same result")["verdict"] == "pass"
