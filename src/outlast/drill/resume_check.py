"""Whether a drilled run resumed, and from the right step. Pure."""

from __future__ import annotations

import msgspec

from outlast.drill.findings import Finding, Handover

RESUMES, RIGHT_STEP = "resumes", "from the right step"
# A checkpoint must be this many steps past the first one, or a fresh start cannot be recognised.
_FEW = 1
# A program may save a step before or after it reports it.
_SLACK = 1
# This share of the work must have been committed before durations show whether it was repeated.
_KEPT_SHARE = 0.2


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that decide whether a run resumed."""

    path: str
    written: bool
    commits: int
    handovers: tuple[Handover, ...]
    # The duration of an undisturbed run, if there was one, and of the last attempt.
    undisturbed_s: float | None = None
    last_s: float = 0.0
    # The working time in the restored checkpoints.
    kept_s: float = 0.0
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
    decisive = [h for h in given if _is_decisive(h)]
    if not decisive and case.failed:
        return _failed(
            f"`{given[0].restored}` was restored, and the program failed before it reported a step",
            "see `outlast logs`: can it load its own checkpoint?",
        )
    if not decisive:
        return _by_duration(case, given)
    ignored = [h for h in decisive if _started_over(h)]
    if ignored:
        when = "after every preemption" if len(ignored) == len(decisive) else f"{len(ignored)} of {len(decisive)} times"
        reached = max(max(h.last_step or 0, h.reached_step or 0) for h in ignored)
        return _failed(
            f"it started again from the beginning {when}: its checkpoint was restored but ignored (step "
            f"{ignored[-1].first_step} again after step {reached})",
            "read the checkpoint folder at the start: it holds the newest checkpoint when OUTLAST_RESUME is 1",
        )
    # An attempt that was preempted before it reported a step has no last one.
    steps = ", ".join(f"{h.first_step}" + (f" after {h.last_step}" if h.last_step else "") for h in decisive)
    return Finding(question=RESUMES, verdict="pass", answer=f"continued at step {steps}")


def _failed(answer: str, hint: str) -> Finding:
    return Finding(question=RESUMES, verdict="fail", answer=answer, hint=hint)


def _nothing_saved(case: Case) -> Finding:
    """Return why the run has no checkpoint: never stable, wrong folder, or not saved at all."""
    again = "it started again from the beginning after every preemption: nothing was restored, because "
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


def _is_decisive(h: Handover) -> bool:
    """Return whether a fresh start would be recognised: steps are reported, and the checkpoint is past the first."""
    if h.first_step is None or h.began_step is None:
        return False
    # A fresh start reports the same first step as the first attempt.
    return h.first_step > h.began_step or (h.reached_step is not None and h.reached_step > h.began_step + _FEW)


def _started_over(h: Handover) -> bool:
    return h.first_step is not None and h.began_step is not None and h.first_step <= h.began_step


def _by_duration(case: Case, given: list[Handover]) -> Finding:
    """Judge a program that reports no steps by its duration: a resumed attempt takes less time."""
    steps = any(h.first_step is not None for h in given)
    if steps or case.undisturbed_s is None or case.kept_s < _KEPT_SHARE * case.undisturbed_s:
        why = (
            "it was preempted too early to see whether the checkpoint was used"
            if steps
            else "nothing shows whether it was used"
        )
        return Finding(
            question=RESUMES,
            verdict="warn",
            answer=f"a checkpoint was restored; {why}",
            hint="let it train longer" if steps else _how_to_show(case),
        )
    if case.last_s > case.undisturbed_s - case.kept_s / 2:
        return _failed(
            f"checkpoints were restored {len(given)} times, but the last attempt took as long as an undisturbed run: "
            "restored but ignored",
            "read the checkpoint folder at the start: it holds the newest checkpoint when OUTLAST_RESUME is 1",
        )
    share = case.last_s / case.undisturbed_s
    return Finding(question=RESUMES, verdict="pass", answer=f"the last attempt took {share:.0%} of an undisturbed run")


def _how_to_show(case: Case) -> str:
    if case.undisturbed_s is None:
        return "print steps, such as `step 12/100`, or use --compare"
    return "print steps, such as `step 12/100`, or let it train longer"


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
    judged = [h for h in case.handovers if h.committed_step is not None and h.first_step is not None]
    behind = [h for h in judged if _behind(h, h.committed_step)]
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
    known = [h for h in given if not _behind(h, _highest_step(h))]
    if not known:
        return Finding(question=RIGHT_STEP, verdict="skip", answer="the steps of checkpoints or output are unknown")
    answer = "no step in a checkpoint was repeated"
    if len(known) < len(given):
        answer += f", as far as the output shows ({len(known)} of {len(given)} preemptions)"
    return Finding(question=RIGHT_STEP, verdict="pass", answer=answer)


def _behind(h: Handover, step: int | None) -> bool:
    return step is None or h.first_step is None or step - h.first_step > _SLACK


def _highest_step(h: Handover) -> int | None:
    """Return the highest step that its checkpoint may contain, as far as it is known."""
    return h.reached_step if h.reached_step is not None else h.last_step
