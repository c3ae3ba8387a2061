"""`outlast reap`: deletes machines without an owner, and leftovers of killed commands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from outlast.app.dry_run import read_only_observer
from outlast.cli.shared.command import STILL_BILLED, command
from outlast.cli.shared.options import clouds, json_option, workspace_option
from outlast.cli.shared.terminal import complain, find_workspace, note, report_damaged
from outlast.cli.supervisor.plan import _step_data
from outlast.errors import OutlastError
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Reap, Release, describe

if TYPE_CHECKING:
    from outlast.app.types import Cluster, Clusters, MachineRecord, Step

# A cluster without a head for this long is abandoned; heads report every 10 s. Its workers wait longer.
_HEAD_S = 30.0
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
    from outlast.clouds.registry import interactive_clouds
    from outlast.cluster.down import abandoned
    from outlast.cluster.record import Clusters
    from outlast.machines import lifecycle

    workspace = find_workspace(workspace_url)
    observer = read_only_observer(workspace)
    observer.patience_s = _HEAD_S
    steps = plan(observer.observe(time.time()))
    doomed: list[Step] = [step for step in steps if isinstance(step, Reap | Release)]
    clusters = Clusters(workspace)
    left = abandoned(clusters)
    stale = lifecycle.left_over(observer.machine_records, interactive_clouds(workspace))
    _print_doomed(doomed, left, stale, as_json=as_json)
    code = report_damaged(
        observer.damaged, observer.machine_records.damaged, clusters.damaged, so="; its machines are left alone"
    )
    if doomed and not dry_run:
        supervisor = Supervisor(workspace, clouds(workspace))
        supervisor.observer.read_only = True  # wakeups are for a supervisor
        supervisor.observer.observe(time.time())
        code = _apply(supervisor, doomed) or code
    if left and not dry_run:
        code = _take_down(clusters, left) or code
    for machine_record in stale if not dry_run else ():
        lifecycle.drop(observer.machine_records, machine_record)
    return code


def _print_doomed(doomed: list[Step], left: list[Cluster], stale: list[MachineRecord], *, as_json: bool) -> None:
    clusters = {
        cluster.name: f"take down {cluster.name}: its `{_COMMANDS[cluster.phase]}` was killed" for cluster in left
    }
    dropped = {
        machine_record.name: f"remove the record {machine_record.name}: the machine does not exist"
        for machine_record in stale
    }
    if as_json:
        import json

        forgotten = [{"step": "takedown", "cluster": name, "text": text} for name, text in clusters.items()]
        forgotten += [{"step": "forgetmachine", "machine": name, "text": text} for name, text in dropped.items()]
        click.echo(json.dumps([*map(_step_data, doomed), *forgotten], indent=2))
    else:
        lines = [*map(describe, doomed), *clusters.values(), *dropped.values()]
        click.echo("\n".join(lines) or "no machines to delete")


def _take_down(clusters: Clusters, left: list[Cluster]) -> int:
    """Delete token, record and late machines of clusters whose other machines are already deleted."""
    from outlast.cli.machine.find import interactive_cloud
    from outlast.cluster.down import take_down

    code = 0
    for cluster in left:
        try:
            take_down(clusters, {cluster.cloud: interactive_cloud(cluster.cloud)}, cluster, report=note)
        except OutlastError as problem:
            complain(f"could not take down {cluster.name}: {problem.message}", hint=problem.hint)
            code = problem.exit_code
    return code


def _apply(supervisor: Supervisor, doomed: list[Step]) -> int:
    """Apply every step, also after a failure; return the exit code of the last failure."""
    code = 0
    for step in doomed:
        try:
            supervisor.applier.apply(step)
        except OutlastError as problem:
            complain(f"could not {describe(step)}: {problem.message}", hint=problem.hint)
            code = problem.exit_code
    return code
