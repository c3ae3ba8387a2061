"""The verdicts of a drill: pure functions of what happened. No IO, no clock, no printing."""

from __future__ import annotations

import itertools
import statistics

import msgspec

from outlast.drill.compare import compared
from outlast.drill.evidence import Evidence
from outlast.drill.findings import DrillPrices, Finding, Handover
from outlast.drill.handovers import handovers
from outlast.drill.resume_check import Case, resumes, right_step
from outlast.spec.quantity import describe_s
from outlast.spec.spec import Spec

GCE_S, EC2_S = 30.0, 120.0
_KILLED = 137
# Losing a little more than an interval is the way of measuring it.
_MORE = 1.5


def judge(
    spec: Spec, drilled: Evidence, *, undisturbed: Evidence | None, grace_s: float, tolerance: float
) -> list[Finding]:
    """Every question, in the order in which one would ask."""
    passed = handovers(drilled)
    case = Case(
        path=spec.checkpoint.shown,
        written=drilled.seen.written,
        commits=len(drilled.state.checkpoints),
        handovers=tuple(passed),
        whole_s=undisturbed.work_s if undisturbed else None,
        last_s=_last_s(drilled),
        kept_s=_kept_s(drilled),
        failed=drilled.state.ending == "failed",
    )
    found = [finishes(drilled), resumes(case), right_step(case), work_lost(spec, drilled, passed)]
    found += last_save(passed, grace_s)
    found.append(saved_after_notice(passed))
    found.append(on_sigterm(passed))
    found.append(_moments(drilled))
    if undisturbed is not None and drilled.state.ending == "finished":
        found.append(compared(undisturbed, drilled, tolerance))
    return found


def _last_s(drilled: Evidence) -> float:
    last = next((a for a in reversed(drilled.state.attempts) if a.started_at), None)
    return last.over_at - last.started_at if last else 0.0


def _kept_s(drilled: Evidence) -> float:
    """The work of all attempts but the last, until their last commit."""
    started = [a for a in drilled.state.attempts if a.started_at]
    return sum(max(0.0, a.saved_at - a.started_at) for a in started[:-1])


def finishes(drilled: Evidence) -> Finding:
    state, question = drilled.state, "finishes"
    if state.ending == "finished":
        count = len([a for a in state.attempts if a.started_at])
        attempts = "1 attempt" if count == 1 else f"{count} attempts"
        return Finding(question=question, verdict="pass", answer=f"after {attempts}")
    hint = state.hint or f"see `outlast logs {drilled.run}`"
    return Finding(question=question, verdict="fail", answer=f"it {state.ending}: {state.why}", hint=hint)


def work_lost(spec: Spec, drilled: Evidence, passed: list[Handover]) -> Finding:
    """Against the interval between two checkpoints: nobody can ask to lose less when no notice comes."""
    question = "work lost"
    if not passed:
        return Finding(question=question, verdict="skip", answer="it was never taken away")
    lost = [h.lost_s for h in passed]
    each = ", ".join(describe_s(s) for s in lost)
    steps = [h.repeated_steps for h in passed]
    if all(s is not None for s in steps):
        each += f" ({', '.join(str(s) for s in steps)} steps done again)"
    interval_s = interval(spec, drilled)
    if interval_s is None:
        return Finding(question=question, verdict="note", answer=f"{each}; the interval is unknown")
    against = f"{each}; a checkpoint every {describe_s(interval_s)}"
    slow = [h for h in passed if h.notice and h.committed and h.lost_s > max(1.0, interval_s / 2)]
    if any(h.lost_s > max(1.0, interval_s * _MORE) for h in passed if h.committed):
        hint = "save more often, or make saves whole sooner: write to a temporary name and rename"
        return Finding(question=question, verdict="warn", answer=against, hint=hint)
    if slow:
        hint = "save when SIGTERM comes: then a preemption with a notice costs nothing"
        return Finding(question=question, verdict="warn", answer=against, hint=hint)
    return Finding(question=question, verdict="pass", answer=against)


def interval(spec: Spec, drilled: Evidence) -> float | None:
    """Between two commits of the same attempt, as measured; else as asked for."""
    pairs = itertools.pairwise(drilled.state.checkpoints)
    gaps = [b.at - a.at for a, b in pairs if a.attempt == b.attempt]
    return statistics.median(gaps) if gaps else spec.checkpoint.every_s or None


def last_save(passed: list[Handover], grace_s: float) -> list[Finding]:
    """Did it leave in the time that the clouds give? Longer than the grace of the drill cannot be measured."""
    told = [h for h in passed if h.leave_s is not None]
    found = []
    for cloud, window_s in (("GCE", GCE_S), ("EC2", EC2_S)):
        question = f"last save fits {window_s:.0f} s ({cloud})"
        if not told:
            found.append(Finding(question=question, verdict="skip", answer="no preemption came with a notice"))
            continue
        longest = max(told, key=lambda h: h.leave_s or 0.0)
        took_s = longest.leave_s or 0.0
        cut = longest.exit_code == _KILLED or longest.outcome not in ("preempted", "finished")
        found.append(_fits(question, took_s, cut=cut, window_s=window_s, grace_s=grace_s))
    return found


def _fits(question: str, took_s: float, *, cut: bool, window_s: float, grace_s: float) -> Finding:
    took = f"{describe_s(took_s)} from the notice to the last word"
    if not cut and took_s <= window_s:
        return Finding(question=question, verdict="pass", answer=took)
    if cut and window_s > grace_s:
        hint = f"see with --grace {window_s:.0f}s"
        answer = f"it was still at it when its {describe_s(grace_s)} were over"
        return Finding(question=question, verdict="skip", answer=answer, hint=hint)
    hint = "leave when SIGTERM comes: save, less or faster, and exit; it was killed with whatever it had not saved"
    answer = f"it was still at it after {describe_s(took_s)}" if cut else took
    # Who gives it more time than this cloud does has another cloud in mind.
    return Finding(question=question, verdict="fail" if window_s >= grace_s else "warn", answer=answer, hint=hint)


def saved_after_notice(passed: list[Handover]) -> Finding:
    """Judge the promise that a checkpoint which is written after the notice counts."""
    question = "saved after the notice"
    noticed = [h for h in passed if h.notice]
    if not noticed:
        return Finding(question=question, verdict="skip", answer="no preemption came with a notice")
    lost = [h for h in noticed if h.unsaved]
    if any(h.saved_after_notice for h in lost):
        hint = "write to a temporary name and rename; let the handler of SIGTERM set a flag, and save after the step"
        answer = f"attempt {lost[0].attempt} wrote a checkpoint that was not committed: {lost[0].unsaved}"
        return Finding(question=question, verdict="fail", answer=answer, hint=hint)
    if lost:
        hint = "handle SIGTERM: save, and exit"
        return Finding(question=question, verdict="warn", answer=f"not committed: {lost[0].unsaved}", hint=hint)
    saved = sum(h.saved_after_notice for h in noticed)
    answer = f"{saved} of {len(noticed)} times, and committed" if saved else "it saves nothing on SIGTERM"
    return Finding(question=question, verdict="pass" if saved else "note", answer=answer)


def on_sigterm(passed: list[Handover]) -> Finding:
    question = "on SIGTERM"
    codes = sorted({h.exit_code for h in passed if h.notice and h.exit_code is not None})
    if not codes:
        return Finding(question=question, verdict="skip", answer="no preemption came with a notice")
    if 0 in codes:
        return Finding(
            question=question,
            verdict="note",
            answer="it exits with 0 while it is unfinished; outlast knows that it is not done, and goes on",
            hint="other schedulers take that for success; exit with 143 there",
        )
    told = ", ".join(str(code) for code in codes)
    return Finding(question=question, verdict="pass", answer=f"it exits with {told}")


def _moments(drilled: Evidence) -> Finding:
    question, missed = "moments", drilled.seen.missed
    struck = len(drilled.seen.struck)
    count = "1 preemption" if struck == 1 else f"{struck} preemptions"
    if not struck:
        return Finding(
            question=question,
            verdict="fail",
            answer=f"it was over after {describe_s(drilled.work_s)}, before it could be preempted: nothing was tried",
            hint="let it train for longer: for half a minute at least",
        )
    forced = [s.blow.moment for s in drilled.seen.struck if s.forced]
    told = [f"{blow.moment}: {why}" for blow, why in missed]
    told += [f"{moment}: it did not come in time, and was struck all the same" for moment in forced]
    answer = "; ".join([count, *told])
    return Finding(question=question, verdict="note" if told else "pass", answer=answer)


def cost(figures: DrillPrices) -> Finding:
    question = f"cost at a mean life of {describe_s(figures.mean_life_s)}"
    per_hour = figures.spot_usd_per_useful_hour
    lost = f"{describe_s(figures.recovery_s)} to recover and {describe_s(figures.lost_s)} of work at each preemption"
    if per_hour is None:
        hint = "save more often, or use machines that live longer"
        return Finding(question=question, verdict="warn", answer=f"it would never end: {lost}", hint=hint)
    answer = (
        f"${per_hour:.4g} on spot against ${figures.on_demand_usd_per_hour:.4g} on demand for an hour of progress "
        f"({figures.saving:.0%} less); {lost}"
    )
    return Finding(question=question, verdict="note" if figures.saving > 0 else "warn", answer=answer)


def losses(passed: list[Handover]) -> tuple[float, float]:
    """Mean recovery and mean work lost of a preemption."""
    if not passed:
        return 0.0, 0.0
    return statistics.mean(h.recovery_s for h in passed), statistics.mean(h.lost_s for h in passed)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that a drill has to say."""

    run: str
    undisturbed_run: str = ""
    passed: bool = False
    findings: list[Finding] = []
    handovers: list[Handover] = []
    prices: DrillPrices | None = None


def report(
    drilled: Evidence, undisturbed: Evidence | None, findings: list[Finding], figures: DrillPrices | None
) -> Report:
    return Report(
        run=drilled.run,
        undisturbed_run=undisturbed.run if undisturbed else "",
        passed=all(f.verdict != "fail" for f in findings),
        findings=findings,
        handovers=handovers(drilled),
        prices=figures,
    )
