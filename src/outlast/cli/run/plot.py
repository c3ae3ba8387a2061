"""`outlast plot`: the metrics of a run over all its attempts."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from outlast.app.metrics import curves_named, curves_of, only_positive, require_curves
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.curves import SIGNS, as_png, in_terminal, write_picture
from outlast.cli.shared.options import json_option, run_argument, workspace_option
from outlast.cli.shared.project import naming_options
from outlast.cli.shared.terminal import colours, find_workspace, note
from outlast.errors import UsageError
from outlast.store.traits import is_url

if TYPE_CHECKING:
    from outlast.app.types import CurveMark, Curves

# The number of panels without --metric.
_PANELS_MAX = 6
_HEIGHT, _PNG_WIDTH, _PNG_HEIGHT = 16, 1000, 360


@command(
    section="runs",
    progress="reading metrics",
    interrupt=READ_ONLY,
    json_text="`run`; `metrics`: name → points with `step`, `at`, `value`, `attempt`; `marks`: preemptions, resumes",
)
@run_argument
@click.option("--metric", "-m", "wanted", multiple=True, metavar="NAME", help="Only this one; may be repeated.")
@click.option("--png", "picture", default="", metavar="FILE", help="Write a PNG instead.")
@click.option("--log", "logarithmic", is_flag=True, help="Logarithmic axis of values.")
@click.option("--all-attempts", "apart", is_flag=True, help="Draw each attempt separately, lost work included.")
@click.option("--width", metavar="N", type=click.IntRange(20, 10_000), help="Width in columns; with --png in pixels.")
@click.option(
    "--height", metavar="N", type=click.IntRange(6, 10_000), help="Height of each panel in lines; with --png in pixels."
)
@json_option
@workspace_option
def plot(
    run_name: str,
    wanted: tuple[str, ...],
    picture: str,
    logarithmic: bool,
    apart: bool,
    width: int | None,
    height: int | None,
    as_json: bool,
    workspace_url: str,
) -> int:
    """Draw the metrics of a run over all attempts."""
    workspace = find_workspace(workspace_url)
    run = workspace.find(run_name)
    with naming_options({"metric": "--metric"}):
        curves = curves_of(workspace, run, wanted, apart=apart, argument="metric")
    if as_json:
        click.echo(_as_json(run, curves))
        return 0
    curves = _drawable(curves, run, all_wanted=bool(wanted), logarithmic=logarithmic)
    if picture:
        if is_url(picture) or os.path.isdir(picture):
            raise UsageError(f"--png: `{picture}` is not a file name")
        body = as_png(
            curves,
            title=run,
            apart=apart,
            logarithmic=logarithmic,
            width=max(200, width or _PNG_WIDTH),
            height=max(100, height or _PNG_HEIGHT),
        )
        write_picture(picture, body)
        return 0
    columns = width or max(40, min(120, shutil.get_terminal_size().columns))
    colour = colours(sys.stdout)
    click.echo(
        in_terminal(
            curves, apart=apart, logarithmic=logarithmic, width=columns, height=height or _HEIGHT, colour=colour
        )
    )
    for mark in curves.marks:
        click.echo(_mark_text(mark))
    return 0


def _drawable(curves: Curves, run: str, *, all_wanted: bool, logarithmic: bool) -> Curves:
    """Select the curves to draw, and report those that are left out."""
    require_curves(curves, run)
    if logarithmic:
        whole, curves = curves, only_positive(curves)
        for name, points in whole.series.items():
            if missing := len(points) - len(curves.series.get(name, ())):
                note(f"{name}: {missing} of {len(points)} values are not positive: not drawn")
    if len(curves.series) > _PANELS_MAX and not all_wanted:
        more = list(curves.series)[_PANELS_MAX:]
        note(f"and {len(more)} more, drawn with --metric: {', '.join(more)}")
        return curves_named(curves, list(curves.series)[:_PANELS_MAX])
    return curves


def _mark_text(mark: CurveMark) -> str:
    return f"{SIGNS[mark.kind]} attempt {mark.attempt} {mark.kind} at step {mark.step}"


def _as_json(run: str, curves: Curves) -> str:
    import json

    metrics = {name: msgspec.to_builtins(points) for name, points in curves.series.items()}
    return json.dumps({"run": run, "metrics": metrics, "marks": msgspec.to_builtins(curves.marks)})
