"""`outlast supervise --on CLOUD` and `--off`: the supervisor machine, and the process on it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from outlast.cli.machine.find import interactive_cloud
from outlast.cli.shared.options import Clouds, print_price_note
from outlast.cli.shared.terminal import note
from outlast.errors import CloudError, NotFound, UsageError
from outlast.machines import supervisor_vm
from outlast.records.machines import MachineRecords, supervisor_name
from outlast.store.lease import supervisors
from outlast.supervisor.boot import supervisor_boot
from outlast.supervisor.supervisor_vm import SupervisorVm, title

if TYPE_CHECKING:
    from outlast.app.types import Lease, Workspace

# From the launch until it supervises: booting, and installing outlast if the image has none.
_WAIT_S, _POLL_S = 600.0, 2.0


def put_up(
    workspace: Workspace,
    *,
    cloud: str,
    until_idle: bool,
    zones: tuple[str, ...],
    type_name: str,
    no_wait: bool,
    off: bool = False,
) -> int:
    """Create the machine or find it, and wait until it supervises."""
    assert not off
    supervisor_vm.check(cloud, workspace.url)
    lease = supervisors(workspace.bucket, workspace.url)
    before = lease.holder()
    made_on = interactive_cloud(cloud)
    machine, fresh = supervisor_vm.ensure(
        made_on,
        MachineRecords(workspace),
        boot=lambda: supervisor_boot(workspace, cloud),
        until_idle=until_idle,
        type=type_name,
        zones=zones,
        report=note,
    )
    note(f"{machine.name} {'boots' if fresh else 'already exists'}: {machine.type} in {machine.zone}")
    if not no_wait:
        # A lease of an earlier boot does not count.
        _wait(lease, cloud, machine.name, after=before.epoch if before and fresh else 0)
    click.echo(title(machine))
    print_price_note(made_on)
    ends = "until the last run ends" if until_idle else "until `outlast supervise --off`"
    note(f"it supervises {workspace.url} {ends}; this computer may sleep")
    return 0


def _wait(lease: Lease, cloud: str, name: str, *, after: int) -> None:
    """Wait for its lease. Raises CloudError; the machine is kept for inspection."""
    give_up_at = time.monotonic() + _WAIT_S
    note("waiting until it supervises; Ctrl-C stops waiting")
    while time.monotonic() < give_up_at:
        holder = lease.holder()
        if holder is not None and holder.who.startswith(name) and holder.epoch > after:
            return
        if holder is not None and not holder.who.startswith(name):
            note(f"{holder.who} still supervises; {name} takes over when it stops")
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


def take_down(workspace: Workspace) -> int:
    machine_records = MachineRecords(workspace)
    machine_record = supervisor_vm.find(machine_records)
    if machine_record is None:
        note(f"no supervisor machine for {workspace.url}")
        return 0
    supervisor_vm.off(interactive_cloud(machine_record.cloud), machine_records)
    note(f"{machine_record.name} on {machine_record.cloud} was deleted")
    if workspace.heartbeats():
        note("the runs continue, and preempted ones wait for the next `outlast supervise`")
    return 0


def serve(workspace: Workspace, supervisor_vm_location: str, *, report: Callable[[str], None]) -> int:
    """Supervise on that machine. `supervisor_vm_location` is the cloud and the machine's name."""
    cloud, _, name = supervisor_vm_location.partition("/")
    if name != supervisor_name(workspace):
        raise UsageError(f"{name} is not the machine that supervises {workspace.url}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    clouds = Clouds((*workspace.clouds(), cloud))
    served = SupervisorVm(workspace, clouds, clouds[cloud].machine(name), report=report)
    report(f"supervising {workspace.url}")
    if not served.serve(stop):
        served.go()
    return 0
