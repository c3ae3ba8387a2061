"""`outlast volume`: file systems that many machines mount at once. Filling and mounting are in `volume_use.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.resources import agreed, holdings_of, volume_argument
from outlast.cli.shared.terminal import note
from outlast.errors import StoreTaken

if TYPE_CHECKING:
    pass


@command(progress="deleting the volume", interrupt=STILL_BILLED)
@volume_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the volume NAME with all that is in it. It asks first, and refuses while it is in use."""
    from outlast.app.resource_status import to_be_deleted
    from outlast.volumes import lifecycle, local_mount

    records = holdings_of(workspace_url, "volume")
    known = clouds(records.workspace)
    record, told = to_be_deleted(known, records, name)
    if told:
        note(told)
    cloud = lifecycle.volumes_of(known, record.cloud)
    if here := local_mount.there(records.workspace, name):
        why = f"the volume `{name}` is mounted here, at {here[0].path}; nothing was deleted"
        raise StoreTaken(why, hint=f"outlast volume unmount {here[0].path}")
    if not yes and not agreed(f"delete the volume {name} on {record.cloud}, and all that is in it?"):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, records, record)
    click.echo(f"deleted {name}")
    return 0
