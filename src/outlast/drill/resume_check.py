"""Did it resume, and from the right step? The heart of a drill. Pure."""

from __future__ import annotations

import msgspec

from outlast.drill.findings import Finding, Handover

RESUMES, RIGHT_STEP = "resumes", "from the right step"
# Steps from the beginning that a checkpoint must be past before a start at the beginning tells anything.
_FEW = 1
# A program may save a step before or after it tells of it.
_SLACK = 1
# So much of the whole must have been saved before time tells whether it was done again.
_KEPT = 0.2


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What the question is decided by."""

    path: str
    written: bool
    commits: int
    handovers: tuple[Handover, ...]
    # How long an undisturbed run took, if there was one, and how long the last attempt took.
    whole_s: float | None = None
    last_s: float = 0.0
    # The work that the restored checkpoints held.
    kept_s: float = 0.0
    # It crashed too often, or was given up.
    failed: bool = False


def resumes(case: Case) -> Finding:
    if not case.handovers:
        return _failed("it was never taken away while it ran", "let it train for longer")
    if not case.commits:
        return _nothing_saved(case)
    given = [h for h in case.handovers if h.committed]
    if not given:
        return _failed(
            "no preemption came after a checkpoint, so resuming was not tried",
            "save earlier, or wait longer for the first checkpoint with --wait",
        )
    empty = [h for h in given if not h.restored]
    if empty:
        return _failed(
            f"it started again from the beginning: `{empty[0].committed}` was committed, and could not be restored",
            "see `outlast show` and the serial output of its machines; was the checkpoint damaged?",
        )
    telling = [h for h in given if _telling(h)]
    if not telling and case.failed:
        return _failed(
            f"`{given[0].restored}` was restored, and it failed before it told of a step",
            "see `outlast logs`: can it load what it has saved?",
        )
    if not telling:
        return _by_the_clock(case, given)
    ignored = [h for h in telling if _from_the_beginning(h)]
    if ignored:
        when = "after every preemption" if len(ignored) == len(telling) else f"{len(ignored)} of {len(telling)} times"
        reached = max(max(h.last_step or 0, h.reached_step or 0) for h in ignored)
        return _failed(
            f"it started again from the beginning {when}: its checkpoint was restored but ignored (step "
            f"{ignored[-1].first_step} again, and {reached} was reached before)",
            "read the checkpoint folder at the start: it holds the newest checkpoint when OUTLAST_RESUME is 1",
        )
    # One that was taken away again before it told of a step has no last one.
    steps = ", ".join(f"{h.first_step}" + (f" after {h.last_step}" if h.last_step else "") for h in telling)
    return Finding(question=RESUMES, verdict="pass", answer=f"went on at step {steps}")


def _failed(answer: str, hint: str) -> Finding:
    return Finding(question=RESUMES, verdict="fail", answer=answer, hint=hint)


def _nothing_saved(case: Case) -> Finding:
    """Three ways to have no checkpoint, and what to do about each."""
    again = "it started again from the beginning after every preemption: nothing was restored, because "
    if case.written:
        return _failed(
            f"{again}files were written to the checkpoint folder, and never stood still long enough to be committed",
            "write to a temporary name and rename, and close what is written",
        )
    if case.path:
        return _failed(
            f"{again}nothing was ever written to `{case.path}`",
            "is that where it saves? `[checkpoint] path` is below the folder that the command runs in",
        )
    return _failed(
        f"{again}it saves nothing: no `[checkpoint] path` is set, and nothing was written to OUTLAST_CHECKPOINT_DIR",
        "save to the folder named by OUTLAST_CHECKPOINT_DIR, or say with `[checkpoint] path` where it saves",
    )


def _telling(h: Handover) -> bool:
    """Whether a start at the beginning would have been seen: steps are told, and the checkpoint was past the first."""
    if h.first_step is None or h.began_step is None:
        return False
    # Who begins anew tells the same first step as the first time.
    return h.first_step > h.began_step or (h.reached_step is not None and h.reached_step > h.began_step + _FEW)


def _from_the_beginning(h: Handover) -> bool:
    return h.first_step is not None and h.began_step is not None and h.first_step <= h.began_step


def _by_the_clock(case: Case, given: list[Handover]) -> Finding:
    """A program that tells no steps: what was done once need not be done again, so the rest takes less time."""
    steps = any(h.first_step is not None for h in given)
    if steps or case.whole_s is None or case.kept_s < _KEPT * case.whole_s:
        why = (
            "it was taken away too early to see whether it was used"
            if steps
            else "whether it was used is not to be seen"
        )
        return Finding(
            question=RESUMES,
            verdict="warn",
            answer=f"a checkpoint was restored; {why}",
            hint="let it train for longer" if steps else _how_to_tell(case),
        )
    if case.last_s > case.whole_s - case.kept_s / 2:
        return _failed(
            f"it was given checkpoints {len(given)} times, and its last attempt took as long as all of an undisturbed "
            "run: restored but ignored",
            "read the checkpoint folder at the start: it holds the newest checkpoint when OUTLAST_RESUME is 1",
        )
    share = case.last_s / case.whole_s
    return Finding(question=RESUMES, verdict="pass", answer=f"the last attempt took {share:.0%} of an undisturbed run")


def _how_to_tell(case: Case) -> str:
    if case.whole_s is None:
        return "print steps, such as `step 12/100`, or use --compare"
    return "print steps, such as `step 12/100`, or let it train for longer"


def _heard(h: Handover) -> bool:
    """One that did not say its last word may have committed while its successor was about to start, which then has
    been given more than it said."""
    return h.outcome != "fenced"


def right_step(case: Case) -> Finding:
    """It may do again what was after the checkpoint, and nothing before it."""
    older = [h for h in case.handovers if h.restored and h.restored != h.committed and _heard(h)]
    if older:
        return Finding(
            question=RIGHT_STEP,
            verdict="fail",
            answer=f"`{older[0].committed}` was committed, and the older `{older[0].restored}` was restored",
            hint="the newest checkpoint did not hold what its manifest says; see the serial output of the machine",
        )
    judged = [h for h in case.handovers if h.committed_step is not None and h.first_step is not None]
    behind = [h for h in judged if _behind(h, h.committed_step)]
    if behind:
        worst = max(behind, key=lambda h: (h.committed_step or 0) - (h.first_step or 0))
        least = "" if worst.surely else "at least "
        return Finding(
            question=RIGHT_STEP,
            verdict="fail",
            answer=f"it went on at step {worst.first_step}, and step {least}{worst.committed_step} was committed",
            hint="load the newest checkpoint, not the best or the first one, and restore the step counter with it",
        )
    given = [h for h in case.handovers if h.committed]
    # What it told last, or what it may have saved, is no less than what it saved: who goes on there is right.
    known = [h for h in given if not _behind(h, _most(h))]
    if not known:
        return Finding(question=RIGHT_STEP, verdict="skip", answer="the steps of checkpoints and output are not known")
    answer = "nothing was done again that a checkpoint held"
    if len(known) < len(given):
        answer += f", as far as can be told ({len(known)} of {len(given)} preemptions)"
    return Finding(question=RIGHT_STEP, verdict="pass", answer=answer)


def _behind(h: Handover, step: int | None) -> bool:
    return step is None or h.first_step is None or step - h.first_step > _SLACK


def _most(h: Handover) -> int | None:
    """The latest step that its checkpoint can hold, as far as it is known."""
    return h.reached_step if h.reached_step is not None else h.last_step
