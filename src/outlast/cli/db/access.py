"""`outlast db allow`, `revoke`, `check`, `url`, `shell`, `backup`, `restore`: how a database is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.cli.db.connect import _find
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import database_argument
from outlast.errors import UsageError

if TYPE_CHECKING:
    pass


@command(progress="updating access", interrupt=UNCERTAIN)
@database_argument
@click.argument("who", required=False, default="")
@click.option("--me", is_flag=True, help="The address that you connect from now.")
@workspace_option
def allow(name: str, who: str, me: bool, workspace_url: str) -> int:
    """Let WHO connect to the database NAME: an address, a network, a host, or ann=ADDRESS."""
    from outlast.databases import access
    from outlast.user import current_user

    if bool(who) == me:
        raise UsageError("say who: an address, ann=ADDRESS, or --me")
    cloud, records, record = _find(name, workspace_url)
    entries = {cloud.databases.my_address(): current_user()} if me else access.read(who)
    access.allow(cloud, records, record, entries)
    for address, owner in entries.items():
        click.echo(f"{address}" + (f" ({owner})" if owner != address else "") + f" may connect to {name}")
    return 0


@command(progress="updating access", interrupt=UNCERTAIN)
@database_argument
@click.argument("who")
@workspace_option
def revoke(name: str, who: str, workspace_url: str) -> int:
    """Let WHO connect to the database NAME no longer: an address, or all addresses of a person."""
    from outlast.databases import access

    cloud, records, record = _find(name, workspace_url)
    _, out = access.revoke(cloud, records, record, who)
    for address in out:
        click.echo(f"{address} may connect to {name} no longer")
    return 0
