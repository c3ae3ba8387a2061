"""Machines that users create: their clouds, and their lookup by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from outlast.app.clouds import clouds
from outlast.clouds.registry import interactive_clouds as interactive_clouds
from outlast.errors import CloudError, NotFound, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud, Machine
    from outlast.machines.ssh import Link
    from outlast.records.machines import MachineRecords
    from outlast.workspace import Workspace


def interactive_cloud(name: str) -> InteractiveCloud:
    """Return a cloud whose machines accept logins. Raises UsageError."""
    found = clouds().get(name)
    if found is None or not hasattr(found, "access"):
        raise UsageError(f"unknown cloud `{name}`", hint="use local, gcp or aws")
    return cast("InteractiveCloud", found)


def machine_records(workspace: Workspace) -> MachineRecords:
    from outlast.records.machines import MachineRecords

    return MachineRecords(workspace)


def find_machine(records: MachineRecords, name: str, *, cloud_name: str = "") -> tuple[InteractiveCloud, Machine]:
    """Find a machine: on the cloud in its record, else on all clouds. Raises NotFound with similar names."""
    from outlast.machines.sshfiles import alias
    from outlast.machines.status import collect_status, similar_names

    alias(name)
    record = records.find_readable(name)
    wanted = cloud_name or (record.cloud if record else "")
    searched = {wanted: interactive_cloud(wanted)} if wanted else interactive_clouds(records.workspace)
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
    entries, _ = collect_status(searched, records, with_drift=False)
    close = similar_names(name, entries)
    hint = "did you mean " + ", ".join(f"`{n}`" for n in close) if close else "see `outlast machine list`"
    raise NotFound(f"no such machine: `{name}`", hint=hint)


def connect_machine(records: MachineRecords, name: str, *, cloud_name: str = "") -> Link:
    """Return a link to a running machine. Raises BadRequest for a stopped one."""
    from outlast.errors import BadRequest
    from outlast.machines.ssh import Link

    cloud, machine = find_machine(records, name, cloud_name=cloud_name)
    if machine.status in ("stopped", "broken"):
        why = f": {machine.why}" if machine.why not in ("", machine.status) else ""
        raise BadRequest(f"{name} is {machine.status}{why}", hint=f"`outlast machine start {name}`")
    return Link(cloud, name)
