"""`outlast cluster up`, `down`, `status`: how clusters come, what they are, how they go."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cluster_find import cluster_argument, find_cluster, order_of
from outlast.cli.cluster_jobs import attach, dashboard, exec_command, jobs, logs, matrix, stop, submit
from outlast.cli.complete import complete_cloud
from outlast.cli.machine_find import workshop, workshops
from outlast.cli.options import json_option, workspace_option
from outlast.cli.screen import clear
from outlast.cli.terminal import find_workspace, money, note, table
from outlast.errors import NoSuchRun
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.cluster.look import Sight
    from outlast.cluster.record import Cluster

_BAR = 24


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
    with _interruptible():
        made = Up(clusters, cloud, order, say=note).run()
    click.echo(made.name)
    note(f"`outlast cluster submit {made.name} -- COMMAND` runs something on it, `outlast cluster down` ends it")
    return 0


def _tell_plan(spec: Any) -> None:
    for kind in (spec.head, *spec.workers):
        size = kind.type or f"{kind.cpus} CPUs"
        count = "1" if kind.name == "head" else f"{kind.min} to {kind.max}"
        click.echo(f"{kind.name}: {count} × {size}, {'spot' if kind.spot else 'on demand'}, on {spec.cloud}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """However we are asked to leave, what was launched is deleted on the way out."""

    def leave(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
    known = workshops(clusters.workspace)
    try:
        found = find_cluster(clusters, name)
    except NoSuchRun:
        stray = without_record(clusters, known, name) if name and not os.path.exists(name) else []
        if not stray:
            raise
        for cloud, machine in stray:
            note(f"deleting {machine.name} ({machine.status}), of which no record is left")
            cloud.delete(machine.name)
            clusters.hands.remove(machine.name)
        return 0
    cost = take_down(clusters, {**known, found.cloud: workshop(found.cloud)}, found, say=note)
    click.echo(f"{found.name} is down; it has cost {money(cost)}")
    return 0


@cluster.command()
@cluster_argument
@click.option("--watch", "watch", is_flag=True, help="Again and again, until interrupted.")
@json_option
@workspace_option
def status(name: str, workspace_url: str, watch: bool, as_json: bool) -> int:
    """Show a cluster: nodes, what is pending, failed and idle, what is used, what it costs."""
    from outlast.cluster.look import see
    from outlast.cluster.record import Clusters

    clusters = Clusters(find_workspace(workspace_url))
    while True:
        found = find_cluster(clusters, name)
        sight = see(clusters, workshop(found.cloud), found)
        if as_json:
            import msgspec

            click.echo(msgspec.json.encode(sight).decode())
        else:
            if watch:
                clear()
            click.echo(_shown(found, sight))
        if not watch:
            return 0
        time.sleep(2.0)


def _shown(found: Cluster, sight: Sight) -> str:
    lines = [f"{sight.name} on {sight.cloud}, {sight.phase}, by {found.who or 'somebody'}"]
    lines.append(f"{money(sight.usd_per_hour)} an hour, {money(sight.cost_usd)} so far")
    if sight.goes_in_s >= 0:
        lines.append(f"idle: it goes down by itself in {describe_s(sight.goes_in_s)}")
    if sight.blind:
        lines.append(f"Ray cannot be asked: {sight.blind}")
    rows = [
        [
            node.machine,
            node.kind,
            node.status,
            node.ray + (f" {describe_s(node.idle_s)}" if node.ray == "idle" else ""),
            node.zone,
            "spot" if node.spot else "on demand",
            money(node.usd_per_hour),
            money(node.cost_usd),
            node.why,
        ]
        for node in sight.nodes
    ]
    header = ["MACHINE", "KIND", "STATUS", "RAY", "ZONE", "PRICED", "$/H", "COST", "REMARKS"]
    lines += ["", table(rows, header=header) if rows else "no machines"]
    lines += [f"pending: {_launch(one)}" for one in sight.pending]
    lines += [f"failed: {_launch(one)}: {one.get('why', '')}" for one in sight.failed]
    lines += [f"waiting: {one['count']} × {one['bundle']}" for one in sight.demands]
    if sight.usage:
        lines.append("")
    told = {name: amounts for name, amounts in sight.usage.items() if amounts[1] and ":" not in name}
    lines += [_bar(name, used, total) for name, (used, total) in sorted(told.items())]
    return "\n".join(lines)


def _launch(one: dict[str, Any]) -> str:
    return f"{one.get('count', 1)} × {one['kind']}" + (f" ({one['machine']})" if one.get("machine") else "")


def _bar(name: str, used: float, total: float) -> str:
    full = round(_BAR * min(1.0, used / total))
    unit, scale = (" GB", 1e9) if "memory" in name else ("", 1.0)
    return f"{name:<20} {'█' * full}{'░' * (_BAR - full)} {used / scale:g} of {total / scale:.4g}{unit}"
