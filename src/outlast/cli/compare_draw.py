"""Draws the curves of several runs over each other, a panel a metric. Loads what draws when it is needed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from outlast.cli.curves import not_there, thinned
from outlast.runs.metrics import Point

# Metric → run → its curve.
Lines = Mapping[str, Mapping[str, Sequence[Point]]]

_HEIGHT, _PNG_WIDTH, _PNG_HEIGHT, _DPI = 16, 1000, 360, 100
_SIGNS = ("braille", "+", "x", "o", "*", "#")
_COLOURS = ("blue", "orange", "green", "magenta", "cyan", "red")


def in_terminal(lines: Lines, *, width: int, colour: bool) -> str:
    """Each run has a sign of its own: colour never carries meaning alone."""
    try:
        import plotext
    except ImportError as problem:
        raise not_there("`plotext`, which draws in the terminal,", problem) from problem
    panels = []
    for metric, runs in lines.items():
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)
        plotext.plot_size(width, _HEIGHT)
        plotext.title(metric)
        for place, (run, points) in enumerate(runs.items()):
            seen = thinned(list(points), width)
            steps, values = [point.step for point in seen], [point.value for point in seen]
            sign, shade = _SIGNS[place % len(_SIGNS)], _COLOURS[place % len(_COLOURS)]
            plotext.plot(steps, values, marker=sign, color=shade, label=run)
        panels.append(plotext.build() if colour else plotext.uncolorize(plotext.build()))
    return "\n".join(line.rstrip() for panel in panels for line in panel.splitlines())


def as_png(lines: Lines) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise not_there("`matplotlib`, which draws pictures,", problem) from problem
    figure = Figure(figsize=(_PNG_WIDTH / _DPI, _PNG_HEIGHT * len(lines) / _DPI), dpi=_DPI, layout="constrained")
    panels = figure.subplots(len(lines), 1, squeeze=False)[:, 0]
    for panel, (metric, runs) in zip(panels, lines.items(), strict=True):
        for run, points in runs.items():
            seen = thinned(list(points), 2 * _PNG_WIDTH)
            panel.plot([point.step for point in seen], [point.value for point in seen], label=run)
        panel.set_ylabel(metric.replace("$", r"\$"))
        panel.grid(alpha=0.25)
        panel.legend(fontsize="small")
    panels[-1].set_xlabel("step")
    body = io.BytesIO()
    figure.savefig(body, format="png")
    return body.getvalue()
