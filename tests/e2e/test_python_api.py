"""`outlast.submit`, `Run` and `Space` in real processes: killed submitters, errors, results."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import outlast
from outlast.api.space import Space
from tests.support.home import COUNTER, UNHURRIED, Home

TRAIN = """
import json, os, sys
for step in range(3):
    with open(os.environ["OUTLAST_METRICS_FILE"], "a") as file:
        file.write(json.dumps({"step": step, "loss": float(sys.argv[1]) / (step + 1)}) + "\\n")
with open(os.path.join(os.environ["OUTLAST_OUTPUT_DIR"], "scores.json"), "w") as file:
    file.write(json.dumps({"lr": sys.argv[1]}))
print("lr", sys.argv[1], flush=True)
"""
SUBMIT_TEN = """
import outlast, time
for number in range(10):
    run = outlast.submit(f"python3 train.py {number}", name="ten")
    print(run.name, flush=True)
print("submitted", flush=True)
time.sleep(3600)
"""
COLLECT = """
import json, sys, outlast
space = outlast.workspace()
print(json.dumps({name: [space.run(name).wait(), json.loads(space.run(name).outputs()["scores.json"].read_text())]
                  for name in sys.argv[1:]}))
"""
INTERRUPTED = """
import outlast
run = outlast.submit("python3 count.py 3 0.01", name="slow", checkpoint="saved")
print(run.name, flush=True)
try:
    run.wait()
except KeyboardInterrupt as stopped:
    print(type(stopped).__name__, stopped, flush=True)
"""


@pytest.fixture
def space(home: Home, monkeypatch: pytest.MonkeyPatch) -> Space:
    for name, value in home.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home.project)
    home.write("train.py", TRAIN)
    home.write("count.py", UNHURRIED)
    return outlast.workspace()


def script(home: Home, name: str, text: str, *argv: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, str(home.write(name, text)), *argv],
        cwd=home.project,
        env=home.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    home._started.append(process)
    return process


def test_a_run_is_submitted_followed_and_read(home: Home, space: Space) -> None:
    home.write("outlast.toml", 'command = "python3 train.py {lr}"\n[params]\nlr = 1\n')
    run = space.submit(file="outlast.toml", params={"lr": 0.5}, name="lr")
    assert list(run.logs(follow=True)) == ["lr 0.5"]
    assert run.wait() == run.status == "finished"
    assert run == space.run("lr") == space.run()
    assert run.exit_code in (0, None)
    assert [attempt.number for attempt in run.attempts] == [1]
    assert run.cost_usd > 0
    assert run.metrics("loss")["loss"] == [0.5, 0.25, 0.5 / 3]
    assert json.loads(run.outputs()["scores.json"].read_text()) == {"lr": "0.5"}
    with pytest.raises(KeyError, match=r"lr-1 has no output `x`; it has: scores.json"):
        run.outputs()["x"]
    assert run.pull("results") == 1
    assert (home.project / "results" / "scores.json").exists()
    assert list(run.logs()) == ["lr 0.5"]
    bundle = run._repr_mimebundle_()
    assert "finished" in bundle["text/plain"]
    assert "<b>lr-1</b>" in bundle["text/html"]
    again = run.rerun(params={"lr": 0.25})
    assert again.wait() == "finished"
    compared = space.compare(run, again)
    assert [one.metrics["loss"] for one in compared.runs] == [0.5 / 3, 0.25 / 3]
    assert compared.code["lr-2"].same
    assert space.cost(since="1d").by_run.keys() == {"lr-1", "lr-2"}
    assert [one.name for one in space.runs(state="finished", user="me")] == ["lr-1", "lr-2"]
    home.until(lambda: not home.machines(), "deletion of the machines")


def test_a_failed_a_cancelled_and_a_slow_run_raise_their_exceptions(home: Home, space: Space) -> None:
    failed = space.submit("echo broken; exit 3", name="bad", limits={"crashes": 1})
    with pytest.raises(outlast.RunFailed, match="bad-1 failed"):
        failed.wait()
    assert failed.exit_code == 3
    slow = space.submit("python3 count.py 1 0.05", name="slow", checkpoint="saved")
    with pytest.raises(outlast.WaitTimeout, match=r"slow-1 has not ended within 0\.1 s"):
        slow.wait(timeout=0.1)
    assert slow.preempt().number == 1
    assert slow.wait() == "finished"
    assert len(slow.attempts) >= 2
    other = space.submit("sleep 3600", name="other")
    assert other.cancel()
    with pytest.raises(outlast.RunCancelled):
        other.wait()
    assert not other.cancel()


def test_a_second_process_collects_ten_runs_of_a_killed_one(home: Home, space: Space) -> None:
    first = script(home, "first.py", SUBMIT_TEN)
    assert first.stdout is not None
    names = [line.strip() for line in iter(first.stdout.readline, "submitted\n")]
    first.kill()
    assert names == [f"ten-{number}" for number in range(1, 11)]
    second = script(home, "second.py", COLLECT, *names)
    output, _ = second.communicate(timeout=600)
    assert json.loads(output) == {f"ten-{n}": ["finished", {"lr": str(n - 1)}] for n in range(1, 11)}


def test_an_interrupted_wait_detaches_and_the_run_goes_on(home: Home, space: Space) -> None:
    waiting = script(home, "wait.py", INTERRUPTED)
    assert waiting.stdout is not None
    name = waiting.stdout.readline().strip()
    home.until(lambda: "count 2\n" in home.log(name), "the run")
    waiting.send_signal(signal.SIGINT)
    output, _ = waiting.communicate(timeout=600)
    assert output.startswith(f"Interrupted detached; `{name}` continues")
    run = space.run(name)
    assert not run.ended
    run.preempt()
    assert run.wait() == "finished"


def test_an_unknown_name_or_workspace_has_its_exception(home: Home, space: Space, tmp_path: Path) -> None:
    with pytest.raises(outlast.NoSuchRun):
        space.run("nothing")
    with pytest.raises(outlast.UsageError, match="no such file"):
        space.submit(file="absent.toml")
    with pytest.raises(outlast.SpecError, match="command: missing"):
        space.submit()
    with pytest.raises(outlast.UsageError, match="since never"):
        space.cost(since="never")
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(outlast.WorkspaceError):
        outlast.submit("true", workspace=blocked / "workspace")
    assert math.isclose(space.cost().total_usd, 0.0)


@pytest.mark.full
def test_a_drill_from_a_program_returns_its_verdict(home: Home, space: Space) -> None:
    """A training that resumes passes; one that loses everything does not."""
    home.write("count.py", COUNTER)
    saving = outlast.drill("python3 count.py 30 0.1", checkpoint="saved", preemptions=1, grace="10s", workspace=space)
    assert saving.report.passed, saving.report.findings
    assert saving.drilled.state.ending == "finished"
    lost = outlast.drill("exit 4", preemptions=1, wait="5s", limits={"crashes": 1}, workspace=space)
    assert not lost.report.passed
