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
    from outlast.clouds.resources import Database
    from outlast.records.resources import ResourceRecord, ResourceRecords


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
    from outlast.databases import lifecycle
    from outlast.user import current_user

    records = holdings_of(workspace_url, "database")
    cloud = lifecycle.databases_of(clouds(records.workspace), cloud_name or "local")
    begun = time.monotonic()
    record, made = lifecycle.create(
        cloud,
        records,
        name,
        engine="mysql" if engine == "mysql" else "postgres",
        who=current_user(),
        zone=zone,
        type=type_name,
        size_gb=size("--size", size_text) if size_text else 10.0,
        report=note,
    )
    price = f"{money(record.usd_per_month)} a month"
    click.echo(f"{name} answers at {made.host}:{made.port}: {made.engine} {made.version}, {price}")
    note(f'made in {describe_s(time.monotonic() - begun)}; a run with `databases = "{name}"` gets DATABASE_URL')
    return 0


@db.command("list")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the databases of this workspace, with what they cost."""
    records = holdings_of(workspace_url, "database")
    found = [(record, *_look(records, record)) for record in records.all()]

    def cells(h: ResourceRecord, d: Database | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.engine, state, f"{d.host}:{d.port}" if d else "", money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ENGINE", "STATE", "ADDRESS", "A MONTH", "WHO"]
    empty = "no databases; `outlast db create NAME` makes one"
    tell_all(found, cells, header=header, empty=empty, as_json=as_json)
    return tell_damaged(records.damaged)


def _look(records: ResourceRecords, record: ResourceRecord) -> tuple[Database | None, str, str]:
    from outlast.app.resource_status import database_standing

    return database_standing(clouds(records.workspace), records, record)


@db.command()
@database_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show everything about the database NAME, but for its password."""
    import msgspec

    from outlast.databases import lifecycle

    records = holdings_of(workspace_url, "database")
    record = records.get(name)
    found, state, why = _look(records, record)
    keeper = lifecycle.databases_of(clouds(records.workspace), record.cloud)
    backups = list(keeper.databases.backups(record.there)) if found is not None else []
    if as_json:
        told = msgspec.to_builtins(record) | {
            "state": state,
            "why": why,
            "backups": msgspec.to_builtins(backups),
        }
        told |= {"database": msgspec.to_builtins(found)} if found else {}
        click.echo(msgspec.json.format(msgspec.json.encode(told), indent=1).decode())
        return 0
    lines = [f"{name}: {record.engine} on {record.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None:
        lines += [f"  address   {found.host}:{found.port}, TLS only", f"  version   {found.version}"]
    lines += [f"  cost      {money(record.usd_per_month)} a month", f"  made by   {record.who}"]
    who = [f"{address}" + (f" ({owner})" if owner != address else "") for address, owner in record.allowed.items()]
    lines += [f"  allowed   {', '.join(who) or 'only ' + _inside(record)}"]
    lines += [f"  backup    {b.id}  {b.bytes / 1e6:.2f} MB" for b in backups]
    click.echo("\n".join(lines))
    return 0


def _inside(record: ResourceRecord) -> str:
    return "this computer and its machines" if record.cloud == "local" else f"machines of {record.cloud}"


@db.command()
@database_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def delete(name: str, yes: bool, workspace_url: str) -> int:
    """Delete the database NAME with all that is in it and all its backups. It asks first."""
    from outlast.app.resource_status import to_be_deleted
    from outlast.databases import lifecycle

    records = holdings_of(workspace_url, "database")
    known = clouds(records.workspace)
    record, told = to_be_deleted(known, records, name)
    if told:
        note(told)
    cloud = lifecycle.databases_of(known, record.cloud)
    if not yes and not agreed(f"delete the database {name} on {record.cloud}, its data and its backups?"):
        note("nothing was deleted")
        return 0
    lifecycle.delete(cloud, records, record)
    forget_certificates(name)
    click.echo(f"deleted {name}")
    return 0


for _command in (allow, revoke, check, url, shell, backup, restore):
    db.add_command(_command)
