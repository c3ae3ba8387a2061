"""The argument and the options that name a machine, with completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from outlast.app.machines import interactive_cloud as interactive_cloud
from outlast.app.machines import interactive_clouds as interactive_clouds
from outlast.app.machines import machine_records
from outlast.cli.completion import complete_cloud
from outlast.cli.shared.terminal import find_workspace
from outlast.errors import OutlastError

if TYPE_CHECKING:
    from outlast.app.types import MachineRecords

F = TypeVar("F", bound=Callable[..., Any])


def machine_records_in(workspace_url: str) -> MachineRecords:
    return machine_records(find_workspace(workspace_url))


def complete_machine(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    """Return names from the records: querying clouds is too slow for completion."""
    try:
        names = [
            machine_record.name for machine_record in machine_records_in(ctx.params.get("workspace_url") or "").all()
        ]
    except OutlastError:
        return []
    return [name for name in names if name.startswith(beginning)]


def name_argument(command: F) -> F:
    return click.argument("name", shell_complete=complete_machine)(command)


def names_argument(command: F) -> F:
    return click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_machine)(command)


def cloud_option(command: F) -> F:
    return click.option(
        "--cloud", "cloud_name", default="", metavar="NAME", shell_complete=complete_cloud, help="Cloud."
    )(command)
