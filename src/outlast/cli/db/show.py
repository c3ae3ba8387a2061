"""`outlast db list` and `show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.databases import database_details
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.resources import database_argument, list_resources, print_json, resource_records
from outlast.cli.shared.terminal import find_workspace, money

if TYPE_CHECKING:
    from outlast.app.types import Database, ResourceRecord, ResourceRecords


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[ResourceRow]")
@json_option
@workspace_option
def list_command(as_json: bool, workspace_url: str) -> int:
    """List the databases of this workspace, with their monthly cost."""
    records = resource_records(workspace_url, "database")

    def cells(h: ResourceRecord, d: Database | None, state: str) -> list[str]:
        return [h.name, h.cloud, h.engine, state, f"{d.host}:{d.port}" if d else "", money(h.usd_per_month), h.who]

    header = ["NAME", "CLOUD", "ENGINE", "STATE", "ADDRESS", "A MONTH", "WHO"]
    return list_resources(records, lambda one: _status(records, one), cells, header=header, as_json=as_json)


def _status(records: ResourceRecords, record: ResourceRecord) -> tuple[Database | None, str, str]:
    from outlast.app.resource_status import database_status

    return database_status(clouds(records.workspace), records, record)


@command(progress="querying the cloud", interrupt=READ_ONLY, json="DatabaseShown")
@database_argument
@json_option
@workspace_option
def show(name: str, as_json: bool, workspace_url: str) -> int:
    """Show the database NAME: address, cost, access, backups; not its password."""
    import msgspec

    details = database_details(find_workspace(workspace_url), name)
    record, found, state, why = details.record, details.found, details.state, details.why
    backups = details.backups
    if as_json:
        data = msgspec.to_builtins(record) | {
            "state": state,
            "why": why,
            "backups": msgspec.to_builtins(backups),
        }
        data |= {"database": msgspec.to_builtins(found)} if found else {}
        print_json(data)
        return 0
    lines = [f"{name}: {record.engine} on {record.cloud}, {state}" + (f" ({why})" if why else "")]
    if found is not None:
        lines += [f"  address   {found.host}:{found.port}, TLS only", f"  version   {found.version}"]
    lines += [f"  cost      {money(record.usd_per_month)} a month", f"  owner     {record.who}"]
    who = [f"{address}" + (f" ({owner})" if owner != address else "") for address, owner in record.allowed.items()]
    lines += [f"  allowed   {', '.join(who) or 'only ' + details.inside}"]
    lines += [f"  backup    {b.id}  {b.bytes / 1e6:.2f} MB" for b in backups]
    click.echo("\n".join(lines))
    return 0
