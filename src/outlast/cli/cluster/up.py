"""`outlast cluster up` and `down`."""

from __future__ import annotations

from typing import Any

import click

from outlast.cli.cluster.find import cluster_argument, cluster_options, clusters_in, find_cluster
from outlast.cli.completion import complete_cloud
from outlast.cli.shared.command import command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import workspace_option
from outlast.cli.shared.resources import agreed
from outlast.cli.shared.terminal import find_workspace, money, note
from outlast.errors import NoSuchRun


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
    help="Cloud, instead of that in the file.",
)
@click.option("--image", default="", metavar="NAME", help="Boot image of all machines, instead of those in the file.")
@click.option(
    "--container", default="", metavar="IMAGE", help="Container image instead of that in the file, or `none`."
)
@click.option("--dry-run", is_flag=True, help="Print the machines; launch nothing.")
@click.option("--yes", "-y", is_flag=True, help="Accepted as by `ray up`; nothing is asked.")
@workspace_option
def up(file: str, workspace_url: str, cloud_name: str, image: str, container: str, dry_run: bool, yes: bool) -> int:
    """Start a cluster from `[cluster]` in outlast.toml or from a Ray cluster file. Repeating it adopts its machines."""
    from outlast.app.clusters import check_cluster, start_cluster

    options, notes = cluster_options(file, cloud_name, image=image, container=container)
    for line in notes:
        note(f"note: {line}")
    workspace = find_workspace(workspace_url)
    if dry_run:
        check_cluster(workspace, options)
        _print_plan(options.spec)
        return 0
    with interruptible():
        made = start_cluster(workspace, options, report=note)
    click.echo(made.name)
    note(f"run a command with `outlast cluster submit {made.name} -- COMMAND`, end it with `outlast cluster down`")
    return 0


def _print_plan(spec: Any) -> None:
    for kind in (spec.head, *spec.workers):
        size = kind.type or f"{kind.cpus} CPUs"
        count = "1" if kind.name == "head" else f"{kind.min} to {kind.max}"
        click.echo(f"{kind.name}: {count} × {size}, {'spot' if kind.spot else 'on demand'}, on {spec.cloud}")


@command(
    progress="deleting machines",
    interrupt="machines may be left and billed; repeat `outlast cluster down` to delete them",
)
@cluster_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@workspace_option
def down(name: str, yes: bool, workspace_url: str) -> int:
    """Take a cluster down: delete every machine in every status, with its disk. It asks first, and may be repeated.

    NAME is a cluster, or the file from which it was started.
    """
    from outlast.app.clusters import delete_stray, stop_cluster, stray_machines

    clusters = clusters_in(workspace_url)
    try:
        found = find_cluster(clusters, name)
    except NoSuchRun:
        stray = stray_machines(clusters, name)
        if not stray:
            raise
        names = ", ".join(machine.name for _, machine in stray)
        if not yes and not agreed(f"delete {names}, which have no record, with their disks?"):
            note("nothing was deleted")
            return 0
        for cloud, machine in stray:
            note(f"deleting {machine.name} ({machine.status}), which has no record")
            delete_stray(clusters, cloud, machine)
        return 0
    question = f"delete {found.name} on {found.cloud}: every machine, with its disk and its running jobs?"
    if not yes and not agreed(question):
        note("nothing was deleted")
        return 0
    cost = stop_cluster(clusters, found, report=note)
    click.echo(f"{found.name} is down; total cost {money(cost)}")
    return 0
