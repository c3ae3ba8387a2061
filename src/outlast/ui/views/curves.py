"""Curves for charts, reduced to a visible number of points. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from outlast.runs.metrics import CurveMark, Curves, Point, thinned

POINTS_MAX = 1500


class CurveLine(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one run: steps and values."""

    run: str
    points: tuple[tuple[int, float], ...]
    # Steps at which the value was NaN or infinite.
    not_finite: tuple[int, ...] = ()


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    metric: str
    lines: tuple[CurveLine, ...]
    marks: tuple[CurveMark, ...] = ()


def plots(curves: Mapping[str, Curves], *, marks: Sequence[CurveMark]) -> list[Plot]:
    """Return a plot for each metric of the first run, with the same metric of the other runs."""
    runs = list(curves)
    names = list({**curves[runs[0]].series, **curves[runs[0]].not_finite}) if runs else []
    return [
        Plot(
            metric=name,
            lines=tuple(
                CurveLine(
                    run=run,
                    points=_drawn(curves[run].series.get(name, ())),
                    not_finite=curves[run].not_finite.get(name, ())[:POINTS_MAX],
                )
                for run in runs
                if name in curves[run].series or name in curves[run].not_finite
            ),
            marks=tuple(marks),
        )
        for name in names
    ]


def _drawn(points: Sequence[Point]) -> tuple[tuple[int, float], ...]:
    return tuple((point.step, point.value) for point in thinned(points, POINTS_MAX // 2))
