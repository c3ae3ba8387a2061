"""The responsible invariant finds each planted bug within 500 seeds."""

from __future__ import annotations

import pytest

from outlast.testing.simulate import simulate
from outlast.testing.worlds import has_notices_only
from tests.simulation.bugs import BUGS
from tests.simulation.subtle_bugs import SUBTLE

SEEDS = 500
ALL = BUGS | SUBTLE


@pytest.mark.full
@pytest.mark.parametrize("bug", ALL)
def test_a_planted_bug_is_found(bug: str) -> None:
    kind, guards = ALL[bug]
    for seed in range(SEEDS):
        problem = simulate(seed, kind=kind).problem
        if problem:
            assert problem.split(":")[0] in guards, problem
            assert simulate(seed).problem == ""  # it was the bug, not the world
            return
    pytest.fail(f"{SEEDS} worlds did not see that {bug}")


HANDOFF = [
    "the successor does not wait for its predecessor's last word",
    "the deadline of a handoff is read from the local clock",
]


@pytest.mark.parametrize("bug", HANDOFF)
def test_with_notices_as_the_only_fault_a_lossy_handoff_is_detected(bug: str) -> None:
    worlds = [seed for seed in range(SEEDS) if has_notices_only(seed)]
    problems = (simulate(seed, kind=ALL[bug][0]).problem for seed in worlds)
    assert any(problem.startswith("a_handoff_loses_nothing") for problem in problems)
