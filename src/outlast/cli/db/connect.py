"""`outlast db check`, `url` and `shell`: connections to a database."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

import click

from outlast import private
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.resources import database_argument, print_json, ready
from outlast.cli.shared.terminal import complain, note
from outlast.errors import NotFound

if TYPE_CHECKING:
    from outlast.app.types import HasDatabases, Login, ResourceRecord, ResourceRecords

# Certificates of databases for which `url` was called; drivers read them. They are not secret.
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
        hint = f"it was deleted outside outlast; `outlast db delete {name}` removes its record"
        raise NotFound(problem.message, hint=hint) from problem
    return login(cloud, records, record, found)


@command(progress="connecting", interrupt=UNCHANGED, json="list[CheckStep]")
@database_argument
@click.option("--from", "source", default="", metavar="ADDRESS", help="Local address to connect from.")
@json_option
@workspace_option
def check(name: str, source: str, as_json: bool, workspace_url: str) -> int:
    """Check the database NAME step by step: DNS, TCP, TLS, login, permissions, latency."""
    import msgspec

    from outlast.databases import check as checks

    login = msgspec.structs.replace(_login(name, workspace_url), source=source)
    findings = []
    for finding in checks.check(login):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok' if finding.ok else 'FAIL':<5} {finding.step:<12} {finding.detail}")
    if as_json:
        print_json(findings)
    if (problem := checks.failure(findings)) is None:
        return 0
    complain(problem.message, hint=problem.hint.replace("NAME", name))
    return problem.exit_code


@command(progress="querying the cloud", interrupt=UNCHANGED)
@database_argument
@click.option("--portable", is_flag=True, help="For another computer: encrypted, without a certificate file.")
@workspace_option
def url(name: str, portable: bool, workspace_url: str) -> int:
    """Print the URL of the database NAME with its password, for a pipe or a variable."""
    from outlast.databases import lifecycle

    login = _login(name, workspace_url)
    path = ""
    if login.ca and not portable:
        folder = private.folder("databases")
        path = f"{folder}/{name}-{login.port}.pem"
        with open(path, "w", encoding="ascii") as file:
            file.write(login.ca)
    click.echo(lifecycle.url(login, ca_file=path))
    return 0


def forget_certificates(name: str) -> None:
    """Delete the certificates that `url` wrote for a deleted database."""
    for path in glob.glob(f"{glob.escape(os.path.expanduser(_CERTIFICATES))}/{name}-*.pem"):
        if path.rpartition("-")[2].removesuffix(".pem").isdigit() and path.rpartition("-")[0].endswith(f"/{name}"):
            os.unlink(path)


@command(interrupt="left the database; it continues to run", context_settings={"ignore_unknown_options": True})
@database_argument
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@workspace_option
def shell(name: str, argv: tuple[str, ...], workspace_url: str) -> int:
    """Open the command-line client of database NAME, mariadb or psql. ARGV is passed to it."""
    from outlast.databases import access

    return access.run_shell(_login(name, workspace_url), argv)
