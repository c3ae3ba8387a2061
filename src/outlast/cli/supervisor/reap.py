"""`outlast reap`: deletes machines without an owner, and leftovers of killed commands."""

from __future__ import annotations

import click

from outlast.app.planning import Leftovers, delete_leftovers, describe, find_leftovers
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.terminal import complain, find_workspace, note, report_damaged
from outlast.cli.supervisor.plan import _step_data

_COMMANDS = {"creating": "up", "deleting": "down"}


@command(
    section="admin",
    progress="deleting machines",
    interrupt=STILL_BILLED,
    json_text="a list of steps as `plan` prints them, and of `takedown` with `cluster` and `text`",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; delete nothing.")
@json_option
@workspace_option
def reap(workspace_url: str, dry_run: bool, as_json: bool) -> int:
    """Delete every machine that no live run owns.

    This covers running, stopped and half-created machines of this workspace. It also takes down clusters whose `up` or
    `down` was killed, and removes records of machines that were never created.
    """
    workspace = find_workspace(workspace_url)
    left = find_leftovers(workspace)
    _print_doomed(left, as_json=as_json)
    code = report_damaged(*left.damaged, so="; its machines are left alone")
    for what, problem in [] if dry_run else delete_leftovers(workspace, left, report=note):
        complain(f"could not {what}: {problem.message}", hint=problem.hint)
        code = problem.exit_code
    return code


def _print_doomed(left: Leftovers, *, as_json: bool) -> None:
    clusters = {
        cluster.name: f"take down {cluster.name}: its `{_COMMANDS[cluster.phase]}` was killed"
        for cluster in left.clusters
    }
    dropped = {
        machine_record.name: f"remove the record {machine_record.name}: the machine does not exist"
        for machine_record in left.records
    }
    if as_json:
        import json

        forgotten = [{"step": "takedown", "cluster": name, "text": text} for name, text in clusters.items()]
        forgotten += [{"step": "forgetmachine", "machine": name, "text": text} for name, text in dropped.items()]
        click.echo(json.dumps([*map(_step_data, left.steps), *forgotten], indent=2))
    else:
        lines = [*map(describe, left.steps), *clusters.values(), *dropped.values()]
        click.echo("\n".join(lines) or "no machines to delete")
