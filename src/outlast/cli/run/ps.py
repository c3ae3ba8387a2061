"""`outlast ps`."""

from __future__ import annotations

import time

import click

from outlast.cli.run.listing import ENDED_SHOWN, page
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.sanitize import clear
from outlast.cli.shared.terminal import find_workspace, tell_damaged
from outlast.errors import UsageError

_LIMIT = f"With --all: the newest N runs that are over ({ENDED_SHOWN}); 0: all of them."


@command(section="runs", interrupt=READ_ONLY, json="list[RunRow]")
@click.option("--all", "-a", "everything", is_flag=True, help="Also the runs that are over.")
@click.option("--limit", type=click.IntRange(min=0), default=None, metavar="N", help=_LIMIT)
@click.option("--user", "who", default="", metavar="USER", help="Only the runs of this user; `me` for your own.")
@click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
@json_option
@workspace_option
def ps(everything: bool, limit: int | None, who: str, watch: bool, as_json: bool, workspace_url: str) -> int:
    """List runs: machine, age, cost, and the reason for waiting."""
    if limit is not None and not everything:
        raise UsageError("--limit is about ended runs, which are not listed", hint="add --all")
    limit = ENDED_SHOWN if limit is None else limit
    workspace = find_workspace(workspace_url)
    if who == "me":
        from outlast.user import current_user

        who = current_user()
    damaged: dict[str, str] = {}
    if not watch:
        text = page(workspace, damaged, everything=everything, who=who, limit=limit, as_json=as_json)
        click.echo(text, nl=False)
        return tell_damaged(damaged)
    try:
        while True:
            text = page(workspace, damaged, everything=everything, who=who, limit=limit, as_json=as_json)
            clear()
            click.echo(text, nl=False)
            time.sleep(1.0)
    except KeyboardInterrupt:
        return 0
