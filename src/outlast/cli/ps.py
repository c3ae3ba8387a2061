"""`outlast ps`."""

from __future__ import annotations

import time

import click

from outlast.cli.options import json_option, workspace_option
from outlast.cli.runs import page
from outlast.cli.screen import clear
from outlast.cli.terminal import find_workspace, tell_damaged


@click.command()
@click.option("--all", "-a", "everything", is_flag=True, help="Also the runs that are over.")
@click.option("--user", "who", default="", metavar="USER", help="Only the runs of this user; `me` for your own.")
@click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
@json_option
@workspace_option
def ps(everything: bool, who: str, watch: bool, as_json: bool, workspace_url: str) -> int:
    """List runs: state, attempt, where, for how long, what it has cost, and why it waits if it does."""
    workspace = find_workspace(workspace_url)
    if who == "me":
        from outlast.supervisor.submit import who_am_i

        who = who_am_i()
    damaged: dict[str, str] = {}
    if not watch:
        click.echo(page(workspace, damaged, everything=everything, who=who, as_json=as_json), nl=False)
        return tell_damaged(damaged)
    try:
        while True:
            text = page(workspace, damaged, everything=everything, who=who, as_json=as_json)
            clear()
            click.echo(text, nl=False)
            time.sleep(1.0)
    except KeyboardInterrupt:
        return 0
