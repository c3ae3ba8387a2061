"""`outlast volume populate`, `ls`, `mount`, `unmount`: what is in a volume, from here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from outlast.cli.complete import complete_volume_or_folder
from outlast.cli.options import clouds, json_option, workspace_option
from outlast.cli.store_find import holdings_of, ready, volume_argument
from outlast.cli.terminal import note, table
from outlast.errors import NoSuchStore, UsageError

if TYPE_CHECKING:
    from outlast.records.resources import ResourceRecord, ResourceRecords
    from outlast.volumes.lifecycle import HasVolumes


def _find(name: str, workspace_url: str) -> tuple[HasVolumes, ResourceRecords, ResourceRecord]:
    from outlast.volumes.lifecycle import volumes_of

    records, record = ready(name, workspace_url, "volume")
    return volumes_of(clouds(records.workspace), record.cloud), records, record


def _inside(record: ResourceRecord, folder: str) -> str:
    """A path in the volume. Raises UsageError for one that leads out of it."""
    plain = os.path.normpath(f"/{folder}").lstrip("/")
    if ".." in folder.split("/"):
        raise UsageError(f"`{folder}` leads out of the volume `{record.name}`", hint="write it without `..`")
    return plain


@click.command()
@volume_argument
@click.argument("source", metavar="SRC")
@click.option("--to", "folder", default="", metavar="FOLDER", help="Into this folder of the volume.")
@workspace_option
def populate(name: str, source: str, folder: str, workspace_url: str) -> int:
    """Copy the file SRC, or what is in the folder SRC, into the volume NAME; repeated, it goes on where it ended."""
    from outlast.volumes import gateway, populate, upload

    cloud, records, record = _find(name, workspace_url)
    path = os.path.expanduser(source)
    if record.mount_kind == "folder":
        volume = cloud.volumes.find(record.there)
        room = min(volume.size_gb * 1e9 - (volume.used_gb or 0.0) * 1e9, _free(record.source))
        target = os.path.join(record.source, _inside(record, folder))
        done = populate.populate(path, target, room_bytes=room, report=note)
        click.echo(f"{name}: {done.files} files copied, {done.bytes / 1e6:.1f} MB; {done.same} were there already")
        return 0
    if not os.path.exists(path):
        raise UsageError(f"SRC: there is no `{source}`", hint="name a file or a folder of this computer")
    with gateway.gateway(cloud, records.workspace, record, report=note) as (opened, link):
        target = os.path.join(opened.path, _inside(record, folder))
        link.run(["mkdir", "-p", target])
        files, size = upload.upload(link, path, target, report=note)
    click.echo(f"{name}: {files} files, {size / 1e6:.1f} MB are there")
    return 0


def _free(folder: str) -> float:
    import shutil

    return float(shutil.disk_usage(folder).free)


@click.command()
@volume_argument
@click.argument("folder", required=False, default="")
@json_option
@workspace_option
def ls(name: str, folder: str, as_json: bool, workspace_url: str) -> int:
    """List what is in the volume NAME, or in a FOLDER of it."""
    import json

    from outlast.volumes import gateway

    cloud, records, record = _find(name, workspace_url)
    inner = _inside(record, folder)
    if record.mount_kind == "folder":
        entries = _listed(record, inner)
    else:
        with gateway.gateway(cloud, records.workspace, record, report=note) as (opened, link):
            entries = gateway.listing(link, os.path.join(opened.path, inner))
    if as_json:
        rows = [{"name": entry, "bytes": size, "folder": is_folder} for entry, size, is_folder in entries]
        click.echo(json.dumps(rows, indent=1))
        return 0
    lines = [
        [f"{entry}/" if is_folder else entry, "" if is_folder else str(size)] for entry, size, is_folder in entries
    ]
    click.echo(table(lines, header=["NAME", "BYTES"]) if lines else "it is empty")
    return 0


def _listed(record: ResourceRecord, inner: str) -> list[tuple[str, int, bool]]:
    path = os.path.join(record.source, inner)
    if not os.path.isdir(path):
        raise NoSuchStore(
            f"the volume `{record.name}` has no folder `{inner}`",
            hint=f"outlast volume ls {record.name}",
        )
    with os.scandir(path) as found:
        rows = [(e.name, e.stat(follow_symlinks=False).st_size, e.is_dir(follow_symlinks=False)) for e in found]
    return sorted(rows)


@click.command()
@click.argument("argv", nargs=-1, required=True, metavar="[NAME] PATH", shell_complete=complete_volume_or_folder)
@click.option("--machine", "by_machine", is_flag=True, help="Through a machine and sshfs also where a folder would do.")
@workspace_option
def mount(argv: tuple[str, ...], by_machine: bool, workspace_url: str) -> int:
    """Show the volume NAME, or the only one there is, in the folder PATH of this computer."""
    from outlast.volumes import local_mount

    if len(argv) > 2:
        raise UsageError("say which volume, and where: NAME PATH")
    name = argv[0] if len(argv) == 2 else _only(workspace_url)
    cloud, records, record = _find(name, workspace_url)
    made = local_mount.mount(cloud, records.workspace, record, argv[-1], by_machine=by_machine, report=note)
    said = {"bind": "a bind mount of its folder", "link": "a link to its folder: mounting needs root"}
    how = said.get(made.how, f"sshfs through {made.machine}, which bills until `unmount` or for 12 hours")
    click.echo(f"{name} is at {made.path}")
    note(f"{how}; `outlast volume unmount {argv[-1]}` undoes it")
    return 0


def _only(workspace_url: str) -> str:
    names = [one.name for one in holdings_of(workspace_url, "volume").all()]
    if len(names) != 1:
        known = ", ".join(names) or "none; `outlast volume create`"
        raise UsageError("say which volume: NAME PATH", hint=f"there are: {known}")
    return names[0]


@click.command()
@click.argument("path")
def unmount(path: str) -> int:
    """Undo `mount` for the folder PATH; the machine that was started for it goes with it."""
    from outlast.cli.terminal import find_workspace
    from outlast.volumes import local_mount
    from outlast.volumes.lifecycle import volumes_of

    known = local_mount.unmount(lambda name: volumes_of(clouds(), name), find_workspace, path)
    click.echo(f"{known.volume} is no longer at {known.path}")
    return 0
