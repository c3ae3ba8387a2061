"""Metrics over steps, drawn in the terminal or as a PNG. Plotting libraries are imported when needed."""

from __future__ import annotations

import io
import itertools
from collections.abc import Sequence
from typing import Any

from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError
from outlast.runs.metrics import CurveMark, Curves, Point

# Each kind has a different character: colour never carries meaning alone.
SIGNS = {"preempted": "✗", "lost": "✗", "crashed": "!", "resumed": "↻"}
_COLOURS = ("blue", "orange", "green", "magenta", "cyan")
_STYLES = {
    "preempted": ("tab:red", "--"),
    "lost": ("tab:red", "--"),
    "crashed": ("tab:purple", "-."),
    "resumed": ("tab:green", ":"),
}
_VALUE_MAX = 1e300
_DPI = 100


def missing_package(name: str, problem: ImportError) -> OutlastError:
    return OutlastError(f"cannot import {name}: {problem}", hint="pip install 'outlast[plot]'")


def write_picture(path: str, body: bytes) -> None:
    """Write a PNG file and report it. Raises OutlastError."""
    try:
        with open(path, "wb") as file:
            file.write(body)
    except OSError as problem:
        raise OutlastError(f"--png: cannot write `{path}`: {problem.strerror}") from problem
    note(f"wrote {path}")


def lines_of(points: Sequence[Point], *, apart: bool) -> list[tuple[int, list[Point]]]:
    """Return the lines to draw: the whole curve, or one line per attempt with its number."""
    if not apart:
        return [(0, list(points))]
    return [(number, list(own)) for number, own in itertools.groupby(points, key=lambda point: point.attempt)]


def thinned(points: list[Point], cells: int) -> list[Point]:
    """Reduce points to the resolution of the plot; keep the minimum and maximum of each cell, so no peak is lost."""
    size = -(-len(points) // max(1, cells))
    if size <= 2:
        return points
    kept: list[Point] = []
    for at in range(0, len(points), size):
        group = points[at : at + size]
        ends = {min(group, key=lambda p: p.value), max(group, key=lambda p: p.value)}
        kept += sorted(ends, key=lambda p: p.step)
    return kept


def in_terminal(curves: Curves, *, apart: bool, logarithmic: bool, width: int, height: int, colour: bool) -> str:
    """Draw one panel per metric, below each other."""
    try:
        import plotext
    except ImportError as problem:
        raise missing_package("plotext", problem) from problem
    panels = []
    steps = [point.step for points in curves.series.values() for point in points]
    steps += [mark.step for mark in curves.marks]
    for name, points in curves.series.items():
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)
        plotext.plot_size(width, height)
        plotext.title(name)
        _fill_panel(plotext, points, curves.marks, apart=apart, logarithmic=logarithmic, cells=2 * width)
        _set_steps(plotext, min(steps), max(steps))
        panels.append(plotext.build() if colour else plotext.uncolorize(plotext.build()))
    return "\n".join(line.rstrip() for panel in panels for line in panel.splitlines())


def _fill_panel(
    plotext: Any, points: Sequence[Point], marks: Sequence[CurveMark], *, apart: bool, logarithmic: bool, cells: int
) -> None:
    values = [_bounded(point.value) for point in points]
    low, high = min(values), max(values)
    if logarithmic:
        plotext.yscale("log")
    for place, (number, line) in enumerate(lines_of(points, apart=apart)):
        seen = thinned(line, cells)
        plotext.plot(
            [point.step for point in seen],
            [_bounded(point.value) for point in seen],
            marker="braille",
            color=_COLOURS[place % len(_COLOURS)],
            label=f"attempt {number}" if apart else None,
        )
    for mark in marks:
        if mark.kind == "resumed":
            plotext.text(SIGNS[mark.kind], x=mark.step, y=low, color="green")
        else:
            plotext.vline(mark.step, "red")
            plotext.text(SIGNS[mark.kind], x=mark.step, y=high, color="red")
    if low < high:
        between = [_between(low, high, part / 4, logarithmic=logarithmic) for part in range(5)]
        plotext.yticks(between, [f"{value:.4g}" for value in between])


def _set_steps(plotext: Any, left: int, right: int) -> None:
    """Give every panel the same axis of integer steps."""
    if left < right:
        ticks = sorted({left + round((right - left) * part / 4) for part in range(5)})
        plotext.xlim(left, right)
        plotext.xticks(ticks, [str(tick) for tick in ticks])


def _between(low: float, high: float, part: float, *, logarithmic: bool) -> float:
    if logarithmic:
        return float(low ** (1 - part) * high**part)
    return low + (high - low) * part


def _bounded(value: float) -> float:
    return max(-_VALUE_MAX, min(_VALUE_MAX, value))


def as_png(curves: Curves, *, title: str, apart: bool, logarithmic: bool, width: int, height: int) -> bytes:
    """Draw the same panels as a PNG; `height` is that of each panel."""
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
                [_bounded(point.value) for point in seen],
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
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


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
