"""`outlast volume populate` and `ls`: the files of a volume, from this computer."""

from __future__ import annotations

import click

from outlast.app.volumes import list_files, populate_volume
from outlast.cli.shared.command import READ_ONLY, RESUMABLE, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.resources import volume_argument
from outlast.cli.shared.terminal import find_workspace, note, table


@command(progress="copying", interrupt=RESUMABLE)
@volume_argument
@click.argument("source", metavar="SRC")
@click.option("--to", "folder", default="", metavar="FOLDER", help="Folder of the volume to copy to.")
@workspace_option
def populate(name: str, source: str, folder: str, workspace_url: str) -> int:
    """Copy the file SRC, or the files of the folder SRC, into the volume NAME. Repeating it resumes the copy."""
    done = populate_volume(find_workspace(workspace_url), name, source, folder=folder, report=note)
    if done.same is None:
        click.echo(f"{name}: {done.files} files, {done.bytes / 1e6:.1f} MB in the volume")
    else:
        click.echo(f"{name}: {done.files} files copied, {done.bytes / 1e6:.1f} MB; {done.same} already existed")
    return 0


@command(progress="listing", interrupt=READ_ONLY, json="list[FileRow]")
@volume_argument
@click.argument("folder", required=False, default="")
@json_option
@workspace_option
def ls(name: str, folder: str, as_json: bool, workspace_url: str) -> int:
    """List the files of the volume NAME, or of a FOLDER in it."""
    import json

    entries = list_files(find_workspace(workspace_url), name, folder, report=note)
    if as_json:
        rows = [{"name": entry, "bytes": size, "folder": is_folder} for entry, size, is_folder in entries]
        click.echo(json.dumps(rows, indent=1))
        return 0
    lines = [
        [f"{entry}/" if is_folder else entry, "" if is_folder else str(size)] for entry, size, is_folder in entries
    ]
    click.echo(table(lines, header=["NAME", "BYTES"]) if lines else "empty")
    return 0
