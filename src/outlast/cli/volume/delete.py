"""`outlast volume delete`."""

from __future__ import annotations

import click

from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import clouds, workspace_option
from outlast.cli.shared.resources import agreed, resource_records, volume_argument
from outlast.cli.shared.terminal import note
from outlast.errors import StoreTaken


@command(progress="deleting the volume", interrupt=STILL_BILLED)
@volume_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the volume NAME and its files. It asks first, and refuses while the volume is in use."""
    from outlast.app.resource_status import record_to_delete
    from outlast.volumes import lifecycle, local_mount

    records = resource_records(workspace_url, "volume")
    known = clouds(records.workspace)
    record, warning = record_to_delete(known, records, name)
    if warning:
        note(warning)
    cloud = lifecycle.volumes_of(known, record.cloud)
    if here := local_mount.mounts_of(records.workspace, name):
        why = f"volume `{name}` is mounted at {here[0].path}; nothing was deleted"
        raise StoreTaken(why, hint=f"outlast volume unmount {here[0].path}")
    if not yes and not agreed(f"delete the volume {name} on {record.cloud}, with all its files?"):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, records, record)
    click.echo(f"deleted {name}")
    return 0
