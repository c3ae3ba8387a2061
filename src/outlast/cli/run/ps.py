"""`outlast ps`: the command with all its options; plain `ps` is in `listing.py`."""

from __future__ import annotations

import time

import click

from outlast.app.listing import ENDED_SHOWN
from outlast.cli.run.listing import listing_text
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.sanitize import clear
from outlast.cli.shared.terminal import find_workspace, report_damaged
from outlast.errors import UsageError

_LIMIT = f"With --all: the newest N ended runs ({ENDED_SHOWN}); 0: all."


@command(section="runs", interrupt=READ_ONLY, json="list[RunRow]")
@click.option("--all", "-a", "everything", is_flag=True, help="Include ended runs.")
@click.option("--limit", type=click.IntRange(min=0), default=None, metavar="N", help=_LIMIT)
@click.option("--user", "who", default="", metavar="USER", help="Only runs of this user; `me`: your own.")
@click.option("--wide", is_flag=True, help="Add CPU, memory and GPU of live runs, and the last metrics.")
@click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
@json_option
@workspace_option
def ps(
    everything: bool, limit: int | None, who: str, wide: bool, watch: bool, as_json: bool, workspace_url: str
) -> int:
    """List runs: machine, age, cost, and the reason for waiting."""
    if limit is not None and not everything:
        raise UsageError("--limit applies to ended runs, which are not listed", hint="add --all")
    limit = ENDED_SHOWN if limit is None else limit
    workspace = find_workspace(workspace_url)
    if who == "me":
        from outlast.user import current_user

        who = current_user()
    damaged: dict[str, str] = {}

    def text() -> str:
        return listing_text(workspace, damaged, everything=everything, who=who, limit=limit, wide=wide, as_json=as_json)

    if not watch:
        click.echo(text(), nl=False)
        return report_damaged(damaged)
    try:
        while True:
            shown = text()
            clear()
            click.echo(shown, nl=False)
            time.sleep(1.0)
    except KeyboardInterrupt:
        return 0
