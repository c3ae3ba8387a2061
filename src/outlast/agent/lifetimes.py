"""How long machines live, as a run's own story has seen it. Pure."""

from __future__ import annotations

from outlast.runs.state import RunState

# Before anything was seen; what is seen is weighed against one life of this length.
USUAL_S = 7200.0


def mean_life_s(state: RunState) -> float:
    """Time lived on machines that may vanish, by how often one did: those that ended of themselves count as time."""
    tried = [attempt for attempt in state.attempts if attempt.spot and attempt.started_at]
    # Once it is released, one clock has told how long the machine was there.
    lived_s = sum(attempt.seconds or max(0.0, attempt.over_at - attempt.started_at) for attempt in tried)
    return (USUAL_S + lived_s) / (1 + sum(attempt.preempted for attempt in tried))
