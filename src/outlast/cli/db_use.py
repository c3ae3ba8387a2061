"""`outlast db allow`, `revoke`, `check`, `url`, `shell`, `backup`, `restore`: how a database is used."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

import click

from outlast import private
from outlast.cli.options import clouds, json_option, workspace_option
from outlast.cli.store_find import agreed, database_argument, ready
from outlast.cli.terminal import complain, note
from outlast.errors import NotFound, UsageError

if TYPE_CHECKING:
    from outlast.clouds.sql import Login
    from outlast.databases.lifecycle import HasDatabases
    from outlast.records.resources import ResourceRecord, ResourceRecords


# Beside no secret: the certificates of databases whose address was asked for, for drivers to read.
_CERTIFICATES = "~/.outlast/databases"


def _find(name: str, workspace_url: str) -> tuple[HasDatabases, ResourceRecords, ResourceRecord]:
    from outlast.databases.lifecycle import databases_of

    records, record = ready(name, workspace_url, "database")
    return databases_of(clouds(records.workspace), record.cloud), records, record


def _login(name: str, workspace_url: str) -> Login:
    from outlast.databases.lifecycle import login

    cloud, records, record = _find(name, workspace_url)
    try:
        found = cloud.databases.find(record.there)
        if found.state == "stopped":
            note(f"{name} is stopped; starting it")
            found = cloud.databases.wake(record.there)
    except NotFound as problem:
        hint = f"somebody deleted it elsewhere; `outlast db delete {name}` forgets it"
        raise NotFound(problem.message, hint=hint) from problem
    return login(cloud, records, record, found)


@click.command()
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


@click.command()
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


@click.command()
@database_argument
@click.option("--from", "source", default="", metavar="ADDRESS", help="Connect from this address of this computer.")
@json_option
@workspace_option
def check(name: str, source: str, as_json: bool, workspace_url: str) -> int:
    """Try the database NAME step by step: DNS, TCP, TLS, login, permissions, latency. Says which fails and why."""
    import msgspec

    from outlast.databases import check as checks

    login = msgspec.structs.replace(_login(name, workspace_url), source=source)
    findings = []
    for finding in checks.check(login):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok' if finding.ok else 'FAIL':<5} {finding.step:<12} {finding.said}")
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(findings), indent=1).decode())
    if (problem := checks.failure(findings)) is None:
        return 0
    complain(problem.message, hint=problem.hint.replace("NAME", name))
    return problem.exit_code


@click.command()
@database_argument
@workspace_option
def url(name: str, workspace_url: str) -> int:
    """Print the address of the database NAME, with its password: for a pipe or a variable, not for a screen."""
    from outlast.databases import lifecycle

    login = _login(name, workspace_url)
    path = ""
    if login.ca:
        folder = private.folder("databases")
        path = f"{folder}/{name}-{login.port}.pem"
        with open(path, "w", encoding="ascii") as file:
            file.write(login.ca)
    click.echo(lifecycle.url(login, ca_file=path))
    return 0


def forget_certificates(name: str) -> None:
    """What `url` left of a database that is no more."""
    for path in glob.glob(f"{glob.escape(os.path.expanduser(_CERTIFICATES))}/{name}-*.pem"):
        if path.rpartition("-")[2].removesuffix(".pem").isdigit() and path.rpartition("-")[0].endswith(f"/{name}"):
            os.unlink(path)


@click.command(context_settings={"ignore_unknown_options": True})
@database_argument
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@workspace_option
def shell(name: str, argv: tuple[str, ...], workspace_url: str) -> int:
    """Open the command-line client of database NAME, mariadb or psql. ARGV is passed to it."""
    from outlast.databases import shell as shells

    return shells.run(_login(name, workspace_url), argv)


@click.command()
@database_argument
@workspace_option
def backup(name: str, workspace_url: str) -> int:
    """Keep a copy of the database NAME as it is now; prints its id."""
    cloud, _, record = _find(name, workspace_url)
    made = cloud.databases.back_up(record.there)
    note(f"{made.bytes / 1e6:.2f} MB; `outlast db restore {name} {made.id}` puts it back")
    click.echo(made.id)
    return 0


@click.command()
@database_argument
@click.argument("backup_id", metavar="BACKUP", required=False, default="")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@workspace_option
def restore(name: str, backup_id: str, yes: bool, workspace_url: str) -> int:
    """Put the database NAME back to how it was at BACKUP, or at the newest one. It asks first."""
    cloud, _, record = _find(name, workspace_url)
    known = cloud.databases.backups(record.there)
    # The newest is how it was before a restore that was cut short: who repeats that one means what it was to become.
    chosen = backup_id or cloud.databases.find(record.there).restoring or (known[-1].id if known else "")
    if not chosen or chosen not in {one.id for one in known}:
        ids = ", ".join(one.id for one in known) or "none"
        raise NotFound(
            f"`{name}` has no backup `{chosen}`" if chosen else f"`{name}` has no backup", hint=f"there are: {ids}"
        )
    if not yes and not agreed(f"put {name} back to {chosen}? What was written since is replaced"):
        note("nothing was changed")
        return 0
    cloud.databases.restore(record.there, chosen)
    click.echo(f"{name} is as it was at {chosen}")
    return 0
