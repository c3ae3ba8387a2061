"""Handovers between attempts, derived from the story, the reported steps and the observed file changes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from outlast.drill.evidence import Evidence
from outlast.drill.findings import Handover
from outlast.drill.steps import StepMark
from outlast.runs.state import Attempt, Checkpoint

# Changes of the checkpoint folder this close to each other are one save.
_ONE_SAVE_S = 0.4
# The delay between printing a line and reading it here.
_LAG_S = 0.05


def handovers(evidence: Evidence) -> list[Handover]:
    """Return a handover for each preempted attempt; attempts that ended by themselves have none."""
    started = [a for a in evidence.state.attempts if a.started_at]
    return [_handover(evidence, before, after) for before, after in itertools.pairwise(started) if before.preempted]


def _handover(evidence: Evidence, before: Attempt, after: Attempt) -> Handover:
    injected = next((s for s in evidence.observed.injected if s.attempt == before.number), None)
    steps, next_steps = evidence.steps.get(before.number, []), evidence.steps.get(after.number, [])
    committed = newest(evidence.state.checkpoints, before.number)
    step, reached, exact = _steps_in(evidence, committed, steps)
    kept_at = max(before.saved_at, before.started_at)
    preempted_at = before.over_at
    if injected is not None and not before.noticed_at:
        preempted_at = min(preempted_at, max(injected.at, kept_at))  # the supervisor noticed it later
    return Handover(
        attempt=before.number,
        moment=injected.injection.moment if injected else "not injected",
        notice=bool(before.noticed_at),
        committed=committed.id if committed else "",
        restored=after.resumed_from,
        committed_step=step,
        reached_step=reached,
        step_is_exact=exact,
        began_step=_first_step(evidence),
        last_step=steps[-1].step if steps else None,
        first_step=next_steps[0].step if next_steps else None,
        lost_s=max(0.0, preempted_at - kept_at),
        recovery_s=max(0.0, after.started_at - (before.noticed_at or preempted_at)),
        leave_s=_leave_s(before),
        exit_code=before.exit_code,
        outcome=before.outcome,
        saved_after_notice=bool(before.noticed_at)
        and any(at > before.noticed_at for at in evidence.observed.changes.get(before.number, [])),
        unsaved=before.unsaved,
    )


def newest(checkpoints: Iterable[Checkpoint], attempt: int) -> Checkpoint | None:
    """Return the newest checkpoint of this attempt or an earlier one: the next attempt restored it."""
    return next((c for c in reversed(tuple(checkpoints)) if c.attempt <= attempt), None)


def _first_step(evidence: Evidence) -> int | None:
    """Return the step at which the program starts without a checkpoint."""
    return next((marks[0].step for _, marks in sorted(evidence.steps.items()) if marks), None)


def _steps_in(
    evidence: Evidence, committed: Checkpoint | None, steps: list[StepMark]
) -> tuple[int | None, int | None, bool]:
    """Return the lowest and the highest step that a checkpoint may contain, and whether its name has the step.

    Without a name, these are the last steps reported before its files began to change, and before they last changed.
    """
    if committed is None:
        return None, None, False
    marks = evidence.steps.get(committed.attempt, steps)
    if committed.step is not None and (not marks or committed.step <= marks[-1].step + 1):
        return committed.step, committed.step, True
    changes = [at for at in evidence.observed.changes.get(committed.attempt, []) if at <= committed.at]
    if not changes:
        return None, None, False
    return _reported_by(marks, _began(changes)), _reported_by(marks, changes[-1]), False


def _reported_by(marks: list[StepMark], at: float) -> int | None:
    return next((mark.step for mark in reversed(marks) if mark.at <= at - _LAG_S), None)


def _began(changes: list[float]) -> float:
    """Return when the last save began."""
    began = changes[-1]
    for at in reversed(changes[:-1]):
        if began - at > _ONE_SAVE_S:
            break
        began = at
    return began


def _leave_s(attempt: Attempt) -> float | None:
    """Return the time from the notice to the last event of the attempt; the grace if there was none."""
    if not attempt.noticed_at:
        return None
    if attempt.outcome in ("preempted", "finished"):
        return max(0.0, attempt.over_at - attempt.noticed_at)
    return attempt.grace_s
