"""The mean life of preemptible machines, estimated from a run's own story. Pure."""

from __future__ import annotations

from outlast.runs.state import RunState

# The estimate starts as one machine that lived this long.
USUAL_S = 7200.0


def mean_life_s(state: RunState) -> float:
    """Divide the time on preemptible machines by the preemptions. Attempts that ended by themselves add time only."""
    tried = [attempt for attempt in state.attempts if attempt.spot and attempt.started_at]
    # `seconds` is set at the release, by one clock.
    lived_s = sum(attempt.seconds or max(0.0, attempt.over_at - attempt.started_at) for attempt in tried)
    return (USUAL_S + lived_s) / (1 + sum(attempt.preempted for attempt in tried))
