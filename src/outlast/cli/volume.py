"""`outlast volume`: file systems that many machines mount at once. Filling and mounting are in `volume_use.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.options import clouds, json_option, workspace_option
from outlast.cli.store_find import agreed, cloud_option, holdings_of, size, tell_all, volume_argument
from outlast.cli.terminal import money, note, tell_damaged
from outlast.cli.volume_use import ls, mount, populate, unmount
from outlast.errors import Damaged, StoreTaken

if TYPE_CHECKING:
    from outlast.clouds.resources import Volume
    from outlast.records.resources import ResourceRecord, ResourceRecords


@click.group()
def volume() -> None:
    """Volumes that a team shares: make them, fill them, mount them here and on machines, throw them away."""


@volume.command()
@click.argument("name")
@click.option("--size", "size_text", required=True, metavar="SIZE", help="How large: 1TB, 500GB.")
@click.option("--zone", default="", metavar="ZONE", help="In this zone; only machines that reach it can mount it.")
@cloud_option
@workspace_option
def create(name: str, size_text: str, zone: str, cloud_name: str, workspace_url: str) -> int:
    """Make the volume NAME. A second one of the same name is refused before it costs."""
    from outlast.user import current_user
    from outlast.volumes import lifecycle

    size_gb = size("--size", size_text)
    records = holdings_of(workspace_url, "volume")
    cloud = lifecycle.volumes_of(clouds(records.workspace), cloud_name or "local")
    record, _ = lifecycle.create(cloud, records, name, size_gb=size_gb, who=current_user(), zone=zone, report=note)
    where = record.zone or record.cloud
    click.echo(f"{name}: {record.size_gb:g} GB in {where}, {money(record.usd_per_month)} a month")
    note(f'in a spec: [volumes] "/data" = "{name}"; fill it with `outlast volume populate {name} FOLDER`')
    return 0


@volume.command("list")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the volumes of this workspace, with what they cost a month."""
    records = holdings_of(workspace_url, "volume")
    found = [(record, *_look(records, record)) for record in records.all()]

    def cells(h: ResourceRecord, _: Volume | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.zone or "all", f"{h.size_gb:g} GB", state, money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ZONE", "SIZE", "STATE", "A MONTH", "WHO"]
    empty = "no volumes; `outlast volume create NAME --size 1TB` makes one"
    tell_all(found, cells, header=header, empty=empty, as_json=as_json)
    return tell_damaged(records.damaged)


def _look(records: ResourceRecords, record: ResourceRecord) -> tuple[Volume | None, str, str]:
    from outlast.app.resource_status import volume_standing

    return volume_standing(clouds(records.workspace), records, record)


@volume.command()
@volume_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show everything about the volume NAME: size, room, cost, who uses it, where it is mounted here."""
    import msgspec

    from outlast.volumes import lifecycle, local_mount

    records = holdings_of(workspace_url, "volume")
    record = records.get(name)
    found, state, why = _look(records, record)
    try:
        runs = lifecycle.users(records, name)
    except Damaged as problem:
        runs = [f"nobody knows whom: {problem.message}"]
    here = [one for one in local_mount.every() if one.volume == name and one.workspace == records.workspace.url]
    if as_json:
        told = msgspec.to_builtins(record) | {"state": state, "why": why, "runs": runs}
        told |= {"mounted": msgspec.to_builtins(here)} | ({"volume": msgspec.to_builtins(found)} if found else {})
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return 0
    lines = [f"{name}: {record.size_gb:g} GB on {record.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None and found.used_gb is not None:
        lines.append(f"  used      {found.used_gb:.3f} GB")
    lines += [
        f"  from      {', '.join(record.zones) or 'every zone'}",
        f"  mounts    {record.source}",
    ]
    lines += [f"  cost      {money(record.usd_per_month)} a month", f"  made by   {record.who}"]
    lines += [f"  used by   {', '.join(runs) or 'no run'}"]
    lines += [f"  here      {one.path} ({one.how}{', ' + one.machine if one.machine else ''})" for one in here]
    click.echo("\n".join(lines))
    return 0


@volume.command()
@volume_argument
@click.option("--size", "size_text", required=True, metavar="SIZE", help="The new size: 2TB.")
@workspace_option
def resize(name: str, size_text: str, workspace_url: str) -> int:
    """Let the volume NAME grow, or shrink where its cloud can."""
    from outlast.volumes import lifecycle

    size_gb = size("--size", size_text)
    records = holdings_of(workspace_url, "volume")
    record = records.get(name)
    fresh = lifecycle.resize(
        lifecycle.volumes_of(clouds(records.workspace), record.cloud),
        records,
        record,
        size_gb,
    )
    click.echo(f"{name}: {fresh.size_gb:g} GB, {money(fresh.usd_per_month)} a month")
    return 0


@volume.command()
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


for _command in (populate, ls, mount, unmount):
    volume.add_command(_command)
