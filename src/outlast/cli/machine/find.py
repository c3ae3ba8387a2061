"""Lookup of a machine by name: on the cloud in its record, else on every cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from outlast.cli.completion import complete_cloud
from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import find_workspace
from outlast.clouds.cloud import InteractiveCloud
from outlast.clouds.registry import (
    interactive_clouds as interactive_clouds,  # re-exported for the commands
)
from outlast.errors import CloudError, NotFound, OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.app.types import Machine, MachineRecords

F = TypeVar("F", bound=Callable[..., Any])


def interactive_cloud(name: str) -> InteractiveCloud:
    found = clouds().get(name)
    if found is None or not hasattr(found, "access"):
        raise UsageError(f"unknown cloud `{name}`", hint="use local, gcp or aws")
    return cast(InteractiveCloud, found)


def machine_records_in(workspace_url: str) -> MachineRecords:
    from outlast.records.machines import MachineRecords

    return MachineRecords(find_workspace(workspace_url))


def find(machine_records: MachineRecords, name: str, *, cloud_name: str = "") -> tuple[InteractiveCloud, Machine]:
    """Find a machine on all clouds. Raises NotFound with similar names."""
    from outlast.machines.sshfiles import alias
    from outlast.machines.status import collect_status, similar_names

    alias(name)
    record = machine_records.find_readable(name)
    wanted = cloud_name or (record.cloud if record else "")
    searched = {wanted: interactive_cloud(wanted)} if wanted else interactive_clouds(machine_records.workspace)
    errors: list[str] = []
    for cloud in searched.values():
        try:
            return cloud, cloud.machine(name)
        except NotFound:
            continue
        except CloudError as problem:
            errors.append(f"{cloud.name}: {problem.message}")
    if errors:
        raise CloudError(f"could not search for `{name}`: {'; '.join(errors)}", hint="retry, or use --cloud")
    if record is not None:
        raise NotFound(
            f"machine `{name}` was deleted outside outlast on {record.cloud}, with its disk",
            hint=f"`outlast machine delete {name}` removes its record; then it can be created again",
        )
    entries, _ = collect_status(searched, machine_records, with_drift=False)
    close = similar_names(name, entries)
    hint = "did you mean " + ", ".join(f"`{n}`" for n in close) if close else "see `outlast machine list`"
    raise NotFound(f"no such machine: `{name}`", hint=hint)


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


def cloud_option(command: F) -> F:
    return click.option(
        "--cloud", "cloud_name", default="", metavar="NAME", shell_complete=complete_cloud, help="Cloud."
    )(command)
