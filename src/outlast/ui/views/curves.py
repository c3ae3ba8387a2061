"""Curves for charts, reduced to a visible number of points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlast.runs.metrics import CurveMark, Curves, Point

POINTS_MAX = 1500


class CurveLine(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one run: steps and values."""

    run: str
    points: tuple[tuple[int, float], ...]


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    lines: tuple[CurveLine, ...]
    marks: tuple[CurveMark, ...] = ()


def plots(curves: Mapping[str, Curves], *, marks: Sequence[CurveMark]) -> list[Plot]:
    """Return a plot for each metric of the first run, with the same metric of the other runs."""
    runs = list(curves)
    names = list(curves[runs[0]].series) if runs else []
    return [
        Plot(
            metric=name,
            lines=tuple(
                CurveLine(run=run, points=thinned(curves[run].series[name]))
                for run in runs
                if name in curves[run].series
            ),
            marks=tuple(marks),
        )
        for name in names
    ]


def thinned(points: Sequence[Point], limit: int = POINTS_MAX) -> tuple[tuple[int, float], ...]:
    """Reduce the points to the lowest and highest of each stretch, so that outliers stay visible."""
    if len(points) <= limit:
        return tuple((point.step, point.value) for point in points)
    stretches = limit // 2
    found: list[Point] = []
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        low, high = min(part, key=lambda p: p.value), max(part, key=lambda p: p.value)
        found += [low, high] if low.step < high.step else [high, low] if high.step < low.step else [low]
    # Always keep the newest value.
    if found[-1] is not points[-1]:
        found.append(points[-1])
    return tuple((point.step, point.value) for point in found)
