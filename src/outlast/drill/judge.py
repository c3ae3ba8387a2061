"""The verdicts of a drill: pure functions of the evidence."""

from __future__ import annotations

import itertools
import statistics

import msgspec

from outlast.drill.compare import compared, same_files, same_length
from outlast.drill.evidence import Evidence
from outlast.drill.findings import DrillPrices, Finding, Handover
from outlast.drill.handovers import handovers
from outlast.drill.resume_check import RESUMES, WHOLE_HINT, Case, resumes, right_step
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec

GCE_S, EC2_S = 30.0, 120.0
_KILLED = 137
# The measurement may exceed the interval a little.
_MARGIN = 1.5


def judge(
    spec: Spec,
    drilled: Evidence,
    *,
    undisturbed: Evidence | None,
    grace_s: float,
    tolerance: float,
    compare: bool = True,
) -> list[Finding]:
    """Return the findings, one per question.

    Without `compare`, the undisturbed run shows the amount of work; other results are a warning then.
    """
    passed = handovers(drilled, undisturbed)
    case = Case(
        path=spec.checkpoint.shown,
        written=drilled.observed.written,
        commits=drilled.saves,
        only_logs=drilled.observed.written and not drilled.observed.has_state,
        handovers=tuple(passed),
        failed=drilled.state.ending == "failed",
    )
    found = [finishes(drilled), resumes(case), right_step(case), work_lost(spec, drilled, passed)]
    found += last_save(passed, grace_s)
    found.append(saved_after_notice(passed))
    found.append(on_sigterm(passed))
    found += whole_checkpoints(passed)
    found += one_tracker_run(drilled)
    found.append(_moments(drilled))
    if undisturbed is not None and drilled.state.ending == "finished":
        found += [_compared(undisturbed, drilled, tolerance, asked=compare), *same_length(undisturbed, drilled)]
        found += same_files(undisturbed, drilled)
    return found


def _compared(undisturbed: Evidence, drilled: Evidence, tolerance: float, *, asked: bool) -> Finding:
    found = compared(undisturbed, drilled, tolerance)
    # The same program passes without an undisturbed run if it prints its steps.
    return found if asked or found.verdict != "fail" else msgspec.structs.replace(found, verdict="warn")


def finishes(drilled: Evidence) -> Finding:
    state, question = drilled.state, "finishes"
    if state.ending == "finished":
        count = len([a for a in state.attempts if a.started_at])
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        return Finding(question=question, verdict="pass", answer=f"after {attempts}")
    hint = state.hint or f"see `outlast logs {drilled.run}`"
    return Finding(question=question, verdict="fail", answer=f"it {state.ending}: {state.why}", hint=hint)


def work_lost(spec: Spec, drilled: Evidence, passed: list[Handover]) -> Finding:
    """Judge the lost work against the interval between two checkpoints, which a preemption without notice costs."""
    question = "work lost"
    if not passed:
        return Finding(question=question, verdict="skip", answer="it was never preempted")
    lost = [h.lost_s for h in passed]
    each = ", ".join(describe_s(s) for s in lost)
    steps = [h.repeated_steps for h in passed]
    if all(s is not None for s in steps):
        each += f" ({', '.join(str(s) for s in steps)} steps repeated)"
    interval_s = interval(spec, drilled)
    if interval_s is None:
        return Finding(question=question, verdict="note", answer=f"{each}; the interval is unknown")
    against = f"{each}; a checkpoint every {describe_s(interval_s)}"
    slow = [h for h in passed if h.notice and h.committed and h.lost_s > max(1.0, interval_s / 2)]
    if any(_lost_much(h, interval_s) for h in passed if h.committed):
        hint = "save more often, or complete saves sooner: write to a temporary name and rename"
        return Finding(question=question, verdict="warn", answer=against, hint=hint)
    if slow:
        hint = "save on SIGTERM: then a preemption with notice costs nothing"
        return Finding(question=question, verdict="warn", answer=against, hint=hint)
    return Finding(question=question, verdict="pass", answer=against)


def _lost_much(h: Handover, interval_s: float | None) -> bool:
    """Return whether more work than between two checkpoints was lost."""
    return h.lost_s > max(1.0, (interval_s or 0.0) * _MARGIN)


def interval(spec: Spec, drilled: Evidence) -> float | None:
    """Return the measured time between two commits of the same attempt; else `checkpoint.every`."""
    pairs = itertools.pairwise(drilled.checkpoints)
    gaps = [b.at - a.at for a, b in pairs if a.attempt == b.attempt]
    return statistics.median(gaps) if gaps else spec.checkpoint.every_s or None


def last_save(passed: list[Handover], grace_s: float) -> list[Finding]:
    """Judge whether the command exits within the grace of each cloud, as far as the grace of the drill shows it."""
    noticed = [h for h in passed if h.leave_s is not None]
    found = []
    for cloud, window_s in (("GCE", GCE_S), ("EC2", EC2_S)):
        question = f"last save fits {window_s:.0f} s ({cloud})"
        if not noticed:
            found.append(Finding(question=question, verdict="skip", answer="no preemption had a notice"))
            continue
        longest = max(noticed, key=lambda h: h.leave_s or 0.0)
        took_s = longest.leave_s or 0.0
        cut = longest.exit_code == _KILLED or longest.outcome not in ("preempted", "finished")
        found.append(_fits(question, took_s, cut=cut, window_s=window_s, grace_s=grace_s))
    return found


def _fits(question: str, took_s: float, *, cut: bool, window_s: float, grace_s: float) -> Finding:
    took = f"{describe_s(took_s)} from the notice to the end"
    if not cut and took_s <= window_s:
        return Finding(question=question, verdict="pass", answer=took)
    if cut and window_s > grace_s:
        hint = f"repeat the drill with --grace {window_s:.0f}s"
        answer = f"it still ran at the end of its grace of {describe_s(grace_s)}"
        return Finding(question=question, verdict="skip", answer=answer, hint=hint)
    hint = "save less or faster on SIGTERM, and exit; it was killed, and unsaved work was lost"
    answer = f"it still ran after {describe_s(took_s)}" if cut else took
    # A grace above this cloud's means that the user plans for another cloud.
    return Finding(question=question, verdict="fail" if window_s >= grace_s else "warn", answer=answer, hint=hint)


def saved_after_notice(passed: list[Handover]) -> Finding:
    """Judge whether checkpoints that were written after the notice were committed.

    A program that died of SIGTERM did not answer the notice: a write between the notice and its death is one of its
    usual saves, cut short. `work lost` judges what that costs.
    """
    question = "saved after the notice"
    noticed = [h for h in passed if h.notice]
    if not noticed:
        return Finding(question=question, verdict="skip", answer="no preemption had a notice")
    lost = [h for h in noticed if h.unsaved]
    died = [h for h in lost if h.died_of_sigterm]
    answered = [h for h in lost if h.saved_after_notice and h not in died]
    if answered:
        hint = "write to a temporary name and rename; let the handler of SIGTERM set a flag, and save after the step"
        first = answered[0]
        answer = f"attempt {first.attempt} wrote a checkpoint that was not committed: {first.unsaved}"
        return Finding(question=question, verdict="fail", answer=answer, hint=hint)
    if lost:
        hint = "handle SIGTERM: save, and exit"
        cause = "SIGTERM killed it during a save, and " if died else ""
        answer = f"{cause}{describe_s(max(h.lost_s for h in lost))} of work are lost: {lost[0].unsaved}"
        return Finding(question=question, verdict="warn", answer=answer, hint=hint)
    saved = sum(h.saved_after_notice for h in noticed)
    answer = f"{saved} of {len(noticed)} times, and committed" if saved else "it saves nothing on SIGTERM"
    return Finding(question=question, verdict="pass" if saved else "note", answer=answer)


def whole_checkpoints(passed: list[Handover]) -> list[Finding]:
    """Report checkpoints that were committed between two of their files."""
    split = next((h for h in passed if h.split), None)
    if split is None:
        return []
    newer, older = split.split
    return [
        Finding(
            question="whole checkpoints",
            verdict="warn",
            answer=f"`{split.committed}` was committed between two files of a save: after `{newer}`, before `{older}`",
            hint=WHOLE_HINT,
        )
    ]


def one_tracker_run(drilled: Evidence) -> list[Finding]:
    """Report attempts that began a run each in an experiment tracker."""
    ids = list(dict.fromkeys(drilled.trackers.values()))
    if not ids:
        return []
    question = "one tracker run"
    if len(ids) == 1:
        return [Finding(question=question, verdict="pass", answer=f"all attempts report to `{ids[0]}`")]
    hint = (
        'use one id for all attempts, such as OUTLAST_RUN: `wandb.init(id=os.environ["OUTLAST_RUN"], resume="allow")`'
    )
    answer = f"the attempts began {len(ids)} runs: {', '.join(f'`{one}`' for one in ids)}"
    return [Finding(question=question, verdict="warn", answer=answer, hint=hint)]


def on_sigterm(passed: list[Handover]) -> Finding:
    question = "on SIGTERM"
    codes = sorted({h.exit_code for h in passed if h.notice and h.exit_code is not None})
    if not codes:
        return Finding(question=question, verdict="skip", answer="no preemption had a notice")
    if 0 in codes:
        return Finding(
            question=question,
            verdict="note",
            answer="it exits with 0 while it is unfinished; outlast continues it all the same",
            hint="other schedulers treat that as success; exit with 143 there",
        )
    shown = ", ".join(str(code) for code in codes)
    return Finding(question=question, verdict="pass", answer=f"it exits with {shown}")


def _moments(drilled: Evidence) -> Finding:
    question = "moments"
    injected = len(drilled.observed.injected)
    count = "1 preemption" if injected == 1 else f"{injected} preemptions"
    if not injected:
        return Finding(
            question=question,
            verdict="fail",
            answer=f"it ended after {describe_s(drilled.work_s)}, before any preemption: nothing was tested",
            hint="let it train for half a minute at least",
        )
    remarks = [f"{injection.moment}: {why}" for injection, why in drilled.observed.missed]
    forced = [one.injection.moment for one in drilled.observed.injected if one.forced]
    remarks += [f"{moment}: the moment did not come in time, so it was preempted anyway" for moment in forced]
    answer = "; ".join([count, *remarks])
    return Finding(question=question, verdict="note" if remarks else "pass", answer=answer)


def cost(figures: DrillPrices) -> Finding:
    question = f"cost at a mean life of {describe_s(figures.mean_life_s)}"
    per_hour = figures.spot_usd_per_useful_hour
    lost = f"{describe_s(figures.recovery_s)} to recover and {describe_s(figures.lost_s)} of work at each preemption"
    if per_hour is None:
        hint = "save more often, or use machines that live longer"
        return Finding(question=question, verdict="warn", answer=f"it would never finish: {lost}", hint=hint)
    answer = (
        f"${per_hour:.4g} on spot against ${figures.on_demand_usd_per_hour:.4g} on demand for an hour of progress "
        f"({figures.saving:.0%} less); {lost}"
    )
    return Finding(question=question, verdict="note" if figures.saving > 0 else "warn", answer=answer)


def losses(passed: list[Handover]) -> tuple[float, float]:
    """Return the mean recovery and the mean lost work of a preemption."""
    if not passed:
        return 0.0, 0.0
    return statistics.mean(h.recovery_s for h in passed), statistics.mean(h.lost_s for h in passed)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a drill."""

    run: str
    undisturbed_run: str = ""
    passed: bool = False
    # No finding fails, and it is unknown whether the program resumes.
    undecided: bool = False
    findings: list[Finding] = []
    handovers: list[Handover] = []
    prices: DrillPrices | None = None


def report(
    drilled: Evidence, undisturbed: Evidence | None, findings: list[Finding], figures: DrillPrices | None
) -> Report:
    survives = all(f.verdict != "fail" for f in findings)
    undecided = any(f.question == RESUMES and f.verdict == "skip" for f in findings)
    return Report(
        run=drilled.run,
        undisturbed_run=undisturbed.run if undisturbed else "",
        passed=survives and not undecided,
        undecided=survives and undecided,
        findings=findings,
        handovers=handovers(drilled, undisturbed),
        prices=figures,
    )
