"""`outlast db check`, `url` and `shell`: connections to a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from outlast.app.databases import check_database, database_url, failure_of, run_client
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.resources import database_argument, print_json
from outlast.cli.shared.terminal import complain, find_workspace, note

if TYPE_CHECKING:
    from outlast.app.types import CheckStep


@command(progress="connecting", interrupt=UNCHANGED, json="list[CheckStep]")
@database_argument
@click.option("--from", "source", default="", metavar="ADDRESS", help="Local address to connect from.")
@json_option
@workspace_option
def check(name: str, source: str, as_json: bool, workspace_url: str) -> int:
    """Check the database NAME step by step: DNS, TCP, TLS, login, permissions, latency."""
    findings: list[CheckStep] = []
    for finding in check_database(find_workspace(workspace_url), name, source=source, report=note):
        findings.append(finding)
        if not as_json:
            click.echo(f"{'ok' if finding.ok else 'FAIL':<5} {finding.step:<12} {finding.detail}")
    if as_json:
        print_json(findings)
    if (problem := failure_of(findings)) is None:
        return 0
    complain(problem.message, hint=problem.hint.replace("NAME", name))
    return problem.exit_code


@command(progress="querying the cloud", interrupt=UNCHANGED)
@database_argument
@click.option("--portable", is_flag=True, help="For another computer: encrypted, without a certificate file.")
@workspace_option
def url(name: str, portable: bool, workspace_url: str) -> int:
    """Print the URL of the database NAME with its password, for a pipe or a variable."""
    click.echo(database_url(find_workspace(workspace_url), name, portable=portable, report=note))
    return 0


@command(interrupt="left the database; it continues to run", context_settings={"ignore_unknown_options": True})
@database_argument
@click.argument("argv", nargs=-1, type=click.UNPROCESSED)
@workspace_option
def shell(name: str, argv: tuple[str, ...], workspace_url: str) -> int:
    """Open the command-line client of database NAME, mariadb or psql. ARGV is passed to it."""
    return run_client(find_workspace(workspace_url), name, argv, report=note)
