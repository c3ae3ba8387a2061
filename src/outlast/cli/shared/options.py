"""What commands share: the workspace option, run names with completion, clouds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from outlast.cli.shared.terminal import find_workspace, note
from outlast.clouds.registry import Clouds as Clouds
from outlast.clouds.registry import clouds as clouds  # where most commands look for them
from outlast.errors import OutlastError
from outlast.runs.ended import EndedRuns
from outlast.spec.trace import ONES
from outlast.workspace import natural

# Ended runs that the tab key offers.
_COMPLETED = 100

F = TypeVar("F", bound=Callable[..., Any])


def workspace_option(command: F) -> F:
    return click.option(
        "--workspace",
        "-w",
        "workspace_url",
        default="",
        metavar="WHERE",
        help="A folder, gs://… or s3://….",
    )(command)


def ones_option(command: F) -> F:
    return click.option(
        "--ones",
        type=click.Choice(ONES),
        help="What a 1 stands for in a trace of numbers that does not say so.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def complete_run(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        workspace = find_workspace(ctx.params.get("workspace_url", ""))
        # The newest only: a key must answer at once, however many runs there ever were.
        live = {*workspace.heartbeats(), *workspace.wakeups()}
        runs = sorted({*live, *EndedRuns(workspace).submitted_last(_COMPLETED)}, key=natural)
    except OutlastError:
        return []
    return [run for run in [*runs, "last"] if run.startswith(beginning)]


def run_argument(command: F) -> F:
    return click.argument("run_name", metavar="RUN", shell_complete=complete_run)(command)


def tell_prices(cloud: object) -> None:
    """Say so where the prices that were shown are not the cloud's own of today."""
    if said := getattr(cloud, "price_note", ""):
        note(f"prices: {said}")
