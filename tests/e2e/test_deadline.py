"""A run with a deadline on the local cloud under a replayed trace ends in time, with the predicted mix and cost."""

from __future__ import annotations

import json
import re

import pytest

from outlast.clouds.local.zones import read_settings
from outlast.policy import OnDemand, decide
from outlast.policy.replay import ReplayJob, ReplayZone, replay
from tests.support.home import COUNTER, Home

TYPE, ZONE = "local-8-v100", "local1-a"
# 21 seconds of capacity, then none: ticks of ten minutes at 200 times the speed.
TICK_S, UP_TICKS = 3.0, 7
WORK_S, DEADLINE_S = 40.0, 66.0
SPEC = f"""
name = "due"
command = "python counter.py 160 0.25"
[machine]
type = "{TYPE}"
zones = ["{ZONE}"]
[checkpoint]
path = "checkpoints"
[limits]
deadline = "{DEADLINE_S:g}s"
work = "{WORK_S:g}s"
"""


def prepare(home: Home, ticks: str) -> None:
    home.write("counter.py", COUNTER)
    home.write("outlast.toml", SPEC)
    home.write("trace.json", json.dumps({"gap_seconds": 600, "windows": {"0": ticks}}))
    answer = home.outlast(
        "local", "set", ZONE, "--trace", "trace.json", "--window", "0", "--speed-up", "200", "--grace", "1s"
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.soak
def test_the_run_ends_in_time_with_the_predicted_mix_and_cost(home: Home) -> None:
    prepare(home, "0" * UP_TICKS + "1" * 400)
    began = read_settings(str(home.root / "cloud"))[ZONE]["trace"]["started_at"]
    answer = home.outlast("run", "--no-pull", timeout_s=200.0)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    state = home.state()
    assert state.ended_at - state.submitted_at <= DEADLINE_S
    worked = [attempt for attempt in state.attempts if attempt.started_at]
    assert [attempt.spot for attempt in worked] == [True, False], state.attempts

    # The same capacity with one tick per second, from the start of this run.
    first, last = worked
    up_s = began + UP_TICKS * TICK_S - first.placed_at
    start_s = max(attempt.started_at - attempt.placed_at for attempt in worked)
    job = ReplayJob(
        work_s=WORK_S, deadline_s=DEADLINE_S, on_demand=OnDemand(price=last.price_usd_per_hour, start_s=start_s)
    )
    zone = ReplayZone(name=ZONE, ticks="0" * round(up_s), price=first.price_usd_per_hour, start_s=start_s)
    foretold = replay(job, [zone], decide, tick_s=1.0)
    assert re.fullmatch(r"s+\.+d+", foretold.path)
    assert state.cost_usd == pytest.approx(foretold.cost_usd, rel=0.10)


@pytest.mark.full
def test_the_run_moves_to_on_demand_before_a_loss_would_miss_the_deadline(home: Home) -> None:
    home.write("counter.py", COUNTER)
    # Nothing is committed before the notice: soon the loss of the spot machine would cost more than the spare time.
    tight = SPEC.replace("160 0.25", "60 0.5").replace(f"{DEADLINE_S:g}s", "45s").replace(f"{WORK_S:g}s", "30s")
    home.write("outlast.toml", tight.replace('path = "checkpoints"', 'path = "checkpoints"\nevery = "1h"'))
    answer = home.outlast("run", "--no-pull", timeout_s=200.0)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    state = home.state()
    # After the move the work is saved. If time is left, the run may return to spot and finish there or move again:
    # that depends on how fast this computer is, and so does whether the run ends in time (the simulation covers it).
    first, second = state.attempts[:2]
    assert (first.spot, first.moved) == (True, True)
    assert not second.spot
    resumed = [int(count) for count in re.findall(r"resumed at (\d+)", home.log())]
    assert resumed[0] == 0
    assert resumed[1] > 0


def test_plan_prints_the_choice_and_its_reason(home: Home) -> None:
    prepare(home, "0")
    run = home.outlast("submit").stdout.strip()
    home.until(lambda: home.state(run).current is not None, "the run works")
    answer = home.outlast("plan", run)
    assert answer.returncode == 0, answer.stderr
    assert f"stays on spot in {ZONE}" in answer.stdout
    assert "on demand" in answer.stdout
    result = json.loads(home.outlast("plan", run, "--json").stdout)
    assert (result["choice"], result["place"]) == ("spot", ZONE)
    assert {option["name"] for option in result["options"]} == {ZONE, "on demand", "wait"}
    assert home.outlast("cancel", run).returncode == 0
    over = home.outlast("plan", run)
    assert over.returncode == 1
    assert "cancelled" in over.stderr


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("--deadline", "2020-01-01T00:00:00Z"), "--deadline: passed"),
        (("--deadline", "2099-01-01T00:00:00"), "expected a time zone"),
        (("--deadline", "30s"), "--deadline: cannot be met"),
        (("--set", "limits.work=-5"), "[limits] work"),
        (("--deadline", "-1h"), "--deadline: invalid duration"),
    ],
)
def test_a_deadline_that_cannot_be_met_is_refused_and_nothing_is_submitted(
    home: Home, argv: tuple[str, ...], why: str
) -> None:
    home.write("counter.py", COUNTER)
    home.write("outlast.toml", SPEC)
    answer = home.outlast("submit", *argv)
    assert answer.returncode == 2
    assert why in answer.stderr
    assert home.workspace.runs() == []
    assert home.machines() == []
