"""Figures of metrics over steps, drawn with matplotlib, which is imported when needed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from outlast.errors import OutlastError
from outlast.extras import install_hint
from outlast.runs.metrics import CurveMark, Curves, Point
from outlast.runs.metrics import thinned as thinned

_STYLES = {
    "preempted": ("tab:red", "--"),
    "lost": ("tab:red", "--"),
    "crashed": ("tab:purple", "-."),
    "resumed": ("tab:green", ":"),
}
_VALUE_MAX = 1e300
_DPI = 100


def missing_package(name: str, problem: ImportError) -> OutlastError:
    return OutlastError(f"cannot import {name}: {problem}", hint=install_hint("outlast[plot]"))


def lines_of(points: Sequence[Point], *, apart: bool) -> list[tuple[int, list[Point]]]:
    """Return the lines to draw: the whole curve, or one line per attempt with its number."""
    if not apart:
        return [(0, list(points))]
    return [(number, list(own)) for number, own in itertools.groupby(points, key=lambda point: point.attempt)]


def draw(curves: Curves, *, title: str, apart: bool, logarithmic: bool, width: int, height: int) -> Any:
    """Return a figure of matplotlib with one panel per metric; `height` is that of each panel in pixels."""
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise missing_package("matplotlib", problem) from problem
    count = len(curves.series)
    figure = Figure(figsize=(width / _DPI, height * count / _DPI), dpi=_DPI, layout="constrained")
    panels = figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0]
    for panel, (name, points) in zip(panels, curves.series.items(), strict=True):
        for number, line in lines_of(points, apart=apart):
            seen = thinned(line, 2 * width)
            panel.plot(
                [point.step for point in seen],
                [bounded(point.value) for point in seen],
                linewidth=1.3,
                marker="." if len(seen) == 1 else None,
                label=f"attempt {number}" if apart else None,
            )
        _mark(panel, curves.marks)
        # Escape `$`: a metric name is not a formula.
        panel.set_ylabel(name.replace("$", r"\$"))
        if logarithmic:
            panel.set_yscale("log")
        panel.grid(alpha=0.25)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(loc="best", fontsize="small")
    panels[0].set_title(title.replace("$", r"\$"))
    panels[-1].set_xlabel("step")
    return figure


def _mark(panel: Any, marks: Sequence[CurveMark]) -> None:
    """Draw one vertical line per mark; the legend names each kind once."""
    named: set[str] = set()
    for mark in marks:
        colour, dashes = _STYLES[mark.kind]
        panel.axvline(
            mark.step,
            color=colour,
            linestyle=dashes,
            linewidth=1.2,
            label=mark.kind if mark.kind not in named else None,
        )
        named.add(mark.kind)


def bounded(value: float) -> float:
    return max(-_VALUE_MAX, min(_VALUE_MAX, value))
