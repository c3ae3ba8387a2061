"""What commands share: the workspace option, run names with completion, clouds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.cli.terminal import find_workspace
from outlast.errors import OutlastError

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


def clouds() -> Mapping[str, Cloud]:
    """Every cloud that this installation can talk to."""
    from outlast.clouds.local.cloud import LocalCloud

    return {"local": LocalCloud()}
