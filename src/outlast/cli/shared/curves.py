"""Metrics over steps, drawn in the terminal or as a PNG. Plotting libraries are imported when needed."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from outlast.cli.shared.terminal import note
from outlast.errors import OutlastError
from outlast.formatting.figures import bounded, draw, lines_of
from outlast.formatting.figures import missing_package as missing_package
from outlast.formatting.figures import thinned as thinned

if TYPE_CHECKING:
    from outlast.app.types import CurveMark, Curves, Point

# Each kind has a different character: colour never carries meaning alone.
SIGNS = {"preempted": "✗", "lost": "✗", "crashed": "!", "resumed": "↻"}
_COLOURS = ("blue", "orange", "green", "magenta", "cyan")


def write_picture(path: str, body: bytes) -> None:
    """Write a PNG file and report it. Raises OutlastError."""
    try:
        with open(path, "wb") as file:
            file.write(body)
    except OSError as problem:
        raise OutlastError(f"--png: cannot write `{path}`: {problem.strerror}") from problem
    note(f"wrote {path}")


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
    values = [bounded(point.value) for point in points]
    low, high = min(values), max(values)
    if logarithmic:
        plotext.yscale("log")
    for place, (number, line) in enumerate(lines_of(points, apart=apart)):
        seen = thinned(line, cells)
        plotext.plot(
            [point.step for point in seen],
            [bounded(point.value) for point in seen],
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


def as_png(curves: Curves, *, title: str, apart: bool, logarithmic: bool, width: int, height: int) -> bytes:
    """Draw the same panels as a PNG; `height` is that of each panel."""
    picture = io.BytesIO()
    figure = draw(curves, title=title, apart=apart, logarithmic=logarithmic, width=width, height=height)
    figure.savefig(picture, format="png")
    return picture.getvalue()
