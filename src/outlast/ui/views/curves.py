"""Curves for charts, reduced to a visible number of points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlast.runs.metrics import CurveMark, Curves, Point, thinned

POINTS_MAX = 1500
# The width of the text of a mark, as a share of a small chart.
_ROOM = 0.24


class CurveLine(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one run: steps and values."""

    run: str
    # Steps, or milliseconds since the first point, and values.
    points: tuple[tuple[float, float], ...]
    # The last value, and the lowest and highest of all points.
    last: float = 0.0
    low: float = 0.0
    high: float = 0.0
    # Steps at which the value was NaN or infinite.
    not_finite: tuple[int, ...] = ()


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    lines: tuple[CurveLine, ...]
    marks: tuple[CurveMark, ...] = ()

    def named_marks(self) -> tuple[CurveMark, ...]:
        """Return the losses that are far enough apart for a text beside each."""
        steps = [x for line in self.lines for x, _ in line.points] or [0.0]
        room = _ROOM * (max(steps) - min(steps))
        named: list[CurveMark] = []
        for mark in self.marks:
            if mark.kind != "resumed" and (not named or mark.step - named[-1].step >= room):
                named.append(mark)
        return tuple(named)


def plots(
    curves: Mapping[str, Curves], *, marks: Sequence[CurveMark], smoothing: float = 0.0, by_time: bool = False
) -> list[Plot]:
    """Return a plot for each metric of the first run, with the same metric of the other runs.

    `smoothing` is the weight of the values before, from 0 to below 1. `by_time` puts the seconds since the first point
    of a run on the axis, where marks of steps have no place.
    """
    runs = list(curves)
    names = list({**curves[runs[0]].series, **curves[runs[0]].not_finite}) if runs else []
    return [
        Plot(
            metric=name,
            lines=tuple(
                _line(run, curves[run], name, smoothing=smoothing, by_time=by_time)
                for run in runs
                if name in curves[run].series or name in curves[run].not_finite
            ),
            marks=() if by_time else tuple(marks),
        )
        for name in names
    ]


def _line(run: str, curves: Curves, name: str, *, smoothing: float, by_time: bool) -> CurveLine:
    points = curves.series.get(name, ())
    values = [point.value for point in points] or [0.0]
    shown = thinned(smoothed(points, smoothing), POINTS_MAX // 2)
    begin = points[0].at if points else 0.0
    return CurveLine(
        run=run,
        points=tuple((round(point.at - begin, 1) if by_time else point.step, point.value) for point in shown),
        last=values[-1],
        low=min(values),
        high=max(values),
        not_finite=() if by_time else curves.not_finite.get(name, ())[:POINTS_MAX],
    )


def smoothed(points: Sequence[Point], weight: float) -> Sequence[Point]:
    """Return the exponential moving average, corrected at its start, where few values precede."""
    if not 0.0 < weight < 1.0:
        return points
    found, mean, whole = [], 0.0, 0.0
    for point in points:
        mean, whole = weight * mean + (1 - weight) * point.value, weight * whole + (1 - weight)
        found.append(msgspec.structs.replace(point, value=mean / whole))
    return found
