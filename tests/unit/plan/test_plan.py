"""Rows of world → steps, without a cloud, a clock or a disk."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, described, machine, offer, placed, spec, view, world

from outlast.runs import events as ev
from outlast.supervisor.plan import plan
from outlast.supervisor.world import (
    Fail,
    Finalize,
    Launch,
    MarkLost,
    PlaceAttempt,
    Reap,
    Release,
    StopAtLimit,
    Wait,
)

STARTED = (placed(1), ev.Started(attempt=1, at=905.0))
NOTICED = (*STARTED, ev.Noticed(attempt=1, why="preempted", grace_s=30, at=990.0))


def test_a_new_run_is_placed_on_the_cheapest_offer() -> None:
    (step,) = plan(world(view()))
    assert isinstance(step, PlaceAttempt)
    assert (step.attempt, step.offer.zone) == (1, "here-a")


def test_the_intent_is_followed_by_the_launch() -> None:
    (step,) = plan(world(view(placed(1))))
    assert isinstance(step, Launch)
    assert step.offer.zone == "here-a"


@pytest.mark.parametrize("status", ["pending", "running"])
def test_a_machine_that_boots_is_left_alone(status: str) -> None:
    assert plan(world(view(placed(1)), machines=[machine(1, status)])) == ()


def test_a_world_at_rest_plans_nothing() -> None:
    assert plan(world(view(*STARTED), machines=[machine(1)])) == ()


@pytest.mark.parametrize(
    ("machines", "silent_s", "why", "preempted"),
    [
        ([], 0.0, "its machine vanished", True),
        ([machine(1, "stopped", why="preempted")], 0.0, "its machine is stopped: preempted", True),
        ([machine(1, "stopped", why="powered off by itself")], 0.0, "powered off by itself", False),
        ([machine(1, "broken", why="its shim was killed")], 0.0, "its shim was killed", False),
        ([machine(1)], 16.0, "no heartbeat from its machine for 16 s", False),
    ],
)
def test_an_attempt_is_given_up(machines: list, silent_s: float, why: str, preempted: bool) -> None:
    step = plan(world(view(*STARTED, silent_s=silent_s), machines=machines))[0]
    assert isinstance(step, MarkLost)
    assert why in step.why
    assert step.preempted == preempted


def test_a_machine_that_is_stopping_is_still_saving() -> None:
    assert not any(isinstance(s, MarkLost) for s in plan(world(view(*NOTICED), machines=[machine(1, "stopping")])))


def test_a_machine_that_never_starts_is_given_up() -> None:
    (step,) = plan(world(view(placed(1), silent_s=61.0), machines=[machine(1)]))
    assert isinstance(step, MarkLost)
    assert "has not started" in step.why


def test_a_machine_that_was_launched_late_gets_its_full_boot_time() -> None:
    """The cloud did not answer for minutes after the attempt was placed."""
    young = msgspec.structs.replace(machine(1), created_at=985.0)
    assert plan(world(view(placed(1), silent_s=200.0), machines=[young])) == ()


def test_a_machine_that_was_seen_and_vanished_while_it_booted_is_lost_and_not_launched_again() -> None:
    # EC2 forgets the tags of terminated instances; Google deletes machines of runs that it preempts.
    (step,) = plan(world(view(placed(1)), seen=frozenset({"run-1-a1"})))
    assert step == MarkLost(run="run-1", attempt=1, why="its machine vanished", preempted=True)


def test_the_successor_of_a_noticed_attempt_is_placed_at_once_and_elsewhere() -> None:
    (step,) = plan(world(view(*NOTICED), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert (step.attempt, step.offer.zone) == (2, "here-b")


def test_a_run_returns_to_the_zone_that_preempted_it_without_an_alternative() -> None:
    (step,) = plan(world(view(*NOTICED, spot_offers=(offer("here-a"),)), machines=[machine(1)]))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.zone == "here-a"


def test_at_most_two_attempts_are_active() -> None:
    events = (*NOTICED, placed(2, "here-b"), ev.Noticed(attempt=2, why="", grace_s=30, at=995.0))
    assert plan(world(view(*events), machines=[machine(1), machine(2)])) == ()


def test_a_preempted_attempt_is_released_and_its_successor_placed() -> None:
    events = (*NOTICED, ev.Stopped(attempt=1, outcome="preempted", at=995.0))
    steps = plan(world(view(*events), machines=[machine(1)]))
    assert [type(s) for s in steps] == [PlaceAttempt, Release]
    release = steps[1]
    assert isinstance(release, Release)
    assert release.ran_s == 95.0


def test_the_cost_of_a_stopped_machine_comes_from_its_clouds_clock() -> None:
    stopped = msgspec.structs.replace(machine(1, "stopped"), stopped_at=940.0)
    events = (*STARTED, ev.Lost(attempt=1, why="stopped", at=5000.0))
    release = next(s for s in plan(world(view(*events), machines=[stopped])) if isinstance(s, Release))
    assert release.ran_s == 40.0


def crash(attempt: int, at: float = 950.0) -> tuple[ev.Event, ...]:
    return (
        placed(attempt),
        ev.Started(attempt=attempt, at=at),
        ev.Stopped(attempt=attempt, outcome="crashed", exit_code=3, why="the command exited with 3", at=at),
        ev.Released(attempt=attempt, cost_usd=0.1, at=at),
    )


def test_crashes_have_a_separate_small_budget() -> None:
    assert isinstance(plan(world(view(*crash(1), *crash(2))))[0], PlaceAttempt)
    (step,) = plan(world(view(*crash(1), *crash(2), *crash(3))))
    assert isinstance(step, Fail)
    assert "crashed 3 times" in step.why
    assert step.exit_code == 3


def test_named_exit_codes_are_retried_without_counting_a_crash() -> None:
    retried = spec(command="train", limits={"retry_on_exit": [3]})
    (step,) = plan(world(view(*crash(1), *crash(2), *crash(3), spec=retried)))
    assert isinstance(step, PlaceAttempt)
    endless = [event for number in range(1, 9) for event in crash(number)]
    (step,) = plan(world(view(*endless, spec=retried)))
    assert isinstance(step, Fail), "attempts without progress end it nevertheless"


def preemption(attempt: int, *, saved: bool) -> tuple[ev.Event, ...]:
    save = (ev.Saved(attempt=attempt, checkpoint=f"c{attempt}", at=700.0),) if saved else ()
    return (
        placed(attempt, at=700.0),
        ev.Started(attempt=attempt, at=700.0),
        *save,
        ev.Lost(attempt=attempt, why="gone", at=701.0),
        ev.Released(attempt=attempt, cost_usd=0.1, at=701.0),
    )


def test_preemptions_are_retried_without_end_while_there_is_progress() -> None:
    events = [e for n in range(1, 41) for e in preemption(n, saved=n % 2 == 0)]
    (step,) = plan(world(view(*events)))
    assert isinstance(step, PlaceAttempt)
    assert step.attempt == 41


def test_too_many_attempts_without_progress_end_the_run() -> None:
    events = [e for n in range(1, 9) for e in preemption(n, saved=False)]
    (step,) = plan(world(view(*events)))
    assert isinstance(step, Fail)
    assert "no new checkpoint in 8 attempts" in step.why


def test_the_hint_for_a_command_that_never_started_does_not_mention_checkpoints() -> None:
    events = [
        event
        for n in range(1, 9)
        for event in (
            placed(n, at=700.0),
            ev.Lost(attempt=n, why="last lines of its console: no space left", at=701.0),
            ev.Released(attempt=n, cost_usd=0.1, at=701.0),
        )
    ]
    (step,) = plan(world(view(*events)))
    assert isinstance(step, Fail)
    assert "never started in 8 attempts" in step.why
    assert "no space left" in step.why
    assert "save" not in step.hint


def refused(attempt: int, zone: str, until: float = NOW + 60) -> tuple[ev.Event, ...]:
    why = f"no capacity in {zone}"
    offers = (offer(zone).key,)
    return placed(attempt, zone), ev.LaunchRefused(attempt=attempt, why=why, until=until, offers=offers, at=999.0)


def test_a_stockout_starts_a_cooldown_and_the_next_zone_is_tried() -> None:
    (step,) = plan(world(view(*refused(1, "here-a"))))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.zone == "here-b"


def test_a_stockout_of_one_run_applies_to_all_runs() -> None:
    other = view(run="run-2", *refused(1, "here-a"))  # noqa: B026
    steps = [s for s in plan(world(view(), other)) if s.run == "run-1"]
    assert isinstance(steps[0], PlaceAttempt)
    assert steps[0].offer.zone == "here-b"


def test_with_all_offers_in_cooldown_the_run_waits_with_one_event() -> None:
    events = (*refused(1, "here-a"), *refused(2, "here-b"), *refused(3, "there-a", until=NOW + 30))
    (step,) = plan(world(view(*events)))
    assert isinstance(step, Wait)
    assert step.why == "no machine in 3 zones: no capacity in there-a"
    assert step.until == NOW + 30
    assert plan(world(view(*events, ev.Waiting(why=step.why, until=step.until)))) == ()


def test_with_all_offers_in_cooldown_it_goes_on_demand_if_allowed() -> None:
    events = (*refused(1, "here-a"), *refused(2, "here-b"), *refused(3, "there-a"))
    (step,) = plan(world(view(*events, spec=spec(machine={"fallback": True}))))
    assert isinstance(step, PlaceAttempt)
    assert (step.offer.zone, step.offer.spot) == ("here-a", False)


def test_a_stockout_does_not_lead_to_much_more_expensive_machines() -> None:
    big = offer("here-c", price=9.0, type="huge")
    offers = (offer("here-a"), big)
    (step,) = plan(world(view(*refused(1, "here-a"), spot_offers=offers)))
    assert isinstance(step, Wait)
    assert "no machine in 1 zone" in step.why


def test_an_offer_is_tried_again_after_its_cooldown() -> None:
    events = (*refused(1, "here-a", until=NOW - 1), *refused(2, "here-b"), *refused(3, "there-a"))
    (step,) = plan(world(view(*events)))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.zone == "here-a"


def test_a_quota_error_starts_a_cooldown_for_the_whole_region() -> None:
    over = ev.LaunchRefused(attempt=1, why="quota", until=NOW + 60, offers=("local/here/*/spot",), at=999.0)
    (step,) = plan(world(view(placed(1), over)))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.zone == "there-a"


def test_preferred_zones_come_first_whatever_they_cost() -> None:
    (step,) = plan(world(view(spec=spec(machine={"zones": ["there-a", "*"]}))))
    assert isinstance(step, PlaceAttempt)
    assert step.offer.zone == "there-a"


def test_an_impossible_request_fails_at_once() -> None:
    (step,) = plan(world(view(impossible="no type `huge`", hint="see the list")))
    assert step == Fail(run="run-1", why="no type `huge`", hint="see the list")
    (step,) = plan(world(view(spot_offers=())))
    assert isinstance(step, Fail)


def test_unlisted_offers_make_the_run_wait_and_fail_nothing() -> None:
    (step,) = plan(world(view(spot_offers=(), offers_error="timeout")))
    assert isinstance(step, Wait)


def test_a_silent_zone_hides_its_own_machines_only() -> None:
    silent = {"local/here-a": "UNREACHABLE"}
    assert plan(world(view(*STARTED), unreachable=silent)) == (), "its agent still sends heartbeats"
    assert plan(world(view(placed(1)), unreachable=silent)) == ()
    assert plan(world(view(*STARTED, ev.Cancelled()), unreachable=silent)) == (), "it cannot be deleted yet"
    (elsewhere,) = plan(world(view(*STARTED), unreachable={"local/there-a": "UNREACHABLE"}))
    assert isinstance(elsewhere, MarkLost)
    (place,) = plan(world(view(), unreachable=silent))
    assert isinstance(place, PlaceAttempt)
    assert place.offer.zone == "here-b", "a new attempt goes to a zone that answers"


def test_a_run_leaves_a_silent_zone_once_its_heartbeats_stop() -> None:
    (step,) = plan(world(view(*STARTED, silent_s=16.0), unreachable={"local/here-a": "UNREACHABLE"}))
    assert isinstance(step, MarkLost)
    assert step.why == "no heartbeat for 16 s, and zone here-a does not answer"


def test_nothing_is_decided_about_an_unreachable_cloud() -> None:
    unreachable = {"local": "unreachable"}
    assert plan(world(view(*STARTED), unreachable=unreachable)) == ()
    assert plan(world(view(placed(1)), unreachable=unreachable)) == ()
    assert plan(world(view(*STARTED, ev.Cancelled()), unreachable=unreachable)) == ()
    (step,) = plan(world(view(), unreachable=unreachable))
    assert isinstance(step, Wait)


@pytest.mark.parametrize("status", ["pending", "running", "stopping", "stopped", "broken"])
def test_a_machine_that_no_story_owns_is_deleted_in_every_status(status: str) -> None:
    (step,) = plan(world(machines=[machine(1, status, run="gone-1")]))
    assert isinstance(step, Reap)
    assert step.machine == "gone-1-a1"


def test_the_remaining_machine_of_a_released_attempt_is_deleted_again() -> None:
    events = (*STARTED, ev.Cancelled(at=950.0), ev.Released(attempt=1, cost_usd=1, at=951.0))
    steps = plan(world(view(*events), machines=[machine(1)]))
    assert any(isinstance(s, Reap) for s in steps)


def test_machines_of_other_workspaces_and_without_labels_are_left_alone() -> None:
    foreign = machine(1, run="x")
    foreign = msgspec.structs.replace(foreign, labels={**foreign.labels, "outlast-workspace": "other"})
    bare = msgspec.structs.replace(machine(2, run="y"), labels={"outlast-workspace": "ws"})
    assert plan(world(machines=[foreign, bare])) == ()


@pytest.mark.parametrize(
    "end", [ev.Cancelled(at=960.0), ev.Failed(why="x", at=960.0), ev.Finished(attempt=1, at=960.0)]
)
def test_a_run_that_is_over_is_released_and_then_finalized(end: ev.Event) -> None:
    (step,) = plan(world(view(*STARTED, end), machines=[machine(1)]))
    assert isinstance(step, Release)
    released = ev.Released(attempt=1, cost_usd=0.1, at=961.0)
    assert plan(world(view(*STARTED, end, released))) == (Finalize(run="run-1", cloud="local"),)


def test_a_placed_attempt_of_a_cancelled_run_is_released_though_its_machine_was_never_seen() -> None:
    (step,) = plan(world(view(placed(1), ev.Cancelled(at=960.0))))
    assert isinstance(step, Release)


def test_a_machine_kept_for_debugging_stays_until_its_time_is_over() -> None:
    stop = ev.Stopped(attempt=1, outcome="crashed", at=NOW - 10, keep_s=60)
    events = (*STARTED, stop, ev.Failed(why="x", at=NOW - 9))
    assert plan(world(view(*events), machines=[machine(1)])) == ()
    stop = ev.Stopped(attempt=1, outcome="crashed", at=NOW - 61, keep_s=60)
    (step,) = plan(world(view(*STARTED, stop, ev.Failed(why="x", at=NOW - 9)), machines=[machine(1)]))
    assert isinstance(step, Release)


@pytest.mark.parametrize(
    ("limits", "why"),
    [({"cost_usd": 0.01}, "budget"), ({"deadline": "1m"}, "deadline"), ({"max_hours": 0.01}, "max_hours")],
)
def test_a_limit_that_is_reached_lets_the_run_save_and_stop(limits: dict[str, object], why: str) -> None:
    (step,) = plan(world(view(*STARTED, spec=spec(limits=limits)), machines=[machine(1)]))
    assert isinstance(step, StopAtLimit)
    assert why in step.why
    assert step.grace_s > 0


def test_the_plan_of_a_busy_workspace_reads_like_this() -> None:
    busy = world(
        view(run="a-1"),
        view(*STARTED, run="b-1"),
        view(*NOTICED, run="c-1"),
        machines=[machine(1, "stopped", why="preempted"), machine(7, run="z-9")],
    )
    assert described(plan(busy)) == [
        "place attempt 1 of a-1 on small in here-a (spot)",
        "give up attempt 1 of b-1: its machine is stopped: preempted",
        "give up attempt 1 of c-1: its machine is stopped: preempted",
        "delete z-9-a7 on local: attempt 7 of z-9 no longer owns it",
    ]
