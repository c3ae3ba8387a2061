"""The metrics of a run as columns, and as a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outlast.errors import OutlastError, UsageError
from outlast.runs.metrics import Curves, Point, stitched, unstitched
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = ("step", "at", "attempt")
_WIDTH, _HEIGHT = 1000, 360


def curves_of(
    workspace: Workspace, run: str, names: Sequence[str] = (), *, apart: bool = False, argument: str = "metrics"
) -> Curves:
    """Return the curves of a run, or those with the given names. Raises UsageError for an unknown name.

    `apart` keeps the points of each attempt, work that was lost included.
    """
    state = workspace.story(run).refresh()
    curves = (unstitched if apart else stitched)(workspace.bucket, run, state)
    for name in names:
        if name not in curves.series:
            known = f"; there are: {', '.join(curves.series)}" if curves.series else "; it has logged none yet"
            raise UsageError(f"{argument}: {run} has no metric `{name}`{known}")
    return curves_named(curves, names) if names else curves


def curves_named(curves: Curves, names: Sequence[str]) -> Curves:
    return Curves({name: curves.series[name] for name in names}, curves.marks)


def require_curves(curves: Curves, run: str) -> None:
    """Raise OutlastError if the run has logged no metrics."""
    if not curves.series:
        raise OutlastError(
            f"{run} has logged no metrics yet",
            hint="log them with `run.log(step, loss=…)`, or append lines of JSON to OUTLAST_METRICS_FILE",
        )


def only_positive(curves: Curves) -> Curves:
    """Return the points that a logarithmic axis can show. Raises OutlastError if there are none."""
    series = {name: tuple(p for p in points if p.value > 0) for name, points in curves.series.items()}
    series = {name: points for name, points in series.items() if points}
    if not series:
        raise OutlastError("no value is positive, so nothing can be drawn with --log", hint="draw it without --log")
    return Curves(series, curves.marks)


def columns(curves: Curves) -> dict[str, list[float]]:
    """Return columns of equal length: step, time, attempt, and one per metric; NaN where it was not logged."""
    rows: dict[tuple[int, int], dict[str, Point]] = {}
    for name, points in curves.series.items():
        for point in points:
            rows.setdefault((point.step, point.attempt), {})[name] = point
    ordered = [(key, rows[key]) for key in sorted(rows, key=lambda key: (key[0], key[1]))]
    found: dict[str, list[float]] = {
        "step": [step for (step, _), _ in ordered],
        "at": [max(point.at for point in row.values()) for _, row in ordered],
        "attempt": [attempt for (_, attempt), _ in ordered],
    }
    for name in curves.series:
        # A metric that is called like a key keeps its name with an underscore.
        column = f"{name}_" if name in KEYS else name
        found[column] = [row[name].value if name in row else math.nan for _, row in ordered]
    return found


def figure_of(curves: Curves, *, title: str, logarithmic: bool = False) -> Figure:
    """Draw one panel per metric with matplotlib. Raises OutlastError without metrics, or without matplotlib."""
    from outlast.formatting.figures import draw

    require_curves(curves, title)
    figure: Figure = draw(curves, title=title, apart=False, logarithmic=logarithmic, width=_WIDTH, height=_HEIGHT)
    return figure
