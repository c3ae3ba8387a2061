"""Handovers between attempts, derived from the story, the reported steps and the observed file changes. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from outlast.agent.checkpoint.snapshot import highest_step
from outlast.drill.evidence import Evidence, Series
from outlast.drill.findings import Handover
from outlast.drill.saves import split_save
from outlast.drill.steps import PERCENT, StepMark
from outlast.drill.witnesses import repeated, trends
from outlast.runs.state import Attempt, Checkpoint

# Changes of the checkpoint folder this close to each other are one save.
_ONE_SAVE_S = 0.4
# Times of files lose digits as floating-point numbers.
_ROUNDING_S = 1e-6
# A step in a name below this share of the reported one counts something else.
_UNIT = 0.5
# The delay between printing a line and reading it here.
_LAG_S = 0.05
# This share of the work must have been committed before its amount shows whether it was repeated.
_KEPT_SHARE = 0.2
# Steps are exact: a quarter of that share is enough, if it is so many steps as they are printed.
_KEPT_STEPS = 2
# A program that uses the processor for less of its time mostly waits.
_BUSY = 0.2
# An attempt that finishes after less than this share of an earlier, unfinished one did not do the same work.
_LESS = 0.8


def handovers(evidence: Evidence, undisturbed: Evidence | None = None) -> list[Handover]:
    """Return a handover for each preempted attempt; attempts that ended by themselves have none.

    With an undisturbed run, the work of the last attempt shows whether it was done again, and numbers that it printed
    later, too, show no new beginning.
    """
    started = [a for a in evidence.state.attempts if a.started_at]
    pairs = [(before, after) for before, after in itertools.pairwise(started) if before.preempted]
    found = [_handover(evidence, before, after, undisturbed) for before, after in pairs]
    if found and evidence.state.ending == "finished" and pairs[-1][1] is started[-1]:
        found[-1] = with_work(found[-1], evidence, undisturbed)
    return found


def _handover(evidence: Evidence, before: Attempt, after: Attempt, undisturbed: Evidence | None) -> Handover:
    injected = next((s for s in evidence.observed.injected if s.attempt == before.number), None)
    steps, next_steps = evidence.steps.get(before.number, []), evidence.steps.get(after.number, [])
    committed = newest(evidence.checkpoints, before.number)
    step, reached, exact = _steps_in(evidence, committed, steps)
    signs = evidence.observed.signs
    # Start-up is not work: an attempt that never worked lost nothing.
    began_at = signs.get(before.number, before.over_at if signs else before.started_at)
    kept_at = max(before.saved_at, began_at)
    preempted_at = before.over_at
    # The other machines of a distributed run receive one although the lost one had none: a command that waits
    # for it cannot save.
    noticed = bool(before.noticed_at) and (injected is None or injected.injection.notice)
    if injected is not None and not noticed:
        preempted_at = min(preempted_at, max(injected.at, kept_at))  # the supervisor noticed it later
    return Handover(
        attempt=before.number,
        moment=injected.injection.moment if injected else "not injected",
        notice=noticed,
        committed=committed.id if committed else "",
        restored=after.resumed_from,
        committed_step=step,
        reached_step=reached,
        step_is_exact=exact,
        steps_per_save=_steps_per_save(evidence, before.number),
        began_step=_first_step(evidence),
        last_step=steps[-1].step if steps else None,
        first_step=next_steps[0].step if next_steps else None,
        steps_after=len({mark.step for mark in next_steps}),
        read=evidence.observed.read.get(after.number, ""),
        unread=evidence.observed.unread.get(after.number, ""),
        **_named_steps(evidence, committed, after),
        **_numbers(evidence, committed, before, after, undisturbed),
        split=split_save(evidence.observed.writes, committed) if committed else (),
        lost_s=max(0.0, preempted_at - kept_at),
        recovery_s=max(0.0, after.started_at - (before.noticed_at if noticed else preempted_at)),
        leave_s=_leave_s(before) if noticed else None,
        exit_code=before.exit_code,
        outcome=before.outcome,
        saved_after_notice=noticed
        and any(at > before.noticed_at for at in evidence.observed.changes.get(before.number, [])),
        unsaved=before.unsaved,
        ending=before.ending,
    )


def _named_steps(evidence: Evidence, committed: Checkpoint | None, after: Attempt) -> dict[str, Any]:
    """Return the steps in the names of the checkpoints that the run wrote first, had restored, and wrote next."""
    writes = evidence.observed.writes
    first = next((steps for _, paths in sorted(writes.items()) if (steps := _steps_in_names(paths))), [])
    later = _steps_in_names(writes.get(after.number, []))
    return {
        "named_step": committed.step if committed else None,
        "began_named_step": first[0] if first else None,
        "next_named_step": later[0] if later else None,
    }


def _steps_in_names(writes: Iterable[tuple[float, str]]) -> list[int]:
    steps = (highest_step([path]) for _, path in writes)
    return [step for step in steps if step is not None]


def _numbers(
    evidence: Evidence, committed: Checkpoint | None, before: Attempt, after: Attempt, undisturbed: Evidence | None
) -> dict[str, Any]:
    """Compare the results that were printed up to the checkpoint with those after its restore."""
    if committed is None:
        return {}
    first = min(evidence.series, default=0)
    kept = _printed_by(evidence.series.get(first, {}), committed.at)
    last = _printed_by(evidence.series.get(before.number, {}), committed.at) if first != before.number else {}
    later = _printed_by(evidence.series.get(after.number, {}), math.inf)
    whole = {name: [*values, *last.get(name, [])] for name, values in kept.items()}
    plain = _printed_by(undisturbed.series.get(1, {}), math.inf) if undisturbed is not None else {}
    unclear = {name for name, values in later.items() if _is_later_part(values, plain.get(name, []))}
    found = trends(whole, {name: values for name, values in later.items() if name not in unclear})
    return {"repeats_numbers": repeated(kept, later), "trend": found}


def _is_later_part(values: Sequence[float], plain: Sequence[float]) -> bool:
    """Return whether an undisturbed run printed these values behind its beginning: noise may repeat the first one."""
    length = min(len(values), len(plain) - 1)
    return length > 0 and any(
        list(plain[at : at + length]) == list(values[:length]) for at in range(1, len(plain) - length + 1)
    )


def _printed_by(series: Series, until: float) -> dict[str, list[float]]:
    return {name: [value for at, value in points if at <= until] for name, points in series.items()}


def _span(marks: Sequence[StepMark]) -> int:
    """Return the number of steps that an attempt went through."""
    return marks[-1].step - marks[0].step + 1 if marks else 0


def with_work(h: Handover, evidence: Evidence, undisturbed: Evidence | None) -> Handover:
    """Add how much the last attempt worked: in steps if it reports any, else in time."""
    last = evidence.state.attempts[-1]
    marks = evidence.steps.get(last.number, [])
    # A share of 100 % may be of the remaining work only.
    if len({mark.step for mark in marks}) > 1 and marks[0].word != PERCENT:
        return _with_steps(h, evidence, _whole_span(evidence, undisturbed))
    return _with_time(h, evidence, undisturbed)


def _whole_span(evidence: Evidence, undisturbed: Evidence | None) -> int | None:
    """Return the number of steps of a whole training: of an undisturbed run, else from `step 12/60`."""
    if undisturbed is not None:
        return undisturbed.last_span
    totals = {mark.total for marks in evidence.steps.values() for mark in marks}
    total = totals.pop() if len(totals) == 1 else None
    return total - (_first_step(evidence) or 0) + 1 if total else None


def _with_steps(h: Handover, evidence: Evidence, known: int | None) -> Handover:
    last = max(evidence.steps)
    marks = evidence.steps[last]
    span = _span(marks)
    before = max((_span(m) for n, m in evidence.steps.items() if n < last), default=0)
    if span <= _LESS * before:
        less = f"it finished after {span} steps, and an earlier attempt was not finished after {before}"
        return replace(h, did_less=less)
    kept = max(0, (h.reached_step or h.committed_step or 0) - (h.began_step or 0))
    each = statistics.median(b.step - a.step for a, b in itertools.pairwise(marks))
    if known and kept >= max(_KEPT_STEPS * each, _KEPT_SHARE * known / 4):
        return _by_amount(h, span, known, kept, f"the last attempt did {span} of {known} steps")
    return h


def _with_time(h: Handover, evidence: Evidence, undisturbed: Evidence | None) -> Handover:
    """Add how much the last attempt worked in processor time, or in time if the program mostly waits."""
    if undisturbed is None or not undisturbed.state.attempts:
        return h
    *earlier, last = [a for a in evidence.state.attempts if a.started_at]
    whole_s, used_s = undisturbed.work_s, undisturbed.used_s(undisturbed.state.attempts[-1])
    if used_s > _BUSY * whole_s:
        what = "processor time"
        whole_s, worked_s = used_s, evidence.used_s(last)
        kept_s = sum(evidence.used_s(a, a.saved_at) for a in earlier)
    else:
        what = "time"
        worked_s, kept_s = evidence.worked_s(last), sum(_kept_s(evidence, a) for a in earlier)
    if not whole_s or kept_s < _KEPT_SHARE * whole_s:
        return h
    took = f"the last attempt took {worked_s / whole_s:.0%} of the {what} of an undisturbed run"
    return _by_amount(h, worked_s, whole_s, kept_s, took)


def _by_amount(h: Handover, done: float, whole: float, kept: float, text: str) -> Handover:
    """A resumed attempt does the rest, whole - kept; one that started over does the whole."""
    return replace(h, did_less=text) if done <= whole - kept / 2 else replace(h, did_all=text)


def _kept_s(evidence: Evidence, attempt: Attempt) -> float:
    """Return the committed working time of an attempt."""
    return max(0.0, attempt.saved_at - evidence.observed.signs.get(attempt.number, attempt.started_at))


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
    if committed.step is not None and _same_unit(committed, marks):
        return committed.step, committed.step, True
    # Of the files that were committed, not of a save during the commit.
    until = (committed.changed_at or committed.at) + _ROUNDING_S
    changes = sorted(at for at, _ in evidence.observed.writes.get(committed.attempt, []) if at <= until)
    if not changes:
        return None, None, False
    return _reported_by(marks, _began(changes)), _reported_by(marks, changes[-1]), False


def _same_unit(committed: Checkpoint, marks: list[StepMark]) -> bool:
    """Return whether the step in the name counts what the output counts: `model_3.pt` may be of an epoch."""
    if not marks:
        return True
    reported = _reported_by(marks, committed.changed_at) if committed.changed_at else None
    named = committed.step or 0
    return named <= marks[-1].step + 1 and (reported is None or named >= _UNIT * reported)


def _steps_per_save(evidence: Evidence, attempt: int) -> int:
    """Return the median number of reported steps between two checkpoints of an attempt; 0 if unknown."""
    marks = evidence.steps.get(attempt, [])
    known = [c.changed_at for c in evidence.checkpoints if c.attempt == attempt and c.changed_at]
    steps = [step for at in known if (step := _reported_by(marks, at)) is not None]
    return int(statistics.median(b - a for a, b in itertools.pairwise(steps))) if len(steps) > 1 else 0


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
