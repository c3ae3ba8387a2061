"""What commands share: the workspace option, run names with completion, clouds, and small print helpers."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.errors import OutlastError
from outlast.workspace.workspace import Workspace, open_workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import Cloud

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


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def _complete_run(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        runs = find_workspace(ctx.params.get("workspace_url", "")).runs()
    except OutlastError:
        return []
    return [run for run in [*runs, "last"] if run.startswith(beginning)]


def run_argument(command: F) -> F:
    return click.argument("run_name", metavar="RUN", shell_complete=_complete_run)(command)


def find_workspace(url: str) -> Workspace:
    """The workspace meant: the option, the environment, `outlast.toml`, the default; in this order."""
    if not url and not os.environ.get("OUTLAST_WORKSPACE"):
        from outlast.cli.project import workspace_of_project

        url = workspace_of_project()
    return open_workspace(url)


def clouds() -> Mapping[str, Cloud]:
    """Every cloud that this installation can talk to."""
    from outlast.clouds.local.cloud import LocalCloud

    return {"local": LocalCloud()}


def note(text: str) -> None:
    """Progress: to stderr, never in the way of results."""
    click.echo(text, err=True)


def dim(text: str) -> str:
    return click.style(text, dim=True)


def _columns() -> int:
    """The width of the terminal. As `shutil` tells it, which takes five milliseconds to load."""
    wish = os.environ.get("COLUMNS", "")
    return int(wish) if wish.isdigit() and int(wish) else os.get_terminal_size(sys.stdout.fileno()).columns or 80


def table(rows: list[list[str]], *, header: list[str]) -> str:
    """Columns as wide as their widest cell. The last one is cut to the terminal's width, if there is a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    limit = _columns() if sys.stdout.isatty() else 10_000
    lines = []
    for row in [header, *rows]:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(line if len(line) <= limit else line[: limit - 1] + "…")
    return "\n".join([dim(lines[0]), *lines[1:]])


def money(usd: float) -> str:
    """Cents where they are seen; two digits that mean something for the little that a local machine costs."""
    if usd >= 0.1 or usd == 0:
        return f"${usd:.2f}"
    return f"${usd:.{min(7, 1 - math.floor(math.log10(usd)))}f}"
