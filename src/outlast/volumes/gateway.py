"""Gateways: temporary machines with a volume mounted, through which a user's computer reaches the volume."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from outlast.clouds.cloud import Boot, HostAccess, Range, Requirements
from outlast.errors import CloudError, OutlastError, UsageError, WorkspaceError
from outlast.machines import lifecycle as machine_lifecycle
from outlast.machines import sshfiles
from outlast.machines.create import MachineRequest, create_machine, finish, roll_back
from outlast.machines.ssh import Link
from outlast.records.machines import MachineRecords
from outlast.records.mounts import nfs_script
from outlast.records.resources import ResourceRecord
from outlast.volumes.lifecycle import HasVolumes
from outlast.workspace import Workspace

PURPOSE = "volume"
# A forgotten mount must not be billed forever.
LIFE_S = 12 * 3600.0
# Interval of the owner's sign of life while a command uses the gateway; without it, the reaper deletes the machine.
_HEARTBEAT_S = 60.0


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and the path of the volume on it."""

    machine: str
    path: str


def open_gateway(
    cloud: HasVolumes,
    workspace: Workspace,
    record: ResourceRecord,
    *,
    report: Callable[[str], None],
    stays: bool = True,
) -> Gateway:
    """Launch a gateway. An error leaves nothing behind.

    With `stays`, it lives until it is closed or for `LIFE_S`. Otherwise, the reaper deletes it when this process dies.
    """
    machine_records = MachineRecords(workspace)
    folder = record.mount_kind == "folder"
    host = HostAccess(writable=(record.source,)) if folder else None
    request = MachineRequest(
        name=f"volume-{record.name}-{workspace.ids()[:6]}",
        needs=Requirements(cpus=Range(low=1.0), spot=False, zones=record.zones, disk_gb=10.0),
        boot=Boot(ssh_keys=(sshfiles.public_key(),), host=host, life_max_s=LIFE_S),
        purpose=PURPOSE,
    )
    machine, machine_record = create_machine(cloud, machine_records, request, report=report)
    with ExitStack() as undo:
        undo.callback(roll_back, cloud, machine_records, machine_record, report=report)
        report(f"launched gateway {machine.name}: {machine.type} in {machine.zone}")
        path = record.source if folder else f"/mnt/outlast/{record.name}"
        link = Link(cloud, machine.name)
        if folder:
            link.run(["test", "-d", path])
        else:
            script = nfs_script(record.source, path, record.options) + f"chmod 1777 {shlex.quote(path)}\n"
            link.run(["sudo", "-n", "sh", "-c", script])
        if stays:
            # The reaper deletes it after this time.
            finish(machine_records, msgspec.structs.replace(machine_record, until=machine_records.now() + LIFE_S))
        undo.pop_all()
    return Gateway(machine=machine.name, path=path)


def close_gateway(cloud: HasVolumes, workspace: Workspace, machine: str) -> None:
    """Delete the gateway. May be repeated."""
    machine_lifecycle.delete(cloud, MachineRecords(workspace), machine)


@contextmanager
def gateway(
    cloud: HasVolumes, workspace: Workspace, record: ResourceRecord, *, report: Callable[[str], None]
) -> Iterator[tuple[Gateway, Link]]:
    """Open a gateway for the duration of one command."""
    opened = open_gateway(cloud, workspace, record, report=report, stays=False)
    link = Link(cloud, opened.machine)
    over = threading.Event()
    beat = threading.Thread(
        target=_heartbeat, args=(MachineRecords(workspace), opened.machine, over), name="gateway", daemon=True
    )
    beat.start()
    try:
        yield opened, link
    finally:
        over.set()
        beat.join()
        link.close()
        try:
            close_gateway(cloud, workspace, opened.machine)
        except OutlastError as problem:
            report(f"{opened.machine} may still exist and be billed: {problem.message}; `outlast reap` deletes it")


def _heartbeat(machine_records: MachineRecords, machine: str, over: threading.Event) -> None:
    """Rewrite the machine's record periodically, as a sign of life."""
    while not over.wait(_HEARTBEAT_S):
        # A temporary error, or the machine is gone: then the command itself fails.
        with suppress(WorkspaceError, UsageError):
            if (machine_record := machine_records.find(machine)) is not None:
                machine_records.write(machine_record)


def listing(link: Link, path: str) -> list[tuple[str, int, bool]]:
    """Return name, size and whether it is a folder, for each entry of a folder on the machine."""
    script = f"cd {shlex.quote(path)} && find . -mindepth 1 -maxdepth 1 -printf '%y %s %f\\0'"
    answer = link.run(script, check=False)
    if answer.returncode != 0:
        raise CloudError(f"cannot list `{path}` of the volume: {answer.stderr.decode(errors='replace').strip()[-200:]}")
    entries = [line.split(" ", 2) for line in answer.stdout.decode("utf-8", "surrogateescape").split("\0") if line]
    return sorted((name, int(size), kind == "d") for kind, size, name in entries)
