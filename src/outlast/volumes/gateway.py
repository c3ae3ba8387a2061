"""A machine that is started for a volume, with the volume mounted, and goes away again: the way in from a laptop."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import msgspec

from outlast.clouds.cloud import Boot, HostAccess, Range, Requirements
from outlast.errors import CloudError, OutlastError, UsageError, WorkspaceError
from outlast.machines import lifecycle as machine_care
from outlast.machines import sshfiles
from outlast.machines.create import MachineRequest, create_machine, finish, roll_back
from outlast.machines.ssh import Link
from outlast.records.machines import MachineRecords
from outlast.records.mounts import nfs_script
from outlast.records.resources import ResourceRecord
from outlast.volumes.lifecycle import HasVolumes
from outlast.workspace import Workspace

PURPOSE = "volume"
# A laptop that was forgotten in a drawer must not go on paying for the machine behind its mount.
LIFE_S = 12 * 3600.0
# Whose machine is there for one command says so this often; after a quarter of an hour without it is the reaper's.
_BEAT_S = 60.0


class Gateway(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, and the folder on it that is the volume."""

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
    """Raises with nothing left behind. If it `stays` it is there until somebody closes it, or for `LIFE_S`; else it is
    this process's, and with it the reaper's."""
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
        report(f"{machine.name} was started for it: {machine.type} in {machine.zone}")
        path = record.source if folder else f"/mnt/outlast/{record.name}"
        link = Link(cloud, machine.name)
        if folder:
            link.run(["test", "-d", path])
        else:
            script = nfs_script(record.source, path, record.options) + f"chmod 1777 {shlex.quote(path)}\n"
            link.run(["sudo", "-n", "sh", "-c", script])
        if stays:
            # The reaper takes it if nobody comes back for it.
            finish(machine_records, msgspec.structs.replace(machine_record, until=machine_records.now() + LIFE_S))
        undo.pop_all()
    return Gateway(machine=machine.name, path=path)


def close_gateway(cloud: HasVolumes, workspace: Workspace, machine: str) -> None:
    """Repeating is fine."""
    machine_care.delete(cloud, MachineRecords(workspace), machine)


@contextmanager
def gateway(
    cloud: HasVolumes, workspace: Workspace, record: ResourceRecord, *, report: Callable[[str], None]
) -> Iterator[tuple[Gateway, Link]]:
    """For as long as one command takes."""
    opened = open_gateway(cloud, workspace, record, report=report, stays=False)
    link = Link(cloud, opened.machine)
    over = threading.Event()
    beat = threading.Thread(
        target=_beat, args=(MachineRecords(workspace), opened.machine, over), name="door", daemon=True
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
            report(f"{opened.machine} may be there and may bill: {problem.message}; `outlast reap` deletes it")


def _beat(machine_records: MachineRecords, machine: str, over: threading.Event) -> None:
    """Say again and again that somebody uses the machine."""
    while not over.wait(_BEAT_S):
        # Passing, or the machine was given up meanwhile: then the command itself will say so.
        with suppress(WorkspaceError, UsageError):
            if (machine_record := machine_records.find(machine)) is not None:
                machine_records.write(machine_record)


def listing(link: Link, path: str) -> list[tuple[str, int, bool]]:
    """Names, sizes and whether it is a folder, of what is at a path on the machine."""
    script = f"cd {shlex.quote(path)} && find . -mindepth 1 -maxdepth 1 -printf '%y %s %f\\0'"
    answer = link.run(script, check=False)
    if answer.returncode != 0:
        raise CloudError(f"there is no `{path}` in the volume: {answer.stderr.decode(errors='replace').strip()[-200:]}")
    entries = [line.split(" ", 2) for line in answer.stdout.decode("utf-8", "surrogateescape").split("\0") if line]
    return sorted((name, int(size), kind == "d") for kind, size, name in entries)
