"""Limits of a run, a user and a workspace: warnings, stops, and the reserve."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, machine, offer, placed, spec, view, world

from outlast.billing.limits import Limits, begin_of
from outlast.clouds.cloud import LABEL_MACHINE, LABEL_WORKSPACE, Machine
from outlast.records.machines import MachineRecordView
from outlast.runs import events as ev
from outlast.submit.validate import check_cost_limit
from outlast.supervisor.limits import grace_s, report_s, spent_usd
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Budget, Fail, MarkLost, PlaceAttempt, RunView, StopAtLimit, Wait, Warn

STARTED = (placed(1), ev.Started(attempt=1, at=905.0))
# The machine of worlds.machine has run for 95 s at $1 an hour.
SPENT = 95 / 3600
LEAVING = (grace_s("local") + report_s("local")) / 3600
LIMITED = (
    *STARTED,
    ev.LimitReached(limit="cost_usd", why="the budget of $1 is spent", hint="more", grace_s=20, at=990.0),
)


def budget(who: str = "", *, closed_usd: float = 0.0, closed_s: float = 0.0, **limits: object) -> Budget:
    return Budget(
        limits=msgspec.convert({"who": who, "per": "total", **limits}, Limits),
        closed_usd=closed_usd,
        closed_s=closed_s,
    )


def of(who: str, seen: RunView) -> RunView:
    return msgspec.structs.replace(seen, state=msgspec.structs.replace(seen.state, who=who))


def test_the_cost_of_a_running_machine_comes_from_its_cloud() -> None:
    seen = world(view(*STARTED), machines=[machine(1)])
    assert spent_usd(seen, seen.runs[0]) == pytest.approx(SPENT)
    away = world(view(*STARTED), unreachable={"local": "no answer"})
    assert spent_usd(away, away.runs[0]) == pytest.approx(100 / 3600)


def test_the_budget_includes_the_time_to_save() -> None:
    enough = {"cost_usd": (SPENT + LEAVING) * 1.01}
    assert plan(world(view(*STARTED, spec=spec(limits=enough)), machines=[machine(1)])) == ()
    (step,) = plan(
        world(view(*STARTED, spec=spec(limits={"cost_usd": (SPENT + LEAVING) * 0.99})), machines=[machine(1)])
    )
    assert isinstance(step, StopAtLimit)
    assert step.limit == "cost_usd"


def test_a_near_limit_is_reported_once_and_stops_nothing() -> None:
    limits = {"deadline": "2m"}  # 110 s have passed
    (step,) = plan(world(view(*STARTED, spec=spec(limits=limits)), machines=[machine(1)]))
    assert isinstance(step, Warn)
    assert step.why == "1m 50s of the deadline of 2m 00s have passed"
    warned = ev.LimitNear(limit="deadline", why=step.why)
    assert plan(world(view(*STARTED, warned, spec=spec(limits=limits)), machines=[machine(1)])) == ()
    # A run that waits is placed all the same.
    steps = plan(world(view(spec=spec(limits=limits))))
    assert [type(step) for step in steps] == [Warn, PlaceAttempt]


def test_an_active_attempt_gets_its_grace_and_then_the_run_ends() -> None:
    assert plan(world(view(*LIMITED, limited_s=10.0), machines=[machine(1)])) == ()
    (late,) = plan(world(view(*LIMITED, limited_s=26.0), machines=[machine(1)]))
    assert isinstance(late, Fail)
    assert late.why == "the budget of $1 is spent"
    left = ev.Stopped(attempt=1, outcome="stopped", at=995.0)
    steps = plan(world(view(*LIMITED, left, limited_s=3.0), machines=[machine(1)]))
    assert isinstance(steps[0], Fail)


def test_a_machine_that_vanishes_while_it_saves_is_lost_and_has_no_successor() -> None:
    (step,) = plan(world(view(*LIMITED, limited_s=3.0)))
    assert isinstance(step, MarkLost)
    lost = ev.Lost(attempt=1, why="its machine vanished", at=996.0)
    steps = plan(world(view(*LIMITED, lost, limited_s=3.0)))
    assert isinstance(steps[0], Fail)
    assert not any(isinstance(step, PlaceAttempt) for step in steps)


def test_an_attempt_that_boots_at_a_limit_has_nothing_to_save() -> None:
    booting = view(placed(1), ev.LimitReached(limit="deadline", why="late", grace_s=20), limited_s=0.1)
    steps = plan(world(booting, machines=[machine(1)]))
    assert isinstance(steps[0], Fail)


def test_a_user_budget_counts_ended_runs_live_runs_and_manual_machines() -> None:
    mine = of("ann", view(*STARTED))
    for closed, reached in ((0.5, False), (1.0 - SPENT - LEAVING + 1e-6, True)):
        steps = plan(world(mine, machines=[machine(1)], budgets=(budget("ann", cost_usd=1.0, closed_usd=closed),)))
        assert any(isinstance(step, StopAtLimit) for step in steps) is reached
    machine_record = hand_machine()
    machine_records = {machine_record.name: MachineRecordView(id="h", phase="ready", who="ann")}
    steps = plan(
        world(
            mine,
            machines=[machine(1), machine_record],
            machine_records=machine_records,
            budgets=(budget("ann", cost_usd=40.0),),
        )
    )
    assert [step.limit for step in steps if isinstance(step, StopAtLimit)] == ["user cost_usd"]


def test_a_limit_of_one_user_does_not_apply_to_another() -> None:
    bob = of("bob", view(*STARTED))
    assert plan(world(bob, machines=[machine(1)], budgets=(budget("ann", cost_usd=0.001),))) == ()
    (step,) = plan(world(bob, machines=[machine(1)], budgets=(budget(cost_usd=0.001),)))
    assert isinstance(step, StopAtLimit)
    assert "the workspace" in step.why


def test_machine_hours_of_a_workspace_are_a_limit_too() -> None:
    (step,) = plan(world(view(*STARTED), machines=[machine(1)], budgets=(budget(max_hours=2.0, closed_s=7200.0),)))
    assert isinstance(step, StopAtLimit)
    assert "2 machine hours" in step.why


def test_no_more_machines_than_allowed_are_placed() -> None:
    waiting = [msgspec.structs.replace(view(), run=f"run-{n}") for n in (1, 2, 3)]
    steps = plan(world(*waiting, budgets=(budget(max_machines=2),)))
    assert [type(step) for step in steps] == [PlaceAttempt, PlaceAttempt, Wait]
    steps = plan(world(view(*STARTED), waiting[1], machines=[machine(1)], budgets=(budget(max_machines=1),)))
    assert [type(step) for step in steps] == [Wait]
    assert "1 machine at a time" in steps[0].why  # type: ignore[union-attr]


def test_a_noticed_machine_does_not_block_its_successor() -> None:
    noticed = (*STARTED, ev.Noticed(attempt=1, why="preempted", grace_s=30, at=990.0))
    (step,) = plan(world(view(*noticed), machines=[machine(1)], budgets=(budget(max_machines=1),)))
    assert isinstance(step, PlaceAttempt)


def test_only_spend_since_the_begin_of_the_period_counts() -> None:
    monthly = Budget(limits=Limits(cost_usd=SPENT * 0.8 + LEAVING))
    for since, reached in ((950.0, False), (0.0, True)):
        budgets = (msgspec.structs.replace(monthly, since=since),)
        steps = plan(world(view(*STARTED), machines=[machine(1)], budgets=budgets))
        assert any(isinstance(step, StopAtLimit) for step in steps) is reached


def test_a_period_begins_at_midnight_of_utc() -> None:
    noon = 1_700_000_000.0  # 2023-11-14 22:13:20
    assert begin_of("day", noon) == 1_699_920_000.0
    assert begin_of("month", noon) == 1_698_796_800.0
    assert begin_of("total", noon) == 0.0


def hand_machine() -> Machine:
    return Machine(
        name="desk",
        cloud="local",
        zone="here-a",
        type="small",
        spot=False,
        status="running",
        labels={LABEL_WORKSPACE: "ws", LABEL_MACHINE: "h"},
        created_at=NOW - 900.0,
        seen_at=NOW,
        price_usd_per_hour=160.0,
    )


def test_a_budget_below_one_hour_is_refused_with_the_cheapest_machine() -> None:
    (problem,) = check_cost_limit(
        spec(limits={"cost_usd": 0.99}), [offer("here-b", price=1.1), offer("here-a", price=1.0)]
    )
    assert problem.startswith("[limits] cost_usd: $0.99 pays for less than an hour")
    assert "`small` in here-a: $1" in problem
    assert check_cost_limit(spec(limits={"cost_usd": 1.0}), [offer("here-a", price=1.0)]) == []
    assert check_cost_limit(spec(), [offer("here-a", price=0.0)]) == []


def test_a_budget_without_a_known_price_is_refused() -> None:
    (problem,) = check_cost_limit(spec(limits={"cost_usd": 5}), [offer("here-a", price=0.0), offer("here-b")])
    assert "the price of `small` on local is unknown" in problem
