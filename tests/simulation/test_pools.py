"""A cloud that chooses the zone of a machine itself: the worlds are as safe, and the story says where machines are."""

from __future__ import annotations

import pytest

from outlast.testing.faults import NONE
from outlast.testing.simcloud import SimChoosingView
from outlast.testing.simulate import Simulation, WorldResult, simulate


class Choosing(Simulation):
    cloud_view_type = SimChoosingView


def check(result: WorldResult) -> None:
    assert not result.problem, "\n".join([*result.trace, result.problem])


@pytest.mark.parametrize(
    "first", [0, pytest.param(20, marks=pytest.mark.full), pytest.param(40, marks=pytest.mark.full)]
)
def test_worlds_whose_cloud_chooses_the_zone_are_safe_and_come_to_rest(first: int) -> None:
    for seed in range(first, first + 20):
        check(simulate(seed, kind=Choosing))


def test_the_story_names_the_zone_that_the_cloud_chose() -> None:
    world = Choosing(1, faults=NONE, storm_s=60.0)
    world.add_user(steps=6, pace_s=2.0, at_s=1.0)
    world.add_supervisor()
    check(world.run())
    (events,) = (record.events for record in world.witness.runs.values())
    placed, located = events[1], events[2]
    assert placed["event"] == "placed"
    assert placed["zone"] == "east-a"
    assert [pool[0] for pool in placed["pools"]] == ["east-b"]
    assert located["event"] == "located"
    (machine,) = world.cloud.history
    assert (located["zone"], located["price_usd_per_hour"]) == (machine.facts.zone, 1.1) == ("east-b", 1.1)
    (released,) = (event for event in events if event["event"] == "released")
    assert released["cost_usd"] == pytest.approx(released["seconds"] * 1.1 / 3600)
