"""The estimate of machines' mean life."""

from __future__ import annotations

from typing import Any

from outlast.agent.attempt import USUAL_LIFE_S, mean_life_s
from outlast.runs.state import Attempt, RunState


def attempt(**changes: Any) -> Attempt:
    usual: dict[str, Any] = dict.fromkeys(("machine", "cloud", "region", "zone", "type"), "x")
    usual |= {"number": 1, "spot": True, "price_usd_per_hour": 1.0, "on_demand_usd_per_hour": 3.0}
    usual |= {"placed_at": 1.0, "started_at": 100.0}
    return Attempt(**{**usual, **changes})


def test_without_attempts_it_is_the_usual_life() -> None:
    assert mean_life_s(RunState()) == USUAL_LIFE_S


def test_preemptions_shorten_it_and_quiet_hours_lengthen_it() -> None:
    taken = attempt(over_at=700.0, preempted=True)
    assert mean_life_s(RunState(attempts=(taken, taken, taken))) == (USUAL_LIFE_S + 3 * 600.0) / 4
    assert mean_life_s(RunState(attempts=(attempt(over_at=36_100.0),))) == USUAL_LIFE_S + 36_000.0


def test_on_demand_machines_and_attempts_that_never_started_do_not_count() -> None:
    on_demand, never = attempt(spot=False, over_at=700.0), attempt(started_at=0.0, over_at=9.0, preempted=True)
    assert mean_life_s(RunState(attempts=(on_demand, never))) == USUAL_LIFE_S


def test_the_billed_time_takes_precedence() -> None:
    assert (
        mean_life_s(RunState(attempts=(attempt(over_at=5.0, seconds=60.0, preempted=True),))) == (USUAL_LIFE_S + 60) / 2
    )
