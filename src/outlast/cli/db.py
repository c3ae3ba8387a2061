"""`outlast db`: databases that a team shares, made, told of and thrown away. How they are used is in `db_use.py`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outlast.cli.db_use import allow, backup, check, forget_certificates, restore, revoke, shell, url
from outlast.cli.options import clouds, json_option, workspace_option
from outlast.cli.store_find import agreed, cloud_option, database_argument, holdings_of, size, tell_all
from outlast.cli.terminal import money, note, tell_damaged
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.clouds.stores import Database
    from outlast.workspace.holdings import Holding, Holdings


@click.group()
def db() -> None:
    """Databases that a team shares: make them, let people in, check, back up, throw away."""


@db.command()
@click.argument("name")
@click.option("--engine", type=click.Choice(["mysql", "postgres"]), default="postgres", help="Which one (postgres).")
@click.option("--zone", default="", metavar="ZONE", help="In this zone or region, where the cloud has some.")
@click.option("--type", "type_name", default="", metavar="NAME", help="The server's machine type, by the cloud's name.")
@click.option("--size", "size_text", default="", metavar="SIZE", help="Its disk, where the cloud sells one (10GB).")
@cloud_option
@workspace_option
def create(
    name: str, engine: str, zone: str, type_name: str, size_text: str, cloud_name: str, workspace_url: str
) -> int:
    """Make the database NAME and wait until it answers."""
    from outlast.databases import care
    from outlast.supervisor.submit import who_am_i

    holdings = holdings_of(workspace_url, "database")
    cloud = care.keeper(clouds(holdings.workspace), cloud_name or "local")
    begun = time.monotonic()
    holding, made = care.create(
        cloud,
        holdings,
        name,
        engine="mysql" if engine == "mysql" else "postgres",
        who=who_am_i(),
        zone=zone,
        type=type_name,
        size_gb=size("--size", size_text) if size_text else 10.0,
        say=note,
    )
    price = f"{money(holding.usd_per_month)} a month"
    click.echo(f"{name} answers at {made.host}:{made.port}: {made.engine} {made.version}, {price}")
    note(f'made in {describe_s(time.monotonic() - begun)}; a run with `databases = "{name}"` gets DATABASE_URL')
    return 0


@db.command("list")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the databases of this workspace, with what they cost."""
    holdings = holdings_of(workspace_url, "database")
    found = [(holding, *_look(holdings, holding)) for holding in holdings.all()]

    def cells(h: Holding, d: Database | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.engine, state, f"{d.host}:{d.port}" if d else "", money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ENGINE", "STATE", "ADDRESS", "A MONTH", "WHO"]
    empty = "no databases; `outlast db create NAME` makes one"
    tell_all(found, cells, header=header, empty=empty, as_json=as_json)
    return tell_damaged(holdings.damaged)


def _look(holdings: Holdings, holding: Holding) -> tuple[Database | None, str, str]:
    from outlast.front.stores import database_standing

    return database_standing(clouds(holdings.workspace), holdings, holding)


@db.command()
@database_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show everything about the database NAME, but for its password."""
    import msgspec

    from outlast.databases import care

    holdings = holdings_of(workspace_url, "database")
    holding = holdings.demand(name)
    found, state, why = _look(holdings, holding)
    keeper = care.keeper(clouds(holdings.workspace), holding.cloud)
    backups = list(keeper.databases.backups(holding.there)) if found is not None else []
    if as_json:
        told = msgspec.to_builtins(holding) | {"state": state, "why": why, "backups": msgspec.to_builtins(backups)}
        told |= {"database": msgspec.to_builtins(found)} if found else {}
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return 0
    lines = [f"{name}: {holding.engine} on {holding.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None:
        lines += [f"  address   {found.host}:{found.port}, TLS only", f"  version   {found.version}"]
    lines += [f"  cost      {money(holding.usd_per_month)} a month", f"  made by   {holding.who}"]
    who = [f"{address}" + (f" ({owner})" if owner != address else "") for address, owner in holding.allowed.items()]
    lines += [f"  allowed   {', '.join(who) or 'only ' + _inside(holding)}"]
    lines += [f"  backup    {b.id}  {b.bytes / 1e6:.2f} MB" for b in backups]
    click.echo("\n".join(lines))
    return 0


def _inside(holding: Holding) -> str:
    return "this computer and its machines" if holding.cloud == "local" else f"machines of {holding.cloud}"


@db.command()
@database_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the database NAME with all that is in it and all its backups. It asks first."""
    from outlast.databases import care
    from outlast.front.stores import to_be_deleted

    holdings = holdings_of(workspace_url, "database")
    known = clouds(holdings.workspace)
    holding, told = to_be_deleted(known, holdings, name)
    if told:
        note(told)
    cloud = care.keeper(known, holding.cloud)
    if not yes and not agreed(f"delete the database {name} on {holding.cloud}, its data and its backups?"):
        note("nothing was deleted")
        return 0
    care.delete(cloud, holdings, holding)
    forget_certificates(name)
    click.echo(f"deleted {name}")
    return 0


for _command in (allow, revoke, check, url, shell, backup, restore):
    db.add_command(_command)
