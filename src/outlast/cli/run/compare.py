"""`outlast compare`: parameters, metrics, cost, code and curves of several runs."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from outlast.app.comparison import Compared, compare_runs
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.curves import missing_package, thinned, write_picture
from outlast.cli.shared.options import complete_run, json_option, workspace_option
from outlast.cli.shared.terminal import colours, find_workspace, money, table
from outlast.errors import OutlastError, UsageError
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import CodeDiff, Point


@command(
    section="runs",
    progress="reading runs",
    interrupt=READ_ONLY,
    json_text="`runs` with `run`, `params`, `metrics`, `cost_usd` …; `code`: run → `files` that differ, `note`",
)
@click.argument("run_names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)
@click.option("--diff", "whole", is_flag=True, help="Print the full diff of the code, not only the files.")
@click.option("--curves", "draw", is_flag=True, help="Draw the metrics of all runs.")
@click.option("--metric", "-m", "wanted", multiple=True, metavar="NAME", help="Draw only this metric; may be repeated.")
@click.option("--png", "picture", default="", metavar="FILE", help="Write the curves to a PNG.")
@json_option
@workspace_option
def compare(
    run_names: tuple[str, ...],
    whole: bool,
    draw: bool,
    wanted: tuple[str, ...],
    picture: str,
    as_json: bool,
    workspace_url: str,
) -> int:
    """Compare runs: parameters, metrics, cost, code, curves.

    Rows that differ are marked. The code of each run is compared with that of the first.
    """
    workspace = find_workspace(workspace_url)
    compared = compare_runs(workspace, run_names)
    found, changes = list(compared.runs), compared.code
    names = [one.run for one in found]
    if as_json:
        runs = [msgspec.to_builtins(one) for one in found]
        click.echo(json.dumps({"runs": runs, "code": msgspec.to_builtins(changes)}, indent=2))
        return 0
    click.echo(table(_rows(found), header=["", "", *names]))
    for name, change in changes.items():
        click.echo(_diff_text(names[0], name, change, whole=whole))
    if draw or picture or wanted:
        _draw(found, wanted, picture)
    return 0


def _rows(found: list[Compared]) -> list[list[str]]:
    """Return one line per property; `≠` marks those that differ."""
    lines: list[tuple[str, list[str]]] = [("state", [one.state for one in found])]
    for name in dict.fromkeys(name for one in found for name in one.params):
        lines.append((name, [str(one.params.get(name, "")) for one in found]))
    for name in dict.fromkeys(name for one in found for name in one.metrics):
        lines.append((name, [f"{one.metrics[name]:.6g}" if name in one.metrics else "" for one in found]))
    lines += [
        ("time", [describe_s(one.seconds) for one in found]),
        ("cost", [money(one.cost_usd) for one in found]),
        ("attempts", [f"{one.attempts} ({one.preemptions} preempted)" for one in found]),
        ("machine", [one.machine for one in found]),
        ("image", [one.image for one in found]),
        ("code", [one.code for one in found]),
    ]
    return [["≠" if len(set(cells)) > 1 else "", name, *cells] for name, cells in lines if any(cells)]


def _diff_text(first: str, name: str, change: CodeDiff, *, whole: bool) -> str:
    if change.same:
        return f"code: {name} and {first} are the same"
    if change.note:
        return f"code: {name} and {first}: {change.note}"
    lines = [f"code: from {first} to {name}"]
    for file in change.files:
        lines.append(f"  {file.kind:<8} {file.path}" + (f"  +{file.added} -{file.removed}" if file.diff else ""))
        if whole and file.diff:
            lines.append(file.diff)
    return "\n".join(lines)


def _draw(found: list[Compared], wanted: tuple[str, ...], picture: str) -> None:
    known = list(dict.fromkeys(name for one in found for name in one.curves))
    for name in wanted:
        if name not in known:
            hint = f"known: {', '.join(known)}" if known else "none was logged"
            raise UsageError(f"--metric: no run has a metric `{name}`; {hint}")
    names = list(wanted) or known
    if not names:
        raise OutlastError("no run has logged a metric", hint="log them with `run.log(step, loss=…)`")
    curves = {name: {one.run: one.curves[name] for one in found if name in one.curves} for name in names}
    if picture:
        write_picture(picture, as_png(curves))
        return
    columns = max(40, min(120, shutil.get_terminal_size().columns))
    click.echo(in_terminal(curves, width=columns, colour=colours(sys.stdout)))


# Metric → run → its curve.
Lines = Mapping[str, Mapping[str, Sequence["Point"]]]
_HEIGHT, _PNG_WIDTH, _PNG_HEIGHT, _DPI = 16, 1000, 360, 100
_SIGNS = ("braille", "+", "x", "o", "*", "#")
_COLOURS = ("blue", "orange", "green", "magenta", "cyan", "red")


def in_terminal(lines: Lines, *, width: int, colour: bool) -> str:
    """Draw one panel per metric. Each run has a different character: colour never carries meaning alone."""
    try:
        import plotext
    except ImportError as problem:
        raise missing_package("plotext", problem) from problem
    panels = []
    for metric, runs in lines.items():
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.limit_size(False, False)
        plotext.plot_size(width, _HEIGHT)
        plotext.title(metric)
        for place, (run, points) in enumerate(runs.items()):
            seen = thinned(points, width)
            steps, values = [point.step for point in seen], [point.value for point in seen]
            sign, shade = _SIGNS[place % len(_SIGNS)], _COLOURS[place % len(_COLOURS)]
            plotext.plot(steps, values, marker=sign, color=shade, label=run)
        panels.append(plotext.build() if colour else plotext.uncolorize(plotext.build()))
    return "\n".join(line.rstrip() for panel in panels for line in panel.splitlines())


def as_png(lines: Lines) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise missing_package("matplotlib", problem) from problem
    figure = Figure(figsize=(_PNG_WIDTH / _DPI, _PNG_HEIGHT * len(lines) / _DPI), dpi=_DPI, layout="constrained")
    panels = figure.subplots(len(lines), 1, squeeze=False)[:, 0]
    for panel, (metric, runs) in zip(panels, lines.items(), strict=True):
        for run, points in runs.items():
            seen = thinned(points, 2 * _PNG_WIDTH)
            panel.plot([point.step for point in seen], [point.value for point in seen], label=run)
        panel.set_ylabel(metric.replace("$", r"\$"))
        panel.grid(alpha=0.25)
        panel.legend(fontsize="small")
    panels[-1].set_xlabel("step")
    body = io.BytesIO()
    figure.savefig(body, format="png")
    return body.getvalue()
