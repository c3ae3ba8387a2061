"""Distributed runs in simulated worlds: safe during the faults, at rest afterwards, and each planted bug is found."""

from __future__ import annotations

import pytest

from outlast.testing.simulate import simulate_nodes
from tests.simulation.node_bugs import ELASTIC_BUGS, NODE_BUGS

# The first seeds of ten worlds each.
BATCHES = [0, 10, *(pytest.param(first, marks=pytest.mark.full) for first in (20, 30))]
SEEDS = 500
# Bugs that few worlds show: the test begins near the first of them.
BEGIN = {"a new leader forgets which machines write shards": 284}


@pytest.mark.parametrize("first", BATCHES)
def test_worlds_with_distributed_runs_are_safe_and_come_to_rest(first: int) -> None:
    for seed in range(first, first + 10):
        result = simulate_nodes(seed)
        story = "\n".join(result.trace)
        replay = f"replay: python -m outlast.testing --nodes --seed {seed}"
        assert not result.problem, f"{story}\n{result.problem}\n{replay}"


@pytest.mark.parametrize("first", BATCHES[1:3])
def test_worlds_with_elastic_runs_are_safe_and_come_to_rest(first: int) -> None:
    for seed in range(first, first + 10):
        result = simulate_nodes(seed, elastic=True)
        story = "\n".join(result.trace)
        replay = f"replay: python -m outlast.testing --elastic --seed {seed}"
        assert not result.problem, f"{story}\n{result.problem}\n{replay}"


@pytest.mark.full
@pytest.mark.parametrize("bug", [*NODE_BUGS, *ELASTIC_BUGS])
def test_a_planted_bug_of_distributed_runs_is_found(bug: str) -> None:
    kind, guards = {**NODE_BUGS, **ELASTIC_BUGS}[bug]
    elastic = bug in ELASTIC_BUGS
    for seed in range(BEGIN.get(bug, 0), SEEDS):
        problem = simulate_nodes(seed, kind=kind, elastic=elastic).problem
        # The bug must be the reason, not the world.
        if problem and not simulate_nodes(seed, elastic=elastic).problem:
            assert problem.split(":")[0] in guards, problem
            return
    pytest.fail(f"{SEEDS} worlds did not show that {bug}")


# 39: a node stores its first part between the leader's listing and its read of the sign of life.
# 99: the part of one node is damaged, and the others can restore the checkpoint.
# 246: a new attempt takes over while the machine of an older one is alive without its agent.
@pytest.mark.parametrize("seed", [39, 99, 246])
def test_a_world_that_once_failed_is_safe(seed: int) -> None:
    assert simulate_nodes(seed).problem == ""


def test_a_seed_with_distributed_runs_is_the_same_world_every_time() -> None:
    assert simulate_nodes(3) == simulate_nodes(3)
