"""`outlast db allow` and `revoke`."""

from __future__ import annotations

import click

from outlast.app.databases import allow_access, revoke_access
from outlast.cli.shared.command import UNCERTAIN, command
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import database_argument
from outlast.cli.shared.terminal import find_workspace
from outlast.errors import UsageError


@command(progress="updating access", interrupt=UNCERTAIN)
@database_argument
@click.argument("who", required=False, default="")
@click.option("--me", is_flag=True, help="Your present address.")
@workspace_option
def allow(name: str, who: str, me: bool, workspace_url: str) -> int:
    """Allow WHO to connect to the database NAME: an address, a network, a host, or ann=ADDRESS."""
    if bool(who) == me:
        raise UsageError("expected WHO or --me: an address, a network, a host, or ann=ADDRESS")
    entries = allow_access(find_workspace(workspace_url), name, who)
    for address, owner in entries.items():
        click.echo(f"{address}" + (f" ({owner})" if owner != address else "") + f" may connect to {name}")
    return 0


@command(progress="updating access", interrupt=UNCERTAIN)
@database_argument
@click.argument("who")
@workspace_option
def revoke(name: str, who: str, workspace_url: str) -> int:
    """Revoke the access of WHO to the database NAME: an address, or all addresses of a person."""
    out = revoke_access(find_workspace(workspace_url), name, who)
    for address in out:
        click.echo(f"{address} may no longer connect to {name}")
    return 0
