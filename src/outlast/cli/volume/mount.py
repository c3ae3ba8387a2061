"""`outlast volume mount` and `unmount`: a volume in a folder of this computer."""

from __future__ import annotations

import click

from outlast.app.volumes import mount_volume, unmount_volume
from outlast.cli.completion import complete_volume_or_folder
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, note
from outlast.errors import UsageError


@command(progress="mounting", interrupt="the volume may be mounted: `outlast volume unmount PATH` unmounts it")
@click.argument("argv", nargs=-1, required=True, metavar="[NAME] PATH", shell_complete=complete_volume_or_folder)
@click.option(
    "--machine", "by_machine", is_flag=True, help="Mount through a machine and sshfs even if a folder would do."
)
@workspace_option
def mount(argv: tuple[str, ...], by_machine: bool, workspace_url: str) -> int:
    """Mount the volume NAME, or the only volume, at the folder PATH of this computer."""
    if len(argv) > 2:
        raise UsageError("too many arguments: expected NAME PATH")
    name = argv[0] if len(argv) == 2 else ""
    made = mount_volume(find_workspace(workspace_url), name, argv[-1], by_machine=by_machine, report=note)
    texts = {"bind": "a bind mount of its folder", "link": "a link to its folder: mounting needs root"}
    how = texts.get(made.how, f"sshfs through {made.machine}, which is billed until `unmount`, for at most 12 hours")
    click.echo(f"{made.volume} is at {made.path}")
    note(f"{how}; unmount with `outlast volume unmount {argv[-1]}`")
    return 0


@command(progress="unmounting", interrupt=UNCERTAIN)
@click.argument("path")
def unmount(path: str) -> int:
    """Unmount the volume at the folder PATH, and delete the machine that `mount` created for it."""
    known = unmount_volume(path)
    click.echo(f"unmounted {known.volume} from {known.path}")
    return 0
