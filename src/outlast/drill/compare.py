"""An undisturbed run against a drilled one: final numbers and curves within a tolerance. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from outlast.drill.evidence import Curves, Evidence
from outlast.drill.findings import Finding

QUESTION = "same result as undisturbed"
_HINT = (
    "save all that the next step depends on: optimizer, learning-rate schedule, shuffling order and random states. If "
    "two undisturbed runs differ as well, fix the seeds, or allow it with --tolerance"
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
    """The numbers that both have and that are too far apart, the farthest first."""
    found = [
        ResultDifference(name=name, undisturbed=undisturbed[name], drilled=drilled[name])
        for name in undisturbed
        if name in drilled and not close(undisturbed[name], drilled[name], tolerance)
    ]
    return sorted(found, key=lambda d: (-d.relative, d.name))


def first_apart(undisturbed: Curves, drilled: Curves, tolerance: float) -> tuple[int, str] | None:
    """The first step at which a curve leaves the other one, and the curve's name."""
    apart = [
        (step, name)
        for name, points in undisturbed.items()
        for step, value in points.items()
        if step in drilled.get(name, {}) and not close(value, drilled[name][step], tolerance)
    ]
    return min(apart, default=None)


def compared(undisturbed: Evidence, drilled: Evidence, tolerance: float) -> Finding:
    """Whether the blows left a trace in what came out: then something is kept that no checkpoint holds."""
    shared = undisturbed.results.keys() & drilled.results.keys()
    points = sum(len(p.keys() & drilled.curves.get(name, {}).keys()) for name, p in undisturbed.curves.items())
    if not shared and not points:
        return Finding(
            question=QUESTION,
            verdict="warn",
            answer="there was nothing to compare: no number was found in the last lines, the outputs or the metrics",
            hint='end with a line of JSON such as {"loss": 0.25}, or write the numbers to the output folder',
        )
    apart = first_apart(undisturbed.curves, drilled.curves, tolerance)
    found = differences(undisturbed.results, drilled.results, tolerance)
    if not found and apart is None:
        curve = f" and {points} points of the curve" if points else ""
        numbers = f"{len(shared)} final number{'' if len(shared) == 1 else 's'}"
        return Finding(question=QUESTION, verdict="pass", answer=f"{numbers}{curve} are the same within {tolerance:g}")
    told = []
    if found:
        worst = found[0]
        told.append(
            f"{len(found)} of {len(shared)} final numbers differ: `{worst.name}` is {worst.drilled:.6g} and "
            f"{worst.undisturbed:.6g} undisturbed"
        )
    if apart is not None:
        told.append(f"the curve of `{apart[1]}` differs from step {apart[0]} on{_after(drilled, apart[0])}")
    kept = "it keeps state that no checkpoint holds: "
    return Finding(question=QUESTION, verdict="fail", answer=kept + "; ".join(told), hint=_HINT)


def _after(drilled: Evidence, step: int) -> str:
    """The attempt that told this step last, if it is a resumed one: then the resume is to blame."""
    for number in sorted(drilled.steps, reverse=True):
        if number > 1 and any(mark.step == step for mark in drilled.steps[number]):
            first = drilled.steps[number][0].step
            return f", after attempt {number} began at step {first}"
    return ""
