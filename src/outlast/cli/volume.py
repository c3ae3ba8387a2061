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
    from outlast.clouds.stores import Volume
    from outlast.workspace.holdings import Holding, Holdings


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
    from outlast.supervisor.submit import who_am_i
    from outlast.volumes import care

    size_gb = size("--size", size_text)
    holdings = holdings_of(workspace_url, "volume")
    cloud = care.keeper(clouds(holdings.workspace), cloud_name or "local")
    holding, _ = care.create(cloud, holdings, name, size_gb=size_gb, who=who_am_i(), zone=zone, say=note)
    where = holding.zone or holding.cloud
    click.echo(f"{name}: {holding.size_gb:g} GB in {where}, {money(holding.usd_per_month)} a month")
    note(f'in a spec: [volumes] "/data" = "{name}"; fill it with `outlast volume populate {name} FOLDER`')
    return 0


@volume.command("list")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the volumes of this workspace, with what they cost a month."""
    holdings = holdings_of(workspace_url, "volume")
    found = [(holding, *_look(holdings, holding)) for holding in holdings.all()]

    def cells(h: Holding, _: Volume | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.zone or "all", f"{h.size_gb:g} GB", state, money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ZONE", "SIZE", "STATE", "A MONTH", "WHO"]
    empty = "no volumes; `outlast volume create NAME --size 1TB` makes one"
    tell_all(found, cells, header=header, empty=empty, as_json=as_json)
    return tell_damaged(holdings.damaged)


def _look(holdings: Holdings, holding: Holding) -> tuple[Volume | None, str, str]:
    from outlast.front.stores import volume_standing

    return volume_standing(clouds(holdings.workspace), holdings, holding)


@volume.command()
@volume_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show everything about the volume NAME: size, room, cost, who uses it, where it is mounted here."""
    import msgspec

    from outlast.volumes import care, laptop

    holdings = holdings_of(workspace_url, "volume")
    holding = holdings.demand(name)
    found, state, why = _look(holdings, holding)
    try:
        runs = care.users(holdings, name)
    except Damaged as problem:
        runs = [f"nobody knows whom: {problem.message}"]
    here = [one for one in laptop.every() if one.volume == name and one.workspace == holdings.workspace.url]
    if as_json:
        told = msgspec.to_builtins(holding) | {"state": state, "why": why, "runs": runs}
        told |= {"mounted": msgspec.to_builtins(here)} | ({"volume": msgspec.to_builtins(found)} if found else {})
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return 0
    lines = [f"{name}: {holding.size_gb:g} GB on {holding.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None and found.used_gb is not None:
        lines.append(f"  used      {found.used_gb:.3f} GB")
    lines += [f"  from      {', '.join(holding.zones) or 'every zone'}", f"  mounts    {holding.source}"]
    lines += [f"  cost      {money(holding.usd_per_month)} a month", f"  made by   {holding.who}"]
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
    from outlast.volumes import care

    size_gb = size("--size", size_text)
    holdings = holdings_of(workspace_url, "volume")
    holding = holdings.demand(name)
    fresh = care.resize(care.keeper(clouds(holdings.workspace), holding.cloud), holdings, holding, size_gb)
    click.echo(f"{name}: {fresh.size_gb:g} GB, {money(fresh.usd_per_month)} a month")
    return 0


@volume.command()
@volume_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the volume NAME with all that is in it. It asks first, and refuses while it is in use."""
    from outlast.front.stores import to_be_deleted
    from outlast.volumes import care, laptop

    holdings = holdings_of(workspace_url, "volume")
    known = clouds(holdings.workspace)
    holding, told = to_be_deleted(known, holdings, name)
    if told:
        note(told)
    cloud = care.keeper(known, holding.cloud)
    if here := laptop.there(holdings.workspace, name):
        why = f"the volume `{name}` is mounted here, at {here[0].path}; nothing was deleted"
        raise StoreTaken(why, hint=f"outlast volume unmount {here[0].path}")
    if not yes and not agreed(f"delete the volume {name} on {holding.cloud}, and all that is in it?"):
        note("nothing was deleted")
        return 0
    care.delete(cloud, holdings, holding)
    click.echo(f"deleted {name}")
    return 0


for _command in (populate, ls, mount, unmount):
    volume.add_command(_command)
