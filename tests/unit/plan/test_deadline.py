"""Runs with a deadline and a known amount of work: where they wait, where they go, and when they move."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, machine, offer, placed, spec, view, world

from outlast.billing.limits import Limits
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import fold, why_illegal
from outlast.spec.spec import Spec
from outlast.supervisor.deadline import WAITS, done_s, gap_s, policy_view, work_left_s
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Budget, Launch, MarkLost, Move, PlaceAttempt, RunView, Wait

# Submitted at 890, and it is 1000 now.
HOUR = 3600.0


def due(deadline_s: float, *, work_s: float = HOUR, **table: Any) -> Spec:
    return spec(limits={"deadline": deadline_s, "work": work_s}, checkpoint={"path": "c"}, **table)


def run(*events: Event, deadline_s: float, work_s: float = HOUR) -> RunView:
    return view(*events, spec=due(deadline_s, work_s=work_s))


def refused(attempt: int, zone: str) -> tuple[Event, Event]:
    key = f"local/{zone}/small/spot"
    return placed(attempt, zone), ev.LaunchRefused(attempt=attempt, why="none", until=NOW + 60, offers=(key,), at=950.0)


NO_SPOT = [event for number, zone in enumerate(("here-a", "here-b", "there-a"), 1) for event in refused(number, zone)]


def test_takes_the_cheapest_spot_while_there_is_time() -> None:
    (step,) = plan(world(run(deadline_s=3 * HOUR)))
    assert isinstance(step, PlaceAttempt)
    assert (step.offer.zone, step.offer.spot) == ("here-a", True)


def test_waits_without_spot_while_there_is_time_to_spare_with_one_event() -> None:
    (step,) = plan(world(run(*NO_SPOT, deadline_s=3 * HOUR)))
    assert isinstance(step, Wait)
    assert step.why == WAITS
    assert plan(world(run(*NO_SPOT, ev.Waiting(why=WAITS), deadline_s=3 * HOUR))) == ()


def test_goes_on_demand_when_waiting_would_use_up_the_reserve() -> None:
    (step,) = plan(world(run(*NO_SPOT, deadline_s=HOUR + 300)))
    assert isinstance(step, PlaceAttempt)
    assert (step.offer.spot, step.offer.price_usd_per_hour) == (False, 4.0)


def test_a_deadline_without_an_amount_of_work_decides_nothing() -> None:
    seen = view(*NO_SPOT, spec=spec(limits={"deadline": HOUR}))
    (step,) = plan(world(seen))
    assert isinstance(step, Wait)
    assert step.why != WAITS


def on_spot(saved_at: float = 990.0) -> list[Event]:
    return [placed(1), ev.Started(attempt=1, at=902.0), ev.Saved(attempt=1, checkpoint="c1", step=1, at=saved_at)]


def test_stays_on_spot_while_its_loss_cannot_miss_the_deadline() -> None:
    assert plan(world(run(*on_spot(), deadline_s=HOUR + 120), machines=[machine(1)])) == ()


def test_leaves_spot_when_its_loss_could_miss_the_deadline() -> None:
    (step,) = plan(world(run(*on_spot(), deadline_s=HOUR + 15), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert (step.attempt, step.ahead, step.offer.spot) == (2, True, False)


def ahead(attempt: int = 2, zone: str = "here-a", *, spot: bool = False) -> ev.Placed:
    return msgspec.structs.replace(placed(attempt, zone, at=995.0, spot=spot), ahead=True)


def test_a_working_machine_is_left_only_once_the_better_one_runs() -> None:
    seen = run(*on_spot(), ahead(), deadline_s=HOUR + 15)
    (step,) = plan(world(seen, machines=[machine(1)]))
    assert isinstance(step, Launch)
    assert step.attempt == 2
    assert plan(world(seen, machines=[machine(1), machine(2, "pending")])) == ()
    (step,) = plan(world(seen, machines=[machine(1), machine(2)]))
    assert isinstance(step, Move)
    assert (step.attempt, step.why) == (1, "moves to on demand, to be in time")


def test_a_refused_move_costs_nothing_and_is_repeated_after_ten_minutes() -> None:
    refusal = ev.LaunchRefused(attempt=2, why="none", until=NOW - 1, offers=("local/here-a/small/spot",), at=NOW - 3)
    one = view(*on_demand(895.0), ahead(spot=True), refusal, spec=due(3 * HOUR), spot_offers=(offer("here-a"),))
    assert one.state.last is not None
    assert (one.state.last.number, one.state.last.phase) == (1, "started")
    seen = world(one, machines=[machine(1)])
    assert plan(seen) == ()
    (step,) = plan(msgspec.structs.replace(seen, now=NOW + 600))
    assert isinstance(step, PlaceAttempt)
    assert (step.attempt, step.ahead, step.offer.spot) == (3, True, True)


def test_the_loss_of_the_working_machine_makes_the_other_one_its_successor() -> None:
    lost = ev.Lost(attempt=1, why="gone", preempted=True, at=NOW)
    state = run(*on_spot(), ahead(), lost, deadline_s=3 * HOUR).state
    assert state.last is not None
    assert (state.last.number, state.ahead) == (2, None)


def test_a_machine_that_is_ahead_cannot_start_while_the_other_one_works() -> None:
    events = [ev.Submitted(at=890.0), *on_spot(), ahead()]
    assert "works" in why_illegal(fold(events), ev.Started(attempt=2))
    assert (
        why_illegal(fold([*events, ev.Noticed(attempt=1, why="", grace_s=9.0, moves=True)]), ev.Started(attempt=2))
        == ""
    )
    assert "attempt 1 is started" in why_illegal(fold(events[:-1]), placed(2))


def test_a_spot_machine_that_boots_too_long_is_given_up_for_on_demand() -> None:
    (step,) = plan(world(run(placed(1), deadline_s=HOUR + 100), machines=[machine(1)]))
    assert isinstance(step, MarkLost)
    assert "to be in time" in step.why
    assert plan(world(run(placed(1), deadline_s=HOUR + 600), machines=[machine(1)])) == ()


def test_with_one_machine_allowed_the_old_one_is_left_first() -> None:
    budget = Budget(limits=Limits(max_machines=1))
    seen = run(*on_spot(), deadline_s=HOUR + 15)
    (step,) = plan(world(seen, machines=[machine(1)], budgets=(budget,)))
    assert isinstance(step, Move)


def test_work_that_was_not_saved_counts_as_lost_with_the_machine() -> None:
    (step,) = plan(world(run(*on_spot(saved_at=905.0), deadline_s=HOUR + 120 - 80), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert step.ahead


def test_a_moving_run_gets_a_successor_at_once() -> None:
    moved = ev.Noticed(attempt=1, why="moves to on demand, to be in time", grace_s=20.0, moves=True, at=NOW)
    (step,) = plan(world(run(*on_spot(), moved, deadline_s=HOUR + 15), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert (step.attempt, step.offer.spot) == (2, False)


def on_demand(started_at: float, attempt: int = 1) -> list[Event]:
    return [
        placed(attempt, at=started_at - 2, spot=False),
        ev.Started(attempt=attempt, at=started_at),
        ev.Saved(attempt=attempt, checkpoint="c1", step=1, at=995.0),
    ]


def test_leaves_on_demand_for_spot_that_pays_but_not_at_once() -> None:
    (step,) = plan(world(run(*on_demand(895.0), deadline_s=3 * HOUR), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert (step.ahead, step.offer.zone, step.offer.spot) == (True, "here-a", True)
    assert plan(world(run(*on_demand(999.0), deadline_s=3 * HOUR), machines=[machine(1)])) == ()


def test_does_not_leave_on_demand_for_a_zone_that_recently_had_no_capacity() -> None:
    one = view(
        *refused(1, "here-a"),
        *on_demand(895.0, attempt=2),
        spec=due(9 * HOUR, work_s=3 * HOUR),
        spot_offers=(offer("here-a"),),
    )
    seen = world(one, machines=[machine(2)], cooldowns={"local/here-a/small/spot": NOW - 1})
    assert plan(seen) == ()
    later = msgspec.structs.replace(seen, now=NOW + 1.2 * HOUR)
    assert [type(step) for step in plan(later)] == [PlaceAttempt]


def test_does_not_move_when_it_is_nearly_done() -> None:
    assert plan(world(run(*on_spot(), deadline_s=150.0, work_s=99.0), machines=[machine(1)])) == ()


def test_the_longest_measured_start_guards_the_deadline() -> None:
    lost: list[Event] = [ev.Stopped(attempt=1, outcome="preempted", at=950.0)]
    again: list[Event] = [placed(2, at=951.0), ev.Started(attempt=2, at=991.0)]
    seen = run(*on_spot(saved_at=940.0), *lost, *again, deadline_s=3 * HOUR)
    policy = policy_view(world(seen), seen)
    assert policy is not None
    assert policy.on_demand.start_s == 40.0
    assert policy.spots[0].start_s == pytest.approx(21.0)
    assert policy.held == "here-a"


def test_only_saved_work_survives_a_loss() -> None:
    lost: list[Event] = [ev.Stopped(attempt=1, outcome="preempted", at=950.0)]
    assert done_s(run(*on_spot(saved_at=940.0), *lost, deadline_s=HOUR).state, NOW) == (38.0, 0.0)
    assert done_s(run(*on_spot(saved_at=940.0), deadline_s=HOUR).state, NOW) == (98.0, 60.0)


def test_a_deadline_may_be_a_date() -> None:
    moment = msgspec.structs.replace(due(HOUR).limits, deadline_s=0.0, deadline_at=NOW + HOUR + 200)
    seen = view(*NO_SPOT, spec=msgspec.structs.replace(due(HOUR), limits=moment))
    (step,) = plan(world(seen))
    assert isinstance(step, PlaceAttempt)
    assert not step.offer.spot


def test_measured_steps_take_precedence_over_the_estimate_of_work() -> None:
    saved = [ev.Saved(attempt=1, checkpoint=f"c{step}", step=step, at=910.0 + step) for step in (10, 30, 50)]
    state = view(placed(1), ev.Started(attempt=1, at=902.0), *saved).state
    given = spec(limits={"deadline": HOUR, "work": 5 * HOUR, "steps": 250}, checkpoint={"path": "c"})
    # 200 steps at one a second, and the 40 s since the last checkpoint are done.
    assert work_left_s(given, state, NOW) == pytest.approx(160.0)


def test_without_work_the_policy_waits_for_the_first_steps() -> None:
    given = spec(limits={"deadline": HOUR, "steps": 250}, checkpoint={"path": "c"})
    assert work_left_s(given, view().state, NOW) is None
    (step,) = plan(world(view(spec=given)))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.spot


def test_without_a_deadline_the_cheapest_progress_is_chosen_not_the_cheapest_hour() -> None:
    """Machines of `here-a` take long to start and die early: a higher price per hour is cheaper in the end."""
    deaths: list[Event] = []
    for number in range(1, 6):
        at = 890.0 - 5000.0 * (6 - number)
        deaths += [
            placed(number, "here-a", at=at),
            ev.Started(attempt=number, at=at + 600.0),
            ev.Saved(attempt=number, checkpoint=f"c{number}", at=at + 700.0),
            ev.Lost(attempt=number, why="gone", at=at + 800.0),
        ]
    (step, *_) = [step for step in plan(world(view(*deaths))) if isinstance(step, PlaceAttempt)]
    assert step.offer.zone == "here-b"


def test_does_not_go_back_to_spot_if_it_would_have_as_much_to_lose_as_before() -> None:
    left: list[Event] = [
        placed(1, at=200.0),
        ev.Started(attempt=1, at=202.0),
        ev.Noticed(attempt=1, why="moves to on demand, to be in time", grace_s=20.0, moves=True, at=700.0),
        ev.Saved(attempt=1, checkpoint="c0", step=1, at=701.0),
        ev.Stopped(attempt=1, outcome="preempted", at=702.0),
    ]
    seen = run(*left, *on_demand(705.0, attempt=2), deadline_s=HOUR - 300)
    assert gap_s(seen.state) == 498.0
    assert not any(isinstance(step, PlaceAttempt | Move) for step in plan(world(seen, machines=[machine(2)])))
    roomy = run(*left, *on_demand(705.0, attempt=2), deadline_s=HOUR + 300)
    assert any(isinstance(step, PlaceAttempt) for step in plan(world(roomy, machines=[machine(2)])))


def test_the_policy_includes_the_cost_of_moving_data_between_clouds() -> None:
    saved = (
        placed(1),
        ev.Started(attempt=1, at=905.0),
        ev.Saved(attempt=1, checkpoint="c1", bytes=50_000_000_000, at=940.0),
    )
    at_amazon = msgspec.structs.replace(offer("us-east-1a"), cloud="aws")
    seen = msgspec.structs.replace(
        run(*saved, ev.Lost(attempt=1, why="gone", at=950.0), deadline_s=9 * HOUR), spot_offers=(at_amazon,)
    )
    for url, usd in [("gs://bucket/ws", 6.0), ("s3://bucket/ws", 0.0), ("/a/folder", 0.0)]:
        policy = policy_view(world(seen, workspace_url=url), seen)
        assert policy is not None
        assert policy.spots[0].move_usd == pytest.approx(usd)
