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
    from outlast.volumes.care import Keeper
    from outlast.workspace.holdings import Holding, Holdings


def _find(name: str, workspace_url: str) -> tuple[Keeper, Holdings, Holding]:
    from outlast.volumes.care import keeper

    holdings, holding = ready(name, workspace_url, "volume")
    return keeper(clouds(holdings.workspace), holding.cloud), holdings, holding


def _inside(holding: Holding, folder: str) -> str:
    """A path in the volume. Raises UsageError for one that leads out of it."""
    plain = os.path.normpath(f"/{folder}").lstrip("/")
    if ".." in folder.split("/"):
        raise UsageError(f"`{folder}` leads out of the volume `{holding.name}`", hint="write it without `..`")
    return plain


@click.command()
@volume_argument
@click.argument("source", metavar="SRC")
@click.option("--to", "folder", default="", metavar="FOLDER", help="Into this folder of the volume.")
@workspace_option
def populate(name: str, source: str, folder: str, workspace_url: str) -> int:
    """Copy the file SRC, or what is in the folder SRC, into the volume NAME; repeated, it goes on where it ended."""
    from outlast.volumes import door, fill, send

    cloud, holdings, holding = _find(name, workspace_url)
    path = os.path.expanduser(source)
    if holding.mount_kind == "folder":
        volume = cloud.volumes.find(holding.there)
        room = min(volume.size_gb * 1e9 - (volume.used_gb or 0.0) * 1e9, _free(holding.source))
        target = os.path.join(holding.source, _inside(holding, folder))
        done = fill.fill(path, target, room_bytes=room, say=note)
        click.echo(f"{name}: {done.files} files copied, {done.bytes / 1e6:.1f} MB; {done.same} were there already")
        return 0
    if not os.path.exists(path):
        raise UsageError(f"SRC: there is no `{source}`", hint="name a file or a folder of this computer")
    with door.door(cloud, holdings.workspace, holding, say=note) as (opened, link):
        target = os.path.join(opened.path, _inside(holding, folder))
        link.run(["mkdir", "-p", target])
        files, size = send.send(link, path, target, say=note)
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

    from outlast.volumes import door

    cloud, holdings, holding = _find(name, workspace_url)
    inner = _inside(holding, folder)
    if holding.mount_kind == "folder":
        entries = _listed(holding, inner)
    else:
        with door.door(cloud, holdings.workspace, holding, say=note) as (opened, link):
            entries = door.listing(link, os.path.join(opened.path, inner))
    if as_json:
        rows = [{"name": entry, "bytes": size, "folder": is_folder} for entry, size, is_folder in entries]
        click.echo(json.dumps(rows, indent=1))
        return 0
    lines = [
        [f"{entry}/" if is_folder else entry, "" if is_folder else str(size)] for entry, size, is_folder in entries
    ]
    click.echo(table(lines, header=["NAME", "BYTES"]) if lines else "it is empty")
    return 0


def _listed(holding: Holding, inner: str) -> list[tuple[str, int, bool]]:
    path = os.path.join(holding.source, inner)
    if not os.path.isdir(path):
        raise NoSuchStore(
            f"the volume `{holding.name}` has no folder `{inner}`", hint=f"outlast volume ls {holding.name}"
        )
    with os.scandir(path) as found:
        rows = [(e.name, e.stat(follow_symlinks=False).st_size, e.is_dir(follow_symlinks=False)) for e in found]
    return sorted(rows)


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="[NAME] PATH", shell_complete=complete_volume_or_folder)
@click.option("--machine", "by_machine", is_flag=True, help="Through a machine and sshfs also where a folder would do.")
@workspace_option
def mount(words: tuple[str, ...], by_machine: bool, workspace_url: str) -> int:
    """Show the volume NAME, or the only one there is, in the folder PATH of this computer."""
    from outlast.volumes import laptop

    if len(words) > 2:
        raise UsageError("say which volume, and where: NAME PATH")
    name = words[0] if len(words) == 2 else _only(workspace_url)
    cloud, holdings, holding = _find(name, workspace_url)
    made = laptop.mount(cloud, holdings.workspace, holding, words[-1], by_machine=by_machine, say=note)
    said = {"bind": "a bind mount of its folder", "link": "a link to its folder: mounting needs root"}
    how = said.get(made.how, f"sshfs through {made.machine}, which bills until `unmount` or for 12 hours")
    click.echo(f"{name} is at {made.path}")
    note(f"{how}; `outlast volume unmount {words[-1]}` undoes it")
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
    from outlast.volumes import laptop
    from outlast.volumes.care import keeper

    known = laptop.unmount(lambda name: keeper(clouds(), name), find_workspace, path)
    click.echo(f"{known.volume} is no longer at {known.path}")
    return 0
