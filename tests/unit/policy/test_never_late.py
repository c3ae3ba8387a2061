"""A job that can be in time at its first decision is in time, for any capacity."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlast.policy import OnDemand, decide
from outlast.policy.oracle import least_cost_path
from outlast.policy.replay import Outcome, ReplayJob, ReplayZone, replay

TICKS_S = st.sampled_from([1.0, 7.0, 60.0, 300.0, 600.0, 601.5, 3600.0])


def capacity(length: int) -> st.SearchStrategy[str]:
    """Capacity in stretches: blips, hours, days; and the two that never change."""
    stretch = st.tuples(st.sampled_from("01"), st.sampled_from([1, 1, 2, 3, 8, 30, 100]))
    stretches = st.lists(stretch, min_size=1, max_size=40).map(lambda all_: "".join(c * n for c, n in all_))
    return st.one_of(
        stretches, st.text("01", min_size=1, max_size=length), st.sampled_from(["0" * length, "1" * length])
    )


@st.composite
def jobs(draw: st.DrawFn) -> tuple[ReplayJob, list[ReplayZone], float]:
    tick_s = draw(TICKS_S)
    work_s = tick_s * draw(st.floats(0.1, 80.0))
    start_s = tick_s * draw(st.sampled_from([0.0, 0.12, 0.5, 1.0, 1.2, 2.4, 7.7]))
    # From a deadline that on demand meets to the second to one that leaves all the time in the world.
    spare_s = tick_s * draw(st.one_of(st.just(0.0), st.floats(0.0, 3.0), st.floats(0.0, 100.0)))
    price = draw(st.sampled_from([0.1, 0.32, 0.9, 1.0, 1.5]))
    job = ReplayJob(
        work_s=work_s,
        deadline_s=work_s + start_s + spare_s,
        on_demand=OnDemand(price=1.0, start_s=start_s),
    )
    zones = [
        ReplayZone(
            name=f"zone-{number}",
            ticks=draw(capacity(200)),
            price=price * draw(st.sampled_from([1.0, 1.0, 0.5])),
            start_s=start_s * draw(st.sampled_from([1.0, 1.0, 0.3, 3.0])),
            move_usd=draw(st.sampled_from([0.0, 0.0, 0.05])),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    return job, zones, tick_s


def check(job: ReplayJob, outcome: Outcome, tick_s: float) -> None:
    assert job.deadline_s is not None
    assert not outcome.late, f"ended {outcome.finish_s - job.deadline_s} s too late: {outcome.path}"
    assert abs((outcome.spot_s + outcome.on_demand_s + outcome.waited_s) - len(outcome.path) * tick_s) < 1e-3


@pytest.mark.full
@settings(max_examples=250, deadline=None)
@given(jobs())
def test_a_job_that_can_be_in_time_is_in_time_on_every_trace(drawn: tuple[ReplayJob, list[ReplayZone], float]) -> None:
    job, zones, tick_s = drawn
    check(job, replay(job, zones, decide, tick_s=tick_s), tick_s)


@settings(max_examples=25, deadline=None)
@given(jobs(), st.integers(0, 4))
def test_an_adversary_that_preempts_every_spot_machine_cannot_make_it_late(
    drawn: tuple[ReplayJob, list[ReplayZone], float], mercy: int
) -> None:
    job, zones, tick_s = drawn
    # The adversary offers capacity until it is taken, lets the machine live for a few ticks, and takes it back.
    ticks, lived = "0", 0
    for at in range(150):
        zones = [ReplayZone(name="trap", ticks=ticks, price=0.3, start_s=job.on_demand.start_s)]
        outcome = replay(job, zones, decide, tick_s=tick_s)
        held = outcome.path[at : at + 1] == "s"
        lived = lived + 1 if held else 0
        ticks += "1" if held and lived > mercy else "0"
    check(job, replay(job, zones, decide, tick_s=tick_s), tick_s)


@settings(max_examples=40, deadline=None)
@given(jobs())
def test_nothing_is_cheaper_than_foresight(drawn: tuple[ReplayJob, list[ReplayZone], float]) -> None:
    job, zones, tick_s = drawn
    ours = replay(job, zones, decide, tick_s=tick_s)
    assert least_cost_path(job, zones, tick_s=tick_s) <= ours.cost_usd + 1e-6


def test_repeated_queries_return_the_same() -> None:
    job = ReplayJob(work_s=48 * 3600, deadline_s=60 * 3600, on_demand=OnDemand(price=3.06, start_s=72))
    zones = [ReplayZone(name="a", ticks="0011010001110" * 40, price=0.97, start_s=72)]
    assert replay(job, zones, decide, tick_s=600) == replay(job, zones, decide, tick_s=600)
