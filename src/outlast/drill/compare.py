"""Comparison of an undisturbed run with a drilled one: final numbers and curves, within a tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from outlast.drill.evidence import Curves, Evidence
from outlast.drill.findings import Finding
from outlast.drill.numbers import LAST, depends_on_training, is_metric, varying
from outlast.drill.steps import PERCENT

QUESTION = "same result as undisturbed"
_HINT = (
    "save everything that the next step depends on: optimizer, learning-rate schedule, shuffling order and random "
    "states. If two undisturbed runs differ as well, fix the seeds, or allow it with --tolerance"
)

_PRINT = 'end with a line of JSON such as {"loss": 0.25}, or write the numbers to the output folder'


class ResultDifference(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    undisturbed: float
    drilled: float

    @property
    def relative(self) -> float:
        largest = max(abs(self.undisturbed), abs(self.drilled))
        return abs(self.undisturbed - self.drilled) / largest if largest else 0.0


def close(a: float, b: float, tolerance: float) -> bool:
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-12)


def differences(
    undisturbed: Mapping[str, float], drilled: Mapping[str, float], tolerance: float
) -> list[ResultDifference]:
    """Return the numbers that differ by more than the tolerance, the largest difference first."""
    found = [
        ResultDifference(name=name, undisturbed=undisturbed[name], drilled=drilled[name])
        for name in undisturbed
        if name in drilled and not close(undisturbed[name], drilled[name], tolerance)
    ]
    return sorted(found, key=lambda d: (-d.relative, d.name))


def first_apart(undisturbed: Curves, drilled: Curves, tolerance: float) -> tuple[int, str] | None:
    """Return the first step at which a curve differs, and the curve's name."""
    apart = [
        (step, name)
        for name, points in undisturbed.items()
        for step, value in points.items()
        if step in drilled.get(name, {}) and not close(value, drilled[name][step], tolerance)
    ]
    return min(apart, default=None)


def differs_undisturbed(
    undisturbed: Evidence, drilled: Evidence, tolerance: float
) -> dict[str, tuple[int, float, float]]:
    """Return the curves that differ in attempts without a restore, with the first step and both values there."""
    fresh = {a.number for a in drilled.state.attempts if not a.resumed_from}
    found: dict[str, tuple[int, float, float]] = {}
    for number in sorted(fresh & drilled.own_curves.keys()):
        for name, points in drilled.own_curves[number].items():
            known = undisturbed.curves.get(name, {})
            for step, value in points.items():
                if step in known and not close(known[step], value, tolerance):
                    found.setdefault(name, (step, known[step], value))
    return found


def aligned(undisturbed: Evidence, drilled: Evidence) -> Curves:
    """Return the curves by the steps of the undisturbed run: a booster that continues counts from 0 again.

    The last attempt ends where the undisturbed run ends; where others continued is unknown.
    """
    whole, attempts = undisturbed.last_mark, {a.number: a for a in drilled.state.attempts}
    first = undisturbed_first(undisturbed)
    again = [
        number
        for number, marks in drilled.steps.items()
        if marks and number in attempts and attempts[number].resumed_from and marks[0].step <= first + 1
    ]
    if whole is None or not again or not 0 < drilled.last_span < undisturbed.last_span:
        return drilled.curves
    found: Curves = {}
    for number, curves in sorted(drilled.own_curves.items()):
        marks = drilled.steps.get(number) or []
        if number in again and (number != max(drilled.steps) or whole.word != marks[-1].word):
            continue
        offset = whole.step - marks[-1].step if number in again else 0
        for name, points in curves.items():
            found.setdefault(name, {}).update({step + offset: value for step, value in points.items()})
    return found


def _without(evidence: Evidence, names: Collection[str]) -> Evidence:
    """Return the evidence without curves and final numbers of these names."""
    results = {name: value for name, value in evidence.results.items() if name.removesuffix(LAST) not in names}
    curves = {name: points for name, points in evidence.curves.items() if name not in names}
    return replace(evidence, results=results, curves=curves)


def compared(undisturbed: Evidence, drilled: Evidence, tolerance: float) -> Finding:
    """Judge whether the preemptions changed the results: then the program keeps state outside its checkpoints.

    Before the first restore both runs are undisturbed: what differs there is a rate or an unseeded result.
    """
    noisy = differs_undisturbed(undisturbed, drilled, tolerance)
    unseeded = next((name for name in sorted(noisy, key=lambda name: "loss" not in name) if is_metric(name)), "")
    if unseeded:
        step, one, other = noisy[unseeded]
        return Finding(
            question=QUESTION,
            verdict="warn",
            answer=f"cannot compare: `{unseeded}` is {other:.6g} and {one:.6g} at step {step}, before any restore",
            hint="fix the seeds, so that two undisturbed runs agree; or allow the difference with --tolerance",
        )
    drilled = replace(drilled, curves=aligned(undisturbed, drilled))
    undisturbed, drilled = _without(undisturbed, noisy), _without(drilled, noisy)
    shared = undisturbed.results.keys() & drilled.results.keys()
    points = sum(len(p.keys() & drilled.curves.get(name, {}).keys()) for name, p in undisturbed.curves.items())
    if not shared and not points:
        return Finding(
            question=QUESTION,
            verdict="warn",
            answer="nothing to compare: the last lines, the outputs and the metrics contain no number",
            hint=_PRINT,
        )
    apart = first_apart(undisturbed.curves, drilled.curves, tolerance)
    found = differences(undisturbed.results, drilled.results, tolerance)
    if not found and apart is None:
        return _same(undisturbed, drilled, points, tolerance)
    texts = []
    if found:
        worst = found[0]
        texts.append(
            f"{len(found)} of {len(shared)} final numbers differ: `{worst.name}` is {worst.drilled:.6g} and "
            f"{worst.undisturbed:.6g} undisturbed"
        )
    if apart is not None:
        texts.append(f"the curve of `{apart[1]}` differs from step {apart[0]} on{_after(drilled, apart[0])}")
    longer = bool(same_length(undisturbed, drilled))
    reason = "it trained longer: " if longer else "it keeps state that no checkpoint holds: "
    return Finding(question=QUESTION, verdict="fail", answer=reason + "; ".join(texts), hint=_HINT)


def _same(undisturbed: Evidence, drilled: Evidence, points: int, tolerance: float) -> Finding:
    """Pass only if a number was compared that depends on the training."""
    shared = undisturbed.results.keys() & drilled.results.keys()
    both = {n: {s: v for s, v in p.items() if s in drilled.curves.get(n, {})} for n, p in undisturbed.curves.items()}
    proof = [f"`{name}`" for name in varying(both)]
    # A final number without a curve: a fraction, or a name such as `loss`, is a result rather than a setting.
    proof = proof or [f"`{n}`" for n in sorted(shared) if depends_on_training(n, undisturbed.results[n])]
    curve = f" and {points} points of the curve" if points else ""
    numbers = f"{len(shared)} final number{'' if len(shared) == 1 else 's'}"
    answer = f"{numbers}{curve} are the same within {tolerance:g}"
    if proof:
        return Finding(question=QUESTION, verdict="pass", answer=f"{answer}, among them {', '.join(proof[:3])}")
    return Finding(
        question=QUESTION,
        verdict="warn",
        answer=f"{answer}, but none of them changes over the training: nothing was compared",
        hint=_PRINT,
    )


def same_length(undisturbed: Evidence, drilled: Evidence) -> list[Finding]:
    """Report a training that went on longer than the undisturbed one: it added steps instead of doing the rest."""
    whole, last = undisturbed.last_mark, drilled.last_mark
    if whole is None or last is None or whole.word != last.word or whole.word == PERCENT:
        return []
    span, number = drilled.last_span, max(drilled.steps)
    first = next((mark.step for mark in drilled.steps[number]), None)
    resumed = any(number in seen for seen in (drilled.observed.read, drilled.observed.unread)) and number > 1
    # A program that counts from the beginning again, and continues a checkpoint, did these steps on top of it.
    kept = [m for a in drilled.state.attempts for m in drilled.steps.get(a.number, []) if m.at <= a.saved_at]
    begins = first is not None and first <= undisturbed_first(undisturbed)
    on_top = number in drilled.observed.read and begins and len(kept) > 1
    if last.step > whole.step + 1:
        answer = f"it went on to step {last.step}; undisturbed it ends at step {whole.step}"
    elif resumed and on_top and span >= undisturbed.last_span:
        answer = f"it did all {span} steps again on top of its checkpoint"
    else:
        return []
    hint = "do only the steps that are left: total - done"
    return [Finding(question="same length", verdict="fail", answer=answer, hint=hint)]


def undisturbed_first(undisturbed: Evidence) -> int:
    """Return the first step of an undisturbed run."""
    return next((marks[0].step for _, marks in sorted(undisturbed.steps.items()) if marks), 0)


def same_files(undisturbed: Evidence, drilled: Evidence) -> list[Finding]:
    """Report output files that only one of the two runs has."""
    missing, extra = sorted(undisturbed.files - drilled.files), sorted(drilled.files - undisturbed.files)
    if not missing and not extra:
        return []
    texts = [f"{len(missing)} are missing, such as `{missing[0]}`"] if missing else []
    texts += [f"{len(extra)} exist only after preemptions, such as `{extra[0]}`"] if extra else []
    return [
        Finding(
            question="same files",
            verdict="warn",
            answer="the outputs differ: " + "; ".join(texts),
            hint="write results at the end, or keep them in the checkpoint folder; a name with a time is always new",
        )
    ]


def _after(drilled: Evidence, step: int) -> str:
    """Name the last attempt that reported this step, if it is a resumed one: the resume is the cause."""
    for number in sorted(drilled.steps, reverse=True):
        if number > 1 and any(mark.step == step for mark in drilled.steps[number]):
            first = drilled.steps[number][0].step
            return f", after attempt {number} began at step {first}"
    return ""
