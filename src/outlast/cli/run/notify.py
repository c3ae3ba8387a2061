"""`outlast notify`: list the targets of `[notify]`, or send a test message to each."""

from __future__ import annotations

import os

import click

from outlast.cli.shared.command import command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.project import load_project
from outlast.cli.shared.terminal import complain, find_workspace
from outlast.errors import UsageError
from outlast.notify.messages import sample_message
from outlast.notify.outbox import send_now
from outlast.notify.targets import resolve, show_on_desktop
from outlast.spec.notify import read_notify
from outlast.spec.reader import Reader
from outlast.spec.spec import NotifySpec


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
    table = project.table.get("notify", {})
    reader = Reader({"notify": table})
    rule = read_notify(reader.section_of("notify"))
    if reader.problems:
        from outlast.errors import SpecError

        raise SpecError(reader.problems, source=project.source)
    if rule is None:
        hint = 'add `[notify]` with a target, e.g. webhook = "SLACK_WEBHOOK_URL"; see docs/notifications.md'
        raise UsageError(f"{project.source} has no `[notify]`", hint=hint)
    if test:
        workspace = find_workspace(workspace_url, project)
        results = send_now(rule, sample_message(), workspace=workspace, environment=os.environ)
        if rule.desktop:
            shown = show_on_desktop("outlast", sample_message().text)
            results["desktop"] = "" if shown else "desktop: neither notify-send nor osascript could show it"
    else:
        results = _unset(rule)
    _print(results, as_json=as_json, sent=test)
    return 1 if any(results.values()) else 0


def _unset(rule: NotifySpec) -> dict[str, str]:
    names = {f"{target.kind} {target.reference}": resolve(target, os.environ) for target in rule.targets}
    return {name: "" if value else f"{name}: not set on this computer" for name, value in names.items()}


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
