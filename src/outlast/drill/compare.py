"""Comparison of an undisturbed run with a drilled one: final numbers and curves, within a tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from outlast.drill.evidence import Curves, Evidence
from outlast.drill.findings import Finding

QUESTION = "same result as undisturbed"
_HINT = (
    "save everything that the next step depends on: optimizer, learning-rate schedule, shuffling order and random "
    "states. If two undisturbed runs differ as well, fix the seeds, or allow it with --tolerance"
)


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


def compared(undisturbed: Evidence, drilled: Evidence, tolerance: float) -> Finding:
    """Judge whether the preemptions changed the results: then the program keeps state outside its checkpoints."""
    shared = undisturbed.results.keys() & drilled.results.keys()
    points = sum(len(p.keys() & drilled.curves.get(name, {}).keys()) for name, p in undisturbed.curves.items())
    if not shared and not points:
        return Finding(
            question=QUESTION,
            verdict="warn",
            answer="nothing to compare: the last lines, the outputs and the metrics contain no number",
            hint='end with a line of JSON such as {"loss": 0.25}, or write the numbers to the output folder',
        )
    apart = first_apart(undisturbed.curves, drilled.curves, tolerance)
    found = differences(undisturbed.results, drilled.results, tolerance)
    if not found and apart is None:
        curve = f" and {points} points of the curve" if points else ""
        numbers = f"{len(shared)} final number{'' if len(shared) == 1 else 's'}"
        return Finding(question=QUESTION, verdict="pass", answer=f"{numbers}{curve} are the same within {tolerance:g}")
    texts = []
    if found:
        worst = found[0]
        texts.append(
            f"{len(found)} of {len(shared)} final numbers differ: `{worst.name}` is {worst.drilled:.6g} and "
            f"{worst.undisturbed:.6g} undisturbed"
        )
    if apart is not None:
        texts.append(f"the curve of `{apart[1]}` differs from step {apart[0]} on{_after(drilled, apart[0])}")
    reason = "it keeps state that no checkpoint holds: "
    return Finding(question=QUESTION, verdict="fail", answer=reason + "; ".join(texts), hint=_HINT)


def _after(drilled: Evidence, step: int) -> str:
    """Name the last attempt that reported this step, if it is a resumed one: the resume is the cause."""
    for number in sorted(drilled.steps, reverse=True):
        if number > 1 and any(mark.step == step for mark in drilled.steps[number]):
            first = drilled.steps[number][0].step
            return f", after attempt {number} began at step {first}"
    return ""
