"""Which machine is meant by a name: its record says on which cloud it is; else every cloud is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from outlast.cli.completion import complete_cloud
from outlast.cli.shared.options import clouds
from outlast.cli.shared.terminal import find_workspace
from outlast.clouds.cloud import InteractiveCloud, Machine
from outlast.clouds.registry import (
    interactive_clouds as interactive_clouds,  # where the commands about machines look for them
)
from outlast.errors import CloudError, NotFound, OutlastError, UsageError

if TYPE_CHECKING:
    from outlast.records.machines import MachineRecords

F = TypeVar("F", bound=Callable[..., Any])


def workshop(name: str) -> InteractiveCloud:
    found = clouds().get(name)
    if found is None or not hasattr(found, "access"):
        raise UsageError(f"there is no cloud `{name}` to work on by hand", hint="use local, gcp or aws")
    return cast(InteractiveCloud, found)


def hands_of(workspace_url: str) -> MachineRecords:
    from outlast.records.machines import MachineRecords

    return MachineRecords(find_workspace(workspace_url))


def find(machine_records: MachineRecords, name: str, *, cloud_name: str = "") -> tuple[InteractiveCloud, Machine]:
    """The machine, wherever it is. Raises NotFound with names that are near."""
    from outlast.machines.sshfiles import alias
    from outlast.machines.status import collect_status, near

    alias(name)
    record = machine_records.find_readable(name)
    wanted = cloud_name or (record.cloud if record else "")
    asked = {wanted: workshop(wanted)} if wanted else interactive_clouds(machine_records.workspace)
    silent: list[str] = []
    for cloud in asked.values():
        try:
            return cloud, cloud.machine(name)
        except NotFound:
            continue
        except CloudError as problem:
            silent.append(f"{cloud.name}: {problem.message}")
    if silent:
        raise CloudError(f"could not look for `{name}`: {'; '.join(silent)}", hint="try again, or say --cloud")
    if record is not None:
        raise NotFound(
            f"the machine `{name}` is gone: somebody deleted it on {record.cloud}, and its disk with it",
            hint=f"`outlast machine delete {name}` forgets it; then it can be made anew",
        )
    sights, _ = collect_status(asked, machine_records, with_drift=False)
    close = near(name, sights)
    hint = "did you mean " + ", ".join(f"`{n}`" for n in close) if close else "see `outlast machine list`"
    raise NotFound(f"there is no machine `{name}`", hint=hint)


def complete_machine(ctx: click.Context, _param: click.Parameter, beginning: str) -> list[str]:
    """Names from the records alone: asking clouds takes too long for a press of a key."""
    try:
        names = [machine_record.name for machine_record in hands_of(ctx.params.get("workspace_url") or "").all()]
    except OutlastError:
        return []
    return [name for name in names if name.startswith(beginning)]


def name_argument(command: F) -> F:
    return click.argument("name", shell_complete=complete_machine)(command)


def cloud_option(command: F) -> F:
    return click.option(
        "--cloud", "cloud_name", default="", metavar="NAME", shell_complete=complete_cloud, help="On this cloud."
    )(command)
