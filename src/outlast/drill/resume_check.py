"""Whether a drilled run resumed, and from the right step. Pure."""

from __future__ import annotations

import msgspec

from outlast.drill.findings import Finding, Handover
from outlast.drill.witnesses import Ruling, by_counts, by_numbers, rule

RESUMES, RIGHT_STEP = "resumes", "from the right step"
WHOLE_HINT = "write all files of a checkpoint into a temporary folder and rename it, or save one file"
# A program may save a step before or after it reports it.
_SLACK = 1
_HOW_TO_SHOW = (
    "print each step, such as `step 12/100 loss 0.25`, or log it with `outlast.training()`, or write the step into the "
    "name of the checkpoint; or repeat the drill with --compare"
)


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether a run resumed."""

    path: str
    written: bool
    commits: int
    handovers: tuple[Handover, ...]
    # Logs and settings were committed.
    only_logs: bool = False
    # It crashed too often, or was given up.
    failed: bool = False


def resumes(case: Case) -> Finding:
    if not case.handovers:
        return _failed("it was never preempted while it ran", "let it train longer")
    if not case.commits:
        return _nothing_saved(case)
    given = [h for h in case.handovers if h.committed]
    if not given:
        return _failed(
            "no preemption came after a checkpoint, so resuming was not tested",
            "save earlier, or wait longer for the first checkpoint with --wait",
        )
    empty = [h for h in given if not h.restored]
    if empty:
        return _failed(
            f"it started again from the beginning: `{empty[0].committed}` was committed but could not be restored",
            "see `outlast show` and the serial output of its machines; was the checkpoint damaged?",
        )
    if case.failed and not any(h.steps_after for h in given):
        return _failed(
            f"`{given[0].restored}` was restored, and the program failed before it reported a step",
            "see `outlast logs`: can it load its own checkpoint?",
        )
    rulings = [rule(h) for h in given]
    over = [r for r in rulings if r.says == "started over"]
    split = [h for h, r in zip(given, rulings, strict=True) if h.split and r.says == "started over"]
    resumed = [r for r in rulings if r.says == "resumed"]
    if over:
        when = "after every preemption" if not resumed else f"{len(over)} of {len(over) + len(resumed)} times"
        if split:
            newer, older = split[0].split
            reason = f"`{split[0].committed}` was committed after `{newer}` of a save, and before `{older}`"
            return _failed(f"it started again from the beginning {when}: {reason} ({over[-1].evidence})", WHOLE_HINT)
        reason = "its checkpoint was restored but ignored"
        if all(h.read and h.did_all for h, r in zip(given, rulings, strict=True) if r.says == "started over"):
            reason = "it read its checkpoint, and did all of the work again"
        answer = f"it started again from the beginning {when}: {reason}"
        return _failed(f"{answer} ({over[-1].evidence})", _how_to_resume(case, given))
    if resumed:
        return Finding(question=RESUMES, verdict="pass", answer="; ".join(dict.fromkeys(r.evidence for r in resumed)))
    return _undecided(given, rulings)


def _how_to_resume(case: Case, given: list[Handover]) -> str:
    if any(by_counts(h).says == "resumed" and by_numbers(h).says == "started over" for h in given):
        return "restore the weights and the optimizer with the step"
    if any(h.did_all and h.read for h in given):
        return "restore the step with the weights, and do only the steps that are left"
    option = f"{{resume:--resume {{newest:{_pattern(case.path)}}}}}"
    return (
        "read the checkpoint folder at the start: it holds the newest checkpoint when OUTLAST_RESUME is 1. If the "
        f"program has an option for that, add it to the command, such as `{option}`"
    )


def _pattern(path: str) -> str:
    if not path:
        return "$OUTLAST_CHECKPOINT_DIR/*"
    return path if "*" in path or "." in path.rpartition("/")[2] else f"{path.rstrip('/')}/*"


def _undecided(given: list[Handover], rulings: list[Ruling]) -> Finding:
    reached = [(h.reached_step, h.began_step) for h in given]
    early = all(step is not None and began is not None and step <= began + 1 for step, began in reached)
    seen = "; ".join(dict.fromkeys(r.evidence for r in rulings if r.evidence)) or "nothing shows whether it was used"
    why = "it was preempted too early to see whether the checkpoint was used" if early else seen
    return Finding(
        question=RESUMES,
        verdict="skip",
        answer=f"cannot tell: a checkpoint was restored, and {why}",
        hint="let it train longer" if early else _HOW_TO_SHOW,
    )


def _failed(answer: str, hint: str) -> Finding:
    return Finding(question=RESUMES, verdict="fail", answer=answer, hint=hint)


def _nothing_saved(case: Case) -> Finding:
    """Return why the run has no checkpoint: never stable, wrong folder, or not saved at all."""
    again = "it started again from the beginning after every preemption: nothing was restored, because "
    if case.only_logs:
        return _failed(
            f"{again}only logs and settings were written to the checkpoint folder",
            "save the state of the training there, and earlier; or wait longer for the first checkpoint with --wait",
        )
    if case.written:
        return _failed(
            f"{again}files in the checkpoint folder were never unchanged long enough to be committed",
            "write to a temporary name and rename, and close the files",
        )
    if case.path:
        return _failed(
            f"{again}nothing was ever written to `{case.path}`",
            "does it save there? `[checkpoint] path` is relative to the folder that the command runs in",
        )
    return _failed(
        f"{again}it saves nothing: no `[checkpoint] path` is set, and nothing was written to OUTLAST_CHECKPOINT_DIR",
        "save to the folder named by OUTLAST_CHECKPOINT_DIR, or set `[checkpoint] path` to the folder where it saves",
    )


def _has_ended(h: Handover) -> bool:
    """Return whether the attempt appended its end. Else it may have committed after its successor restored."""
    return h.outcome != "fenced"


def right_step(case: Case) -> Finding:
    """Judge whether only steps after the checkpoint were repeated."""
    older = [h for h in case.handovers if h.restored and h.restored != h.committed and _has_ended(h)]
    if older:
        return Finding(
            question=RIGHT_STEP,
            verdict="fail",
            answer=f"`{older[0].committed}` was committed, and the older `{older[0].restored}` was restored",
            hint="the newest checkpoint does not match its manifest; see the serial output of the machine",
        )
    judged = [h for h in case.handovers if h.committed_step is not None and not _counts_again(h)]
    behind = [h for h in judged if h.first_step is not None and _behind(h, h.committed_step)]
    if behind:
        worst = max(behind, key=lambda h: (h.committed_step or 0) - (h.first_step or 0))
        least = "" if worst.step_is_exact else "at least "
        return Finding(
            question=RIGHT_STEP,
            verdict="fail",
            answer=f"it continued at step {worst.first_step}, but step {least}{worst.committed_step} was committed",
            hint="load the newest checkpoint, not the best or the first one, and restore the step counter with it",
        )
    given = [h for h in case.handovers if h.committed]
    # The saved step is at most the last one reported, or the highest that the checkpoint may contain.
    known = [h for h in given if _continues_names(h) or not (_counts_again(h) or _behind(h, _highest_step(h)))]
    if not known:
        return Finding(question=RIGHT_STEP, verdict="skip", answer="the steps of checkpoints or output are unknown")
    answer = "no step in a checkpoint was repeated"
    if len(known) < len(given):
        answer += f", as far as the output shows ({len(known)} of {len(given)} preemptions)"
    return Finding(question=RIGHT_STEP, verdict="pass", answer=answer)


def _counts_again(h: Handover) -> bool:
    """Return whether a program that read its checkpoint counts from the beginning, as boosters do."""
    began = h.first_step is not None and h.began_step is not None and h.first_step <= h.began_step + _SLACK
    ruling = rule(h).says
    # While it is unknown whether it resumed, its count proves nothing: the drill compares the work first.
    return began and (ruling == "resumed" or (ruling == "nothing" and bool(h.read)))


def _continues_names(h: Handover) -> bool:
    """Return whether its first new checkpoint is named after a later step than the restored one."""
    return h.named_step is not None and h.next_named_step is not None and h.next_named_step > h.named_step


def _behind(h: Handover, step: int | None) -> bool:
    """Return whether it continued before this step. A save in the background holds an earlier step than the last one.

    A program that loads another checkpoint than the newest one is behind by the steps between two checkpoints.
    """
    slack = _SLACK if h.step_is_exact else max(_SLACK, h.steps_per_save // 2)
    return step is None or h.first_step is None or step - h.first_step > slack


def _highest_step(h: Handover) -> int | None:
    """Return the highest step that its checkpoint may contain, as far as it is known."""
    return h.reached_step if h.reached_step is not None else h.last_step
