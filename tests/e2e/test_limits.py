"""Limits on machines of the local cloud: runs get a warning, save and stop, and do not count as failed."""

from __future__ import annotations

import pytest

from outlast.billing.limits import Limits, write_limits
from outlast.code.bundle import pack, store
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns
from outlast.spec.parse import parse
from outlast.submit.prepare import prepare
from outlast.submit.write import write_run
from tests.support.home import COUNTER, Home

# Saves only on SIGTERM: a commit after the limit was caused by the limit.
PATIENT = """
import os, signal, sys, time
path = os.path.join(os.environ["OUTLAST_CHECKPOINT_DIR"], "state")
def leave(*_):
    open(path, "w").write("saved at the limit")
    print("notice:", open(os.environ["OUTLAST_NOTICE_FILE"]).read(), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("count 1", flush=True)
while True:
    time.sleep(0.05)
"""


def kinds(home: Home) -> list[str]:
    story = home.workspace.story(home.only_run())
    story.refresh()
    return [type(event).__name__ for event in story.events]


def test_at_a_limit_the_program_saves_and_the_run_ends_as_stopped(home: Home) -> None:
    home.write("train.py", PATIENT)
    answer = home.outlast("run", "--no-pull", "--set", "limits.max_hours=0.001", "--", "python", "train.py")
    assert answer.returncode == 9, answer.stderr
    assert "limit: it has run for" in answer.stderr
    assert "20 s to save and stop" in answer.stderr
    assert '"why":"it has run for' in answer.stdout
    state = home.state()
    assert state.ending == "failed"
    assert state.limit is not None
    assert state.limit.name == "max_hours"
    result = kinds(home)
    assert result.index("LimitReached") < result.index("Saved") < result.index("Stopped") < result.index("Failed")
    assert "Noticed" not in result
    assert [a.outcome for a in state.attempts] == ["stopped"]
    assert not home.machines()
    (row,) = home.ps()
    assert (row["state"], row["limit"]) == ("stopped", "max_hours")


@pytest.mark.full
def test_a_warning_precedes_a_limit(home: Home) -> None:
    home.write("train.py", COUNTER)
    answer = home.outlast(
        "run", "--no-pull", "--set", "limits.max_hours=0.002", "--", "python", "train.py", "1000", "0.05"
    )
    assert answer.returncode == 9, answer.stderr
    warned = answer.stderr.index("warning: it has run for")
    assert warned < answer.stderr.index("limit: it has run for")


@pytest.mark.soak
def test_a_program_that_ignores_the_signal_is_killed_after_the_grace(home: Home) -> None:
    home.write("train.py", "import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(600)\n")
    answer = home.outlast(
        "run", "--no-pull", "--set", "limits.max_hours=0.0005", "--", "python", "train.py", timeout_s=90.0
    )
    assert answer.returncode == 9, answer.stderr
    assert not home.machines()


@pytest.mark.full
def test_a_program_that_ends_within_the_grace_is_finished(home: Home) -> None:
    program = PATIENT.replace("sys.exit(0)", 'open(os.environ["OUTLAST_DONE_FILE"], "w").close(); sys.exit(0)')
    home.write("train.py", program)
    answer = home.outlast("run", "--no-pull", "--set", "limits.max_hours=0.0005", "--", "python", "train.py")
    assert answer.returncode == 0, answer.stderr
    assert home.state().ending == "finished"


@pytest.mark.soak
def test_a_spent_budget_of_the_workspace_stops_live_runs(home: Home) -> None:
    """The limit is set while it runs: a budget of less than an hour would be refused at submission."""
    home.write("train.py", PATIENT)
    process = home.start("run", "--no-pull", "--", "python", "train.py")
    home.until_counted(1)
    write_limits(home.workspace.bucket, Limits(cost_usd=1e-6, per="total"))
    home.until(lambda: home.state().ending, "the end of the run", within_s=60.0)
    assert process.wait(timeout=600) == 9
    state = home.state()
    assert state.limit is not None
    assert state.limit.name == "workspace cost_usd"
    assert "the budget of the workspace of $1e-06 is spent" in state.why
    assert state.checkpoints
    assert not home.machines()
    # The excess is at most the cost of one machine over its life.
    released = [e for e in home.workspace.story(home.only_run()).refresh().attempts if e.released]
    assert len(released) == 1
    ended, _ = EndedRuns(home.workspace).newest()
    assert [record.state.cost_usd for record in ended] == [released[0].cost_usd]


@pytest.mark.full
def test_a_run_saves_at_its_own_budget_and_exceeds_it_only_slightly(home: Home) -> None:
    """The run skips the check that refuses such a budget: an hour is too long for a test."""
    home.write("train.py", PATIENT)
    bundle = pack(str(home.project))
    budget = 0.00015  # 48 s of the cheapest machine; saving and stopping takes at most 25 s of it
    spec = parse({"name": "run", "command": ["python", "train.py"], "limits": {"cost_usd": budget}})
    clouds = {"local": home.cloud}
    code = store(home.workspace.bucket, bundle)
    prepared = prepare(home.workspace, clouds, spec, code, environment=home.environment)
    request = write_run(home.workspace, clouds, prepared)
    home.start("supervise", "--until-idle")
    home.until(lambda: home.state(request.run).closed, "the end of the run", within_s=90.0)
    state = home.state(request.run)
    assert (state.ending, state.limit.name if state.limit else "") == ("failed", "cost_usd")
    assert state.checkpoints
    assert [attempt.outcome for attempt in state.attempts] == ["stopped"]
    # One machine at its price, for the time until a supervisor notices.
    assert 0 < state.cost_usd <= budget + 10.0 / 3600 * state.attempts[0].price_usd_per_hour


@pytest.mark.full
def test_no_more_machines_than_allowed_run_at_a_time(home: Home) -> None:
    write_limits(home.workspace.bucket, Limits(max_machines=1))
    first, second = home.run("sleep", "2"), home.run("sleep", "1")
    home.start("supervise", "--until-idle")
    home.until(lambda: home.state(first).ending and home.state(second).ending, "both ends", within_s=60.0)
    (waited,) = [run for run in (first, second) if _held(home, run)]
    assert "may have 1 machine at a time" in _held(home, waited)[0]
    begun = {run: home.state(run).attempts[0].placed_at for run in (first, second)}
    other = first if waited == second else second
    assert begun[waited] >= home.state(other).attempts[0].over_at


def _held(home: Home, run: str) -> list[str]:
    story = home.workspace.story(run)
    story.refresh()
    return [event.why for event in story.events if isinstance(event, ev.Waiting)]
