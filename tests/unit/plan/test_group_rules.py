"""Rows of world → steps for groups and exclusive locks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, machine, placed, spec, view, world

from outlast.clouds.cloud import Machine
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import fold
from outlast.spec.spec import Member, Spec
from outlast.supervisor.group_rules import INCOMPLETE_S
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Fail, PlaceAttempt, ReleaseMember, RunView, Sibling, Wait

STARTED = (placed(1), ev.Started(attempt=1, at=905.0))


def member(**fields: Any) -> Spec:
    return msgspec.structs.replace(spec(), member=Member(task="worker", group="evolve-1", **fields))


def sibling(*events: Event, task: str = "master", **fields: Any) -> Sibling:
    return Sibling(run=f"evolve-1-{task}", task=task, state=fold([ev.Submitted(at=890.0), *events]), **fields)


def worker(*events: Event, siblings: tuple[Sibling, ...] = (), sealed: bool = True, **fields: Any) -> RunView:
    return view(*events, spec=member(**fields), siblings=siblings, sealed=sealed)


FINISHED = (*STARTED, ev.Finished(attempt=1, at=990.0))


def test_a_group_does_not_start_during_its_submission() -> None:
    (step,) = plan(world(worker(sealed=False)))
    assert isinstance(step, Wait)
    assert "still being submitted" in step.why


def test_a_group_with_an_interrupted_submission_never_starts() -> None:
    seen = worker(sealed=False)
    (step,) = plan(msgspec.structs.replace(world(seen), now=NOW + INCOMPLETE_S))
    assert isinstance(step, Fail)
    assert "is incomplete" in step.why


@pytest.mark.parametrize("siblings", [(), (sibling(),), (sibling(*STARTED),)])
def test_a_run_waits_until_the_task_before_it_is_ready(siblings: tuple[Sibling, ...]) -> None:
    (step,) = plan(world(worker(after=("master",), siblings=siblings)))
    assert isinstance(step, Wait)
    assert step.why == "starts after `master`, which is not ready"


def test_it_starts_when_one_of_them_is_ready() -> None:
    siblings = (sibling(*STARTED, ready=True), sibling())
    (step,) = plan(world(worker(after=("master",), siblings=siblings)))
    assert isinstance(step, PlaceAttempt)


def test_a_run_fails_if_the_run_before_it_failed() -> None:
    (step,) = plan(world(worker(after=("master",), siblings=(sibling(ev.Failed(why="broken")),))))
    assert isinstance(step, Fail)


def test_a_server_is_released_when_all_its_clients_are_over() -> None:
    siblings = (sibling(*FINISHED), sibling(*STARTED, task="other"))
    one = worker(*STARTED, until=("master",), siblings=siblings)
    assert plan(world(one, machines=[machine(1)])) == (ReleaseMember(run="run-1", why="evolve-1-master is finished"),)
    both = worker(*STARTED, until=("master", "other"), siblings=siblings)
    assert plan(world(both, machines=[machine(1)])) == ()


def test_a_server_is_not_released_before_its_clients_are_known() -> None:
    assert plan(world(worker(*STARTED, until=("master",)), machines=[machine(1)])) == ()


def test_runs_above_the_minimum_number_start_last() -> None:
    waiting = (sibling(task="worker"), sibling(task="worker", spare=True))
    (step,) = plan(world(worker(spare=True, siblings=waiting)))
    assert isinstance(step, Wait)
    (step,) = plan(world(worker(spare=True, siblings=(sibling(placed(1), task="worker"), waiting[1]))))
    assert isinstance(step, PlaceAttempt)
    (step,) = plan(world(worker(spare=False, siblings=waiting)))
    assert isinstance(step, PlaceAttempt)


def exclusive(*events: Event, run: str, at: float = 890.0, name: str = "db:genomes") -> RunView:
    seen = view(*events, run=run, spec=spec(exclusive=name))
    return msgspec.structs.replace(seen, state=msgspec.structs.replace(seen.state, submitted_at=at))


def test_an_active_run_holds_the_exclusive_lock() -> None:
    first, second = exclusive(run="a-1", at=890.0), exclusive(placed(1), run="b-1", at=895.0)
    steps = plan(world(first, second, machines=[machine(1)]))
    assert Wait(run="a-1", why="`db:genomes` is held by b-1") in steps


def test_of_two_waiting_runs_the_one_submitted_first_goes_first() -> None:
    steps = plan(world(exclusive(run="b-1", at=880.0), exclusive(run="a-1", at=890.0)))
    assert [type(s) for s in steps] == [PlaceAttempt, Wait]
    assert steps[1] == Wait(run="a-1", why="`db:genomes` is held by b-1")


def test_exclusive_locks_with_other_names_do_not_conflict() -> None:
    steps = plan(world(exclusive(run="a-1"), exclusive(run="b-1", name="db:others")))
    assert [type(s) for s in steps] == [PlaceAttempt, PlaceAttempt]


def test_a_run_that_is_over_has_nothing() -> None:
    over = exclusive(*FINISHED, run="a-1", at=880.0)
    steps = plan(world(over, exclusive(run="b-1"), machines=[]))
    assert any(isinstance(s, PlaceAttempt) and s.run == "b-1" for s in steps)


def test_a_run_that_serves_others_may_be_preempted_without_limit() -> None:
    gone = [
        event
        for n in range(1, 13)
        for event in (
            placed(n, at=700.0),
            ev.Started(attempt=n, at=700.0),
            ev.Lost(attempt=n, why="gone", at=701.0),
            ev.Released(attempt=n, cost_usd=0.1, at=701.0),
        )
    ]
    (step,) = plan(world(worker(*gone, until=("master",), siblings=(sibling(*STARTED),))))
    assert isinstance(step, PlaceAttempt)
    (step,) = plan(world(worker(*gone)))
    assert isinstance(step, Fail)


def crashed(attempt: int, at: float) -> tuple[Event, ...]:
    stopped = ev.Stopped(attempt=attempt, outcome="crashed", exit_code=1, why="connection reset", at=at)
    return placed(attempt), ev.Started(attempt=attempt, at=at - 50.0), stopped


CRASHES = [event for attempt in (1, 2, 3) for event in crashed(attempt, 300.0 * attempt)]


def lost_at(*times: float) -> tuple[Event, ...]:
    return tuple(
        event
        for attempt, at in enumerate(times, 1)
        for event in (
            placed(attempt),
            ev.Started(attempt=attempt, at=at - 100.0),
            ev.Lost(attempt=attempt, why="preempted", at=at),
        )
    )


def fails(*siblings: Sibling, machines: list[Machine] | None = None) -> bool:
    steps = plan(world(worker(*CRASHES, siblings=siblings), machines=machines))
    return any(isinstance(step, Fail) for step in steps)


def test_failures_that_follow_the_loss_of_a_peer_do_not_count_as_crashes() -> None:
    assert fails()
    assert not fails(sibling(*lost_at(290.0)))
    assert not fails(sibling(*lost_at(310.0)))  # observed after the failure


def test_a_loss_before_the_attempt_or_long_before_its_failure_explains_nothing() -> None:
    assert fails(sibling(*lost_at(240.0)))
    assert fails(sibling(*lost_at(1100.0)))
    assert fails(sibling(*FINISHED))


def test_a_loss_that_is_not_in_the_story_of_the_peer_yet_counts() -> None:
    peer = sibling(placed(1), ev.Started(attempt=1, at=700.0))
    late = world(worker(*CRASHES, siblings=(peer,)), machines=[])
    assert not any(isinstance(step, Fail) for step in plan(msgspec.structs.replace(late, now=910.0)))
    assert fails(peer, machines=[machine(1)])
