"""Worlds are safe during the faults and converge afterwards, for fixed and for fresh seeds."""

from __future__ import annotations

import os
import random

import pytest

from outlast.runs.state import RunState
from outlast.testing.faults import NONE
from outlast.testing.scheduler import Actor
from outlast.testing.simulate import Simulation, WorldResult, simulate

FIXED = range(120)
FRESH = 60


def check(result: WorldResult) -> None:
    story = "\n".join(result.trace)
    assert not result.problem, f"{story}\n{result.problem}\nreplay: python -m outlast.testing --seed {result.seed}"


@pytest.mark.parametrize("first", FIXED[::20])
def test_the_fixed_worlds_are_safe_and_come_to_rest(first: int) -> None:
    for seed in range(first, first + 20):
        check(simulate(seed))


# The bound on wasted machines is young: one world in a few hundred still needs an explanation (seed 747244509).
@pytest.mark.soak
def test_fresh_worlds_are_safe_and_come_to_rest() -> None:
    begin = random.SystemRandom().randrange(1_000_000, 2_000_000_000)
    for seed in range(begin, begin + FRESH):
        check(simulate(seed))


def test_a_seed_is_the_same_world_every_time() -> None:
    assert [simulate(seed) for seed in (3, 18)] == [simulate(seed) for seed in (3, 18)]


def test_a_predecessor_may_commit_until_its_successor_has_started() -> None:
    """Its time was up, and it committed between the successor's last look and `Started`."""
    check(simulate(947237454))


def quiet(seed: int = 1) -> Simulation:
    world = Simulation(seed, faults=NONE, storm_s=60.0)
    world.add_user(steps=6, pace_s=2.0, at_s=1.0)
    world.add_supervisor()
    return world


def test_a_world_without_faults_needs_one_attempt() -> None:
    result = quiet().run()
    check(result)
    assert (result.attempts, result.endings) == (1, {"finished": 1})


def test_a_run_that_cannot_proceed_states_the_reason() -> None:
    """Invariant 6: with no capacity anywhere the run is held, with the reason, and goes on when there is some."""
    world = quiet()
    for zone in ("east-a", "east-b", "west-a"):
        world.cloud.out_until[zone] = world.storm_over
    states: list[RunState] = []
    actor = Actor(world.scheduler, "auditor", "auditor")

    def audit() -> None:
        actor.sleep(40.0)
        while True:
            actor.sleep(1.0)
            states.append(world.workspace_of(actor).story("run-1").refresh())

    world.scheduler.spawn(actor, audit)
    result = world.run()
    check(result)
    assert any(state.waiting for state in states)
    for before, state in zip(states, states[15:], strict=False):
        stuck = state.alive and state.length == before.length and (state.last is None or state.last.phase == "over")
        assert not stuck or "no machine in 3 zones" in state.waiting
    assert result.endings == {"finished": 1}


def test_a_permanent_refusal_ends_the_run_at_once() -> None:
    world = quiet()
    world.cloud.denied = "the account may not create machines"
    result = world.run()
    assert result.problem == ""
    assert (result.attempts, result.endings) == (0, {"failed": 1})


def test_two_worlds_leave_no_folder_behind() -> None:
    world = quiet()
    world.run()
    assert not os.path.exists(world.root)
