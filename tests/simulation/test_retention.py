"""Old runs and unused code go, and nothing that is live: among crashes, lost answers, wrong clocks and other prunes."""

from __future__ import annotations

import pytest

from outlast.testing.simretention import RetentionWorld, simulate_retention
from tests.simulation.retention_bugs import RETENTION_BUGS

SEEDS = 400
# A rare race: of the first 1,400 worlds none has it.
FIRST_SEED = {"the mark is removed before the deletion": 1400}


@pytest.mark.parametrize("seed", range(4))
def test_prunes_beside_submissions_lose_nothing_and_leave_nothing(seed: int) -> None:
    world = RetentionWorld(seed)
    assert world.run() == ""
    assert world.witness.submitted == len(world.witness.deleted) > 5


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 100))
def test_many_prunes_beside_submissions_lose_nothing(seed: int) -> None:
    assert simulate_retention(seed) == ""


@pytest.mark.full
@pytest.mark.parametrize("bug", RETENTION_BUGS)
def test_a_planted_bug_of_pruning_is_found(bug: str) -> None:
    kind, guards = RETENTION_BUGS[bug]
    first = FIRST_SEED.get(bug, 0)
    for seed in range(first, first + SEEDS):
        if problem := simulate_retention(seed, kind=kind):
            assert problem.split(":")[0] in guards, problem
            assert simulate_retention(seed) == ""  # it was the bug, not the world
            return
    pytest.fail(f"{SEEDS} worlds did not see that {bug}")
