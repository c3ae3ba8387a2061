"""`outlast sweep plot`: history, importance and parallel coordinates, in the terminal or as a PNG."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.app.sweeps import better, find_sweep, search_of
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.curves import missing_package, write_picture
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import colours, find_workspace
from outlast.cli.sweep.table import short, sweep_argument
from outlast.errors import OutlastError
from outlast.spec.spec import Dimension

if TYPE_CHECKING:
    from outlast.app.types import Sweep, SweepState, Trial


@command(progress="drawing", interrupt=READ_ONLY)
@sweep_argument
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(["history", "importance", "parallel"]),
    help="Only this plot; may be repeated.",
)
@click.option("--png", "picture", default="", metavar="FILE", help="Write a PNG instead.")
@click.option("--width", metavar="N", type=click.IntRange(20, 10_000), help="Width in columns; with --png in pixels.")
@workspace_option
def plot(sweep_name: str, kinds: tuple[str, ...], picture: str, width: int | None, workspace_url: str) -> int:
    """Draw the history of a sweep, the importance of its parameters, and parallel coordinates."""
    workspace = find_workspace(workspace_url)
    sweep, state = find_sweep(workspace, sweep_name)
    if not state.complete:
        raise OutlastError(f"{sweep.name} has no complete trial yet", hint=f"see `outlast sweep show {sweep.name}`")
    wanted = kinds or ("history", "importance", "parallel")
    importance = search_of(sweep, state).importance() if "importance" in wanted else {}
    if picture:
        write_picture(picture, as_png(sweep, state, wanted, importance, width=max(300, width or 1000)))
        return 0
    columns = width or max(40, min(120, shutil.get_terminal_size().columns))
    colour = colours(sys.stdout)
    click.echo(in_terminal(sweep, state, wanted, importance, width=columns, colour=colour))
    return 0


_DPI = 100
_HEIGHT, _PNG_HEIGHT = 16, 360
_NO_IMPORTANCE = "importance: too few trials or parameters"
# Maximum lines of the parallel coordinates in the terminal; the best ones are drawn.
_LINES_MAX = 24


def running_best(trials: Sequence[Trial], goal: str) -> list[float]:
    """Return the best value so far, at each trial."""
    found: list[float] = []
    for trial in trials:
        value = trial.values[0]
        found.append(value if not found or better(goal, value, found[-1]) else found[-1])
    return found


def ranked(state: SweepState, goal: str) -> list[Trial]:
    """Return the complete trials, the best first."""
    return sorted(state.complete, key=lambda trial: trial.values[0], reverse=goal.startswith("max:"))


def position(dimension: Dimension, value: object) -> float:
    """Return the position of a value on its axis, from 0 to 1."""
    import math

    if dimension.kind == "choice":
        return dimension.choices.index(value) / max(1, len(dimension.choices) - 1)
    number, low, high = float(str(value)), dimension.low, dimension.high
    if dimension.log:
        number, low, high = math.log(number), math.log(low), math.log(high)
    return (number - low) / (high - low) if high > low else 0.5


def _ends(dimension: Dimension) -> tuple[str, str]:
    if dimension.kind == "choice":
        return str(dimension.choices[0]), str(dimension.choices[-1])
    return f"{dimension.low:g}", f"{dimension.high:g}"


def in_terminal(
    sweep: Sweep, state: SweepState, kinds: Sequence[str], importance: dict[str, float], *, width: int, colour: bool
) -> str:
    """Draw one panel per kind, below each other."""
    try:
        import plotext
    except ImportError as problem:
        raise missing_package("plotext", problem) from problem
    panels = []
    for kind in kinds:
        if kind == "importance" and not importance:
            panels.append(_NO_IMPORTANCE)
            continue
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)
        plotext.plot_size(width, _HEIGHT)
        if kind == "history":
            _history(plotext, sweep, state)
        elif kind == "importance":
            plotext.title("importance")
            names = list(reversed(importance))
            plotext.bar(names, [importance[name] for name in names], orientation="horizontal", width=0.4)
        else:
            _parallel(plotext, sweep, state)
        panels.append(plotext.build() if colour else plotext.uncolorize(plotext.build()))
    return "\n".join(line.rstrip() for panel in panels for line in panel.splitlines())


def _history(plotext: Any, sweep: Sweep, state: SweepState) -> None:
    goal, trials = sweep.search.goals[0], state.complete
    numbers = [trial.number for trial in trials]
    plotext.title(f"{goal}: trials, and the best so far")
    plotext.scatter(numbers, [trial.values[0] for trial in trials], marker="o", label="trial")
    plotext.plot(numbers, running_best(trials, goal), marker="braille", label="best so far")
    plotext.xlabel("trial")


def _parallel(plotext: Any, sweep: Sweep, state: SweepState) -> None:
    space, trials = sweep.search.params, ranked(state, sweep.search.goals[0])[:_LINES_MAX]
    plotext.title(f"the best {len(trials)} trials over the parameters; # is the best")
    at = list(range(len(space)))
    for trial in reversed(trials):
        heights = [position(dimension, trial.params[name]) for name, dimension in space.items()]
        best = trial is trials[0]
        plotext.plot(at, heights, marker="#" if best else "braille", color="red" if best else "blue")
    plotext.xticks(at, [f"{name} {'..'.join(_ends(dimension))}" for name, dimension in space.items()])
    plotext.ylim(0, 1)
    plotext.yticks([0, 1], ["low", "high"])


def as_png(sweep: Sweep, state: SweepState, kinds: Sequence[str], importance: dict[str, float], *, width: int) -> bytes:
    """Draw the same panels as a PNG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise missing_package("matplotlib", problem) from problem
    figure = Figure(figsize=(width / _DPI, _PNG_HEIGHT * len(kinds) / _DPI), dpi=_DPI, layout="constrained")
    panels = figure.subplots(len(kinds), 1, squeeze=False)[:, 0]
    for panel, kind in zip(panels, kinds, strict=True):
        if kind == "history":
            _history_panel(panel, sweep, state)
        elif kind == "importance":
            panel.set_title("importance" if importance else _NO_IMPORTANCE)
            panel.barh(list(reversed(importance)), list(reversed(importance.values())))
        else:
            _parallel_panel(panel, sweep, state)
    body = io.BytesIO()
    figure.savefig(body, format="png")
    return body.getvalue()


def _history_panel(panel: Any, sweep: Sweep, state: SweepState) -> None:
    goal, trials = sweep.search.goals[0], state.complete
    numbers = [trial.number for trial in trials]
    panel.plot(numbers, [trial.values[0] for trial in trials], "o", markersize=4, label="trial")
    panel.step(numbers, running_best(trials, goal), where="post", label="best so far")
    panel.set_title(sweep.name)
    panel.set_xlabel("trial")
    panel.set_ylabel(goal.partition(":")[2].replace("$", r"\$"))
    panel.grid(alpha=0.25)
    panel.legend(fontsize="small")


def _parallel_panel(panel: Any, sweep: Sweep, state: SweepState) -> None:
    from matplotlib import colormaps

    space, trials = sweep.search.params, ranked(state, sweep.search.goals[0])
    at = list(range(len(space)))
    for rank, trial in reversed(list(enumerate(trials))):
        heights = [position(dimension, trial.params[name]) for name, dimension in space.items()]
        shade = colormaps["viridis"](rank / max(1, len(trials) - 1))
        if rank == 0:
            params = " ".join(f"{name}={short(value)}" for name, value in trial.params.items())
            panel.set_title(f"the best, thick: {params}".replace("$", r"\$"))
        panel.plot(at, heights, color=shade, linewidth=3 if rank == 0 else 1, alpha=1 if rank == 0 else 0.5)
    panel.set_xticks(at, [name.replace("$", r"\$") for name in space])
    panel.set_yticks([])
    for x, dimension in zip(at, space.values(), strict=True):
        low, high = _ends(dimension)
        panel.annotate(low, (x, 0), textcoords="offset points", xytext=(4, -2), fontsize="small")
        panel.annotate(high, (x, 1), textcoords="offset points", xytext=(4, -2), fontsize="small")
