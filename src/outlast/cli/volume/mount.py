"""`outlast volume populate`, `ls`, `mount`, `unmount`: what is in a volume, from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.completion import complete_volume_or_folder
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.resources import holdings_of
from outlast.cli.shared.terminal import note
from outlast.cli.volume.contents import _find
from outlast.errors import UsageError

if TYPE_CHECKING:
    pass


@command(progress="mounting", interrupt="the volume may be mounted: `outlast volume unmount PATH` unmounts it")
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


@command(progress="unmounting", interrupt=UNCERTAIN)
@click.argument("path")
def unmount(path: str) -> int:
    """Undo `mount` for the folder PATH; the machine that was started for it goes with it."""
    from outlast.cli.shared.terminal import find_workspace
    from outlast.volumes import local_mount
    from outlast.volumes.lifecycle import volumes_of

    known = local_mount.unmount(lambda name: volumes_of(clouds(), name), find_workspace, path)
    click.echo(f"{known.volume} is no longer at {known.path}")
    return 0
