"""From a story, the steps told and what was seen on the disk: how each attempt handed over to the next. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from outlast.drill.evidence import Evidence
from outlast.drill.findings import Handover
from outlast.drill.steps import StepMark
from outlast.runs.state import Attempt, Checkpoint

# Changes of the checkpoint folder this close to each other are one save.
_ONE_SAVE_S = 0.4
# Between a line that is printed and the moment at which others know of it.
_LAG_S = 0.05


def handovers(evidence: Evidence) -> list[Handover]:
    """Each attempt that was taken away, with the one that took over; those that ended of themselves are no matter."""
    started = [a for a in evidence.state.attempts if a.started_at]
    return [_handover(evidence, before, after) for before, after in itertools.pairwise(started) if before.preempted]


def _handover(evidence: Evidence, before: Attempt, after: Attempt) -> Handover:
    struck = next((s for s in evidence.seen.struck if s.attempt == before.number), None)
    told, next_told = evidence.steps.get(before.number, []), evidence.steps.get(after.number, [])
    committed = newest(evidence.state.checkpoints, before.number)
    step, reached, surely = _held_steps(evidence, committed, told)
    kept_at = max(before.saved_at, before.started_at)
    gone_at = before.over_at
    if struck is not None and not before.noticed_at:
        gone_at = min(gone_at, max(struck.at, kept_at))  # that it was gone was seen later
    return Handover(
        attempt=before.number,
        moment=struck.blow.moment if struck else "unasked",
        notice=bool(before.noticed_at),
        committed=committed.id if committed else "",
        restored=after.resumed_from,
        committed_step=step,
        reached_step=reached,
        surely=surely,
        began_step=_beginning(evidence),
        last_step=told[-1].step if told else None,
        first_step=next_told[0].step if next_told else None,
        lost_s=max(0.0, gone_at - kept_at),
        recovery_s=max(0.0, after.started_at - (before.noticed_at or gone_at)),
        leave_s=_leave_s(before),
        exit_code=before.exit_code,
        outcome=before.outcome,
        saved_after_notice=bool(before.noticed_at)
        and any(at > before.noticed_at for at in evidence.seen.changes.get(before.number, [])),
        unsaved=before.unsaved,
    )


def newest(checkpoints: Iterable[Checkpoint], attempt: int) -> Checkpoint | None:
    """The newest that an attempt or one before it committed: whoever comes next has been given it."""
    return next((c for c in reversed(tuple(checkpoints)) if c.attempt <= attempt), None)


def _beginning(evidence: Evidence) -> int | None:
    """The step that a program begins with if it knows nothing of earlier attempts."""
    return next((marks[0].step for _, marks in sorted(evidence.steps.items()) if marks), None)


def _held_steps(
    evidence: Evidence, committed: Checkpoint | None, told: list[StepMark]
) -> tuple[int | None, int | None, bool]:
    """The step that a checkpoint holds at least and the one that it may hold: as its name says, else what was told
    before its files began to be written, and before they were written last. And whether its name says it."""
    if committed is None:
        return None, None, False
    marks = evidence.steps.get(committed.attempt, told)
    if committed.step is not None and (not marks or committed.step <= marks[-1].step + 1):
        return committed.step, committed.step, True
    changes = [at for at in evidence.seen.changes.get(committed.attempt, []) if at <= committed.at]
    if not changes:
        return None, None, False
    return _told_by(marks, _began(changes)), _told_by(marks, changes[-1]), False


def _told_by(marks: list[StepMark], at: float) -> int | None:
    return next((mark.step for mark in reversed(marks) if mark.at <= at - _LAG_S), None)


def _began(changes: list[float]) -> float:
    """When the last save began."""
    began = changes[-1]
    for at in reversed(changes[:-1]):
        if began - at > _ONE_SAVE_S:
            break
        began = at
    return began


def _leave_s(attempt: Attempt) -> float | None:
    """From the notice to the last word; to the end of the grace if there was none."""
    if not attempt.noticed_at:
        return None
    if attempt.outcome in ("preempted", "finished"):
        return max(0.0, attempt.over_at - attempt.noticed_at)
    return attempt.grace_s
