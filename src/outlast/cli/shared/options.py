"""Options and arguments that many commands share, with completion of run names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from outlast.app.clouds import Clouds as Clouds
from outlast.app.clouds import clouds as clouds
from outlast.app.listing import names_offered
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import OutlastError, UsageError
from outlast.spec.trace import ONES

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def workspace_option(command: F) -> F:
    return click.option(
        "--workspace",
        "-w",
        "workspace_url",
        default="",
        metavar="WHERE",
        help="Workspace: a folder, gs://… or s3://….",
    )(command)


def ones_option(command: F) -> F:
    return click.option(
        "--ones",
        type=click.Choice(ONES),
        help="Meaning of 1 in a numeric trace that does not declare it.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def complete_run(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    try:
        workspace = find_workspace(ctx.params.get("workspace_url", ""))
        runs = names_offered(workspace)
    except OutlastError:
        return []
    return [run for run in [*runs, "last"] if run.startswith(beginning)]


def run_argument(command: F) -> F:
    return click.argument("run_name", metavar="RUN", shell_complete=complete_run)(command)


def runs_argument(command: F) -> F:
    return click.argument("run_names", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_run)(command)


def parse_option(option: str, text: str | None, parse: Callable[[object], T], default: T) -> T:
    """Parse the value of an option; return the default if it is not given. Raises UsageError."""
    if text is None:
        return default
    try:
        return parse(text)
    except ValueError as problem:
        raise UsageError(f"{option}: {problem}") from problem


def print_price_note(cloud: object) -> None:
    """Print a note if the prices are not the current ones of the cloud."""
    if text := getattr(cloud, "price_note", ""):
        note(f"prices: {text}")
