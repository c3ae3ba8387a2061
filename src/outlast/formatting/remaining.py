"""The time and cost until the end of a run, from its steps. Pure."""

from __future__ import annotations

import msgspec

from outlast.runs.members import owned
from outlast.runs.state import RunState

# An estimate needs this many steps and this much time of the live attempt.
_STEPS_MIN, _SECONDS_MIN = 2, 5.0


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of the work at the speed of the live attempt; preemptions are not included."""

    seconds: float
    cost_usd: float


def remaining(state: RunState, step: int | None, steps: int, now: float) -> Remaining | None:
    """Return the estimate; None without a live attempt, a total or enough steps."""
    attempt = state.current
    if attempt is None or step is None or steps <= step:
        return None
    done, took_s = step - (attempt.resumed_step or 0), now - attempt.started_at
    if done < _STEPS_MIN or took_s < _SECONDS_MIN:
        return None
    seconds = (steps - step) * took_s / done
    rate = attempt.price_usd_per_hour * len(owned(state, attempt))
    return Remaining(seconds=seconds, cost_usd=seconds / 3600.0 * rate)
