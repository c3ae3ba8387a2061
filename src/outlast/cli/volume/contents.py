"""`outlast volume populate` and `ls`: the files of a volume, from this computer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from outlast.cli.shared.command import READ_ONLY, RESUMABLE, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.resources import ready, volume_argument
from outlast.cli.shared.terminal import note, table
from outlast.errors import NoSuchStore, UsageError

if TYPE_CHECKING:
    from outlast.app.types import HasVolumes, ResourceRecord, ResourceRecords


def _find(name: str, workspace_url: str) -> tuple[HasVolumes, ResourceRecords, ResourceRecord]:
    from outlast.volumes.lifecycle import volumes_of

    records, record = ready(name, workspace_url, "volume")
    return volumes_of(clouds(records.workspace), record.cloud), records, record


def _inside(record: ResourceRecord, folder: str) -> str:
    """Return a normal path in the volume. Raises UsageError for a path that leaves it."""
    plain = os.path.normpath(f"/{folder}").lstrip("/")
    if ".." in folder.split("/"):
        raise UsageError(f"`{folder}` leaves the volume `{record.name}`", hint="write it without `..`")
    return plain


@command(progress="copying", interrupt=RESUMABLE)
@volume_argument
@click.argument("source", metavar="SRC")
@click.option("--to", "folder", default="", metavar="FOLDER", help="Folder of the volume to copy to.")
@workspace_option
def populate(name: str, source: str, folder: str, workspace_url: str) -> int:
    """Copy the file SRC, or the files of the folder SRC, into the volume NAME. Repeating it resumes the copy."""
    from outlast.volumes import gateway, populate, upload

    cloud, records, record = _find(name, workspace_url)
    path = os.path.expanduser(source)
    if record.mount_kind == "folder":
        volume = cloud.volumes.find(record.there)
        room = min(volume.size_gb * 1e9 - (volume.used_gb or 0.0) * 1e9, _free(record.source))
        target = os.path.join(record.source, _inside(record, folder))
        done = populate.populate(path, target, room_bytes=room, report=note)
        click.echo(f"{name}: {done.files} files copied, {done.bytes / 1e6:.1f} MB; {done.same} already existed")
        return 0
    if not os.path.exists(path):
        raise UsageError(f"SRC: no such file or folder: `{source}`", hint="name a file or a folder of this computer")
    with gateway.gateway(cloud, records.workspace, record, report=note) as (opened, link):
        target = os.path.join(opened.path, _inside(record, folder))
        link.run(["mkdir", "-p", target])
        files, size = upload.upload(link, path, target, report=note)
    click.echo(f"{name}: {files} files, {size / 1e6:.1f} MB in the volume")
    return 0


def _free(folder: str) -> float:
    import shutil

    return float(shutil.disk_usage(folder).free)


@command(progress="listing", interrupt=READ_ONLY, json="list[FileRow]")
@volume_argument
@click.argument("folder", required=False, default="")
@json_option
@workspace_option
def ls(name: str, folder: str, as_json: bool, workspace_url: str) -> int:
    """List the files of the volume NAME, or of a FOLDER in it."""
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
    click.echo(table(lines, header=["NAME", "BYTES"]) if lines else "empty")
    return 0


def _listed(record: ResourceRecord, inner: str) -> list[tuple[str, int, bool]]:
    path = os.path.join(record.source, inner)
    if not os.path.isdir(path):
        raise NoSuchStore(
            f"volume `{record.name}` has no folder `{inner}`",
            hint=f"outlast volume ls {record.name}",
        )
    with os.scandir(path) as found:
        rows = [(e.name, e.stat(follow_symlinks=False).st_size, e.is_dir(follow_symlinks=False)) for e in found]
    return sorted(rows)
