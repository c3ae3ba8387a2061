"""`outlast cluster up`, `down`, `list`, `status`: how clusters come, what they are, how they go."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cluster.find import cluster_argument, find_cluster, order_of
from outlast.cli.completion import complete_cloud
from outlast.cli.machine.find import interactive_clouds, workshop
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import NoSuchRun

if TYPE_CHECKING:
    pass


@command(
    progress="waiting for the cluster",
    interrupt="the cluster is taken down again; `outlast reap` deletes machines that are left",
)
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


@command(
    progress="deleting machines",
    interrupt="machines may be left, and cost; repeat `outlast cluster down` to delete them",
)
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
