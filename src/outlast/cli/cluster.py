"""`outlast cluster up`, `down`, `list`, `status`: how clusters come, what they are, how they go."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cluster_enter import attach, dashboard, exec_command
from outlast.cli.cluster_find import cluster_argument, find_cluster, order_of
from outlast.cli.cluster_jobs import jobs, logs, matrix, stop, submit
from outlast.cli.cluster_show import listed, shown
from outlast.cli.complete import complete_cloud
from outlast.cli.interrupt_text import interruptible
from outlast.cli.machine_find import interactive_clouds, workshop
from outlast.cli.options import json_option, workspace_option
from outlast.cli.sanitize import clear
from outlast.cli.terminal import find_workspace, money, note, tell_damaged
from outlast.errors import NoSuchRun

if TYPE_CHECKING:
    from outlast.cluster.record import Cluster
    from outlast.cluster.status import ClusterStatus

_EVERY_S = 2.0


@click.group()
def cluster() -> None:
    """Clusters: Ray on machines that come and go with the work."""


for _command in (submit, matrix, jobs, logs, stop, attach, exec_command, dashboard):
    cluster.add_command(_command)


@cluster.command()
@click.argument("file", type=click.Path(), default="", metavar="[FILE]")
@click.option(
    "--cloud",
    "cloud_name",
    default="",
    metavar="NAME",
    shell_complete=complete_cloud,
    help="On this cloud, whatever the file says.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be brought up, and launch nothing.")
@workspace_option
def up(file: str, workspace_url: str, cloud_name: str, dry_run: bool) -> int:
    """Bring a cluster up, from `[cluster]` in outlast.toml or from a cluster file of Ray's. Repeating it adopts."""
    from outlast.cluster.record import Clusters
    from outlast.cluster.up import Up, check

    order, notes = order_of(file, cloud_name)
    for line in notes:
        note(f"note: {line}")
    clusters = Clusters(find_workspace(workspace_url))
    cloud = workshop(order.spec.cloud)
    if dry_run:
        check(order, cloud, clusters.workspace.url)
        _tell_plan(order.spec)
        return 0
    with interruptible():
        made = Up(clusters, cloud, order, report=note).run()
    click.echo(made.name)
    note(f"`outlast cluster submit {made.name} -- COMMAND` runs something on it, `outlast cluster down` ends it")
    return 0


def _tell_plan(spec: Any) -> None:
    for kind in (spec.head, *spec.workers):
        size = kind.type or f"{kind.cpus} CPUs"
        count = "1" if kind.name == "head" else f"{kind.min} to {kind.max}"
        click.echo(f"{kind.name}: {count} × {size}, {'spot' if kind.spot else 'on demand'}, on {spec.cloud}")


@cluster.command()
@cluster_argument
@workspace_option
def down(name: str, workspace_url: str) -> int:
    """Take a cluster down: every machine in every status, disks included. Repeat it whenever it was cut short.

    NAME is a cluster, or the file that it was made from.
    """
    from outlast.cluster.down import take_down, without_record
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    known = interactive_clouds(clusters.workspace)
    try:
        found = find_cluster(clusters, name)
    except NoSuchRun:
        stray = without_record(clusters, known, name) if name and not os.path.exists(name) else []
        if not stray:
            raise
        for cloud, machine in stray:
            note(f"deleting {machine.name} ({machine.status}), of which no record is left")
            cloud.delete(machine.name)
            clusters.machine_records.remove(machine.name)
        return 0
    cost = take_down(clusters, {**known, found.cloud: workshop(found.cloud)}, found, report=note)
    click.echo(f"{found.name} is down; it has cost {money(cost)}")
    return 0


@cluster.command("list")
@json_option
@workspace_option
def list_command(workspace_url: str, as_json: bool) -> int:
    """List the clusters of this workspace: how they are, what they cost an hour and have cost."""
    from outlast.cluster.listing import rows
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    found = rows(clusters, interactive_clouds(clusters.workspace))
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif not found:
        note("no clusters; `outlast cluster up` brings one up")
    else:
        click.echo(listed(found, now=time.time()))
    return tell_damaged(clusters.damaged)


@cluster.command()
@cluster_argument
@click.option("--watch", "watch", is_flag=True, help="Again and again, until interrupted.")
@json_option
@workspace_option
def status(name: str, workspace_url: str, watch: bool, as_json: bool) -> int:
    """Show a cluster: nodes, what is pending, failed and idle, what is used, what it costs."""
    from outlast.cluster.record import Clusters
    from outlast.cluster.status import read_status

    clusters = Clusters(find_workspace(workspace_url))
    found = find_cluster(clusters, name)
    if not watch:
        _print(found, read_status(clusters, workshop(found.cloud), found), as_json=as_json)
        return 0
    from outlast.cluster.status import ClusterWatch

    window = ClusterWatch(workshop(found.cloud), _EVERY_S)
    try:
        with interruptible():
            while (now := clusters.find(found.name)) is not None and now.id == found.id:
                sight = read_status(clusters, workshop(now.cloud), now, watch=window)
                _print(now, sight, as_json=as_json, again=True)
                if sight.unreachable:
                    time.sleep(_EVERY_S)
    finally:
        window.close()
    note(f"`{found.name}` is down")
    return 0


def _print(found: Cluster, sight: ClusterStatus, *, as_json: bool, again: bool = False) -> None:
    """Once, or `again` and again: at the same place of a terminal, one after the other elsewhere."""
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(sight).decode())
        return
    if again and sys.stdout.isatty():
        clear()
        again = False
    click.echo(shown(found, sight) + ("\n" if again else ""))
