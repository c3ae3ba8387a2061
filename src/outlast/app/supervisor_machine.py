"""The machine of a cloud that supervises a workspace: creating it, deleting it, and the process on it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from outlast.app.clouds import Clouds
from outlast.app.machines import interactive_cloud
from outlast.errors import CloudError, NotFound, UsageError
from outlast.machines import supervisor_vm
from outlast.records.machines import MachineRecords, supervisor_name
from outlast.store.lease import supervisors
from outlast.supervisor.boot import supervisor_boot
from outlast.supervisor.supervisor_vm import SupervisorVm, title
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.cloud import InteractiveCloud
    from outlast.records.machines import MachineRecord
    from outlast.store.lease import Lease

Report = Callable[[str], None]
# From the launch until it supervises: booting, and installing outlast if the image has none.
_WAIT_S, _POLL_S = 600.0, 2.0


class SupervisorMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine, with its cloud and a title such as its name, type and price."""

    name: str
    title: str
    cloud: InteractiveCloud


def ensure_supervisor_machine(
    workspace: Workspace,
    cloud: str,
    *,
    until_idle: bool = False,
    zones: tuple[str, ...] = (),
    type: str = "",
    wait: bool = True,
    report: Report,
) -> SupervisorMachine:
    """Create the machine or find it, and wait until it supervises. Raises CloudError; the machine is kept then."""
    supervisor_vm.check(cloud, workspace.url)
    lease = supervisors(workspace.bucket, workspace.url)
    before = lease.holder()
    made_on = interactive_cloud(cloud)
    machine, fresh = supervisor_vm.ensure(
        made_on,
        MachineRecords(workspace),
        boot=lambda: supervisor_boot(workspace, cloud),
        until_idle=until_idle,
        type=type,
        zones=zones,
        report=report,
    )
    report(f"{machine.name} {'boots' if fresh else 'already exists'}: {machine.type} in {machine.zone}")
    if wait:
        # A lease of an earlier boot does not count.
        _wait(lease, cloud, machine.name, after=before.epoch if before and fresh else 0, report=report)
    return SupervisorMachine(name=machine.name, title=title(machine), cloud=made_on)


def _wait(lease: Lease, cloud: str, name: str, *, after: int, report: Report) -> None:
    """Wait for its lease. Raises CloudError; the machine is kept for inspection."""
    give_up_at = time.monotonic() + _WAIT_S
    report("waiting until it supervises; Ctrl-C stops waiting")
    while time.monotonic() < give_up_at:
        holder = lease.holder()
        if holder is not None and holder.who.startswith(name) and holder.epoch > after:
            return
        if holder is not None and not holder.who.startswith(name):
            report(f"{holder.who} still supervises; {name} takes over when it stops")
            return
        try:
            machine = interactive_cloud(cloud).machine(name)
        except NotFound as problem:
            raise NotFound(f"{name} was deleted", hint="another user took it down, or no run was left") from problem
        if machine.status not in ("pending", "running"):
            break
        time.sleep(_POLL_S)
    console = "".join(f"\n  {line}" for line in interactive_cloud(cloud).serial(name).splitlines()[-5:])
    hint = f"see `outlast machine show {name}`; `outlast supervise --off` takes it down"
    raise CloudError(f"{name} runs but does not supervise; its console ends with:{console or ' nothing'}", hint=hint)


def delete_supervisor_machine(workspace: Workspace) -> MachineRecord | None:
    """Delete the machine; return its record, or None if there is none."""
    records = MachineRecords(workspace)
    record = supervisor_vm.find(records)
    if record is not None:
        supervisor_vm.off(interactive_cloud(record.cloud), records)
    return record


def serve_here(workspace: Workspace, location: str, stop: threading.Event, *, report: Report) -> None:
    """Supervise on that machine until `stop` is set, or no run is left. `location`: its cloud and its name."""
    cloud, _, name = location.partition("/")
    if name != supervisor_name(workspace):
        raise UsageError(f"{name} is not the machine that supervises {workspace.url}")
    clouds = Clouds((*workspace.clouds(), cloud))
    served = SupervisorVm(workspace, clouds, clouds[cloud].machine(name), report=report)
    report(f"supervising {workspace.url}")
    if not served.serve(stop):
        served.go()
