"""The time and cost until the end of a run."""

from __future__ import annotations

from outlast.formatting.remaining import remaining
from outlast.runs import events as ev
from outlast.runs.state import RunState, fold


def live(*, resumed: int | None = None) -> RunState:
    placed = ev.Placed(attempt=1, cloud="c", region="r", zone="z", type="t", spot=True, price_usd_per_hour=3.0, at=90.0)
    started = ev.Started(attempt=1, resumed_from="a" if resumed else "", resumed_step=resumed, at=100.0)
    return fold([ev.Submitted(at=80.0), placed, started])


def test_the_rest_takes_as_long_per_step_as_the_work_of_this_attempt() -> None:
    found = remaining(live(), 100, 500, now=1000.0)
    assert found is not None
    assert (found.seconds, found.cost_usd) == (3600.0, 3.0)
    resumed = remaining(live(resumed=50), 100, 500, now=1000.0)
    assert resumed is not None
    assert resumed.seconds == 7200.0


def test_no_estimate_without_a_total_enough_steps_or_a_live_attempt() -> None:
    assert remaining(live(), 100, 0, now=1000.0) is None
    assert remaining(live(), 1, 500, now=1000.0) is None
    assert remaining(live(), 100, 500, now=101.0) is None
    assert remaining(live(), None, 500, now=1000.0) is None
    assert remaining(RunState(), 100, 500, now=1000.0) is None
