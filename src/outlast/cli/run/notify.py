"""`outlast notify`: list the targets of `[notify]`, or send a test message to each."""

from __future__ import annotations

import os

import click

from outlast.app.notifications import notify_rule, send_test, unset_targets
from outlast.cli.shared.command import command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.project import load_project
from outlast.cli.shared.terminal import complain, find_workspace


@command(
    section="runs",
    progress="sending a test message",
    interrupt="stopped; some targets may have received the message",
    json_text="target → the error; empty if the message was sent or the target is set",
)
@click.option("--test", is_flag=True, help="Send a test message to every target.")
@click.option("--file", "path", default="", metavar="PATH", help="Read this file instead of outlast.toml.")
@json_option
@workspace_option
def notify(test: bool, path: str, as_json: bool, workspace_url: str) -> int:
    """List the targets of `[notify]`, or send a test message to each."""
    project = load_project(path)
    rule = notify_rule(project)
    if test:
        results = send_test(find_workspace(workspace_url, project), rule, os.environ)
    else:
        results = unset_targets(rule, os.environ)
    _print(results, as_json=as_json, sent=test)
    return 1 if any(results.values()) else 0


def _print(results: dict[str, str], *, as_json: bool, sent: bool) -> None:
    if as_json:
        import json

        click.echo(json.dumps(results, indent=2))
        return
    for name, problem in results.items():
        if problem:
            complain(problem)
        else:
            click.echo(f"{name}: {'sent' if sent else 'set'}")
