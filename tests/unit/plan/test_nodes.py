"""Distributed runs with a range of machines: how many the next attempt has, and which it keeps."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.unit.plan.worlds import NOW, machine, placed, spec, view, world

from outlast.clouds.cloud import Machine, sized_key
from outlast.errors import SpecError
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.supervisor.plan import plan
from outlast.supervisor.world import PlaceAttempt

ELASTIC = spec(machine={"nodes": "2..4"}, checkpoint={"path": "c"})


def together(attempt: int, *members: str, zone: str = "here-a") -> ev.Placed:
    return msgspec.structs.replace(placed(attempt, zone), machine=members[0], members=members, least=2)


def refused(attempt: int, nodes: int, zone: str = "here-a") -> ev.LaunchRefused:
    offers = (sized_key(f"local/{zone}/small/spot", nodes),)
    return ev.LaunchRefused(attempt=attempt, why="none", until=NOW + 60, offers=offers, at=950.0)


def running(*names: str) -> list[Machine]:
    return [msgspec.structs.replace(machine(1), name=name) for name in names]


def next_attempt(*events: Event, machines: list[Machine] | None = None) -> PlaceAttempt:
    steps = plan(world(view(*events, spec=ELASTIC), machines=machines))
    return next(step for step in steps if isinstance(step, PlaceAttempt))


def stopped_by(node: int, **saved: Any) -> tuple[Event, ...]:
    """Return the events of an attempt on three machines that saved, and lost one."""
    return (
        together(1, "a", "b", "c"),
        ev.Started(attempt=1, at=910.0),
        ev.Saved(attempt=1, checkpoint="0001-00001", **saved),
        ev.Noticed(attempt=1, why="preempted", grace_s=30.0, node=node, at=920.0),
        ev.Stopped(attempt=1, outcome="preempted", at=930.0),
    )


def test_a_range_asks_for_the_largest_number_first() -> None:
    step = next_attempt()
    assert (step.nodes, step.least, step.offer.zone) == (4, 2, "here-a")


def test_a_range_asks_for_fewer_when_all_zones_have_refused_more() -> None:
    zones = ("here-a", "here-b", "there-a")
    events = [
        event
        for n, zone in enumerate(zones, 1)
        for event in (together(n, f"a{n}", f"b{n}", zone=zone), refused(n, 4, zone))
    ]
    assert next_attempt(*events).nodes == 3


def test_machines_that_are_left_get_a_replacement_first() -> None:
    step = next_attempt(*stopped_by(1), machines=running("a", "c"))
    # With another number of machines, the ranks begin again from 0.
    assert (step.nodes, step.kept) == (4, {0: "a", 1: "c"})


def test_machines_that_are_left_continue_alone_when_the_zone_has_refused_more() -> None:
    events = (
        *stopped_by(1),
        together(2, "a", "c", "d", "e"),
        refused(2, 4),
        together(3, "a", "c", "f"),
        refused(3, 3),
    )
    step = next_attempt(*events, machines=running("a", "c"))
    assert (step.attempt, step.nodes, step.kept, step.offer.zone) == (4, 2, {0: "a", 1: "c"}, "here-a")


def test_a_checkpoint_of_parts_waits_for_the_number_of_machines_that_saved_it() -> None:
    step = next_attempt(*stopped_by(1, nodes=3), machines=running("a", "c"))
    # Ranks stay, because the number does.
    assert (step.nodes, step.kept) == (3, {0: "a", 2: "c"})


@pytest.mark.parametrize("nodes", ["1..4", "4..2", "2..", "x", 0, True, "2..1000"])
def test_other_ranges_are_refused(nodes: object) -> None:
    with pytest.raises(SpecError, match=r"\[machine\] nodes"):
        spec(machine={"nodes": nodes})


def test_a_range_of_one_number_is_that_number() -> None:
    assert spec(machine={"nodes": "3..3"}).machine == spec(machine={"nodes": 3}).machine
