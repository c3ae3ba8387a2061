"""`outlast cluster list` and `status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cluster.find import cluster_argument, clusters_in, find_cluster
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.sanitize import clear
from outlast.cli.shared.terminal import money, note, report_damaged, table
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.app.types import Cluster, ClusterRow, ClusterStatus, NodeStatus


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[ClusterRow]")
@json_option
@workspace_option
def list_command(workspace_url: str, as_json: bool) -> int:
    """List the clusters of this workspace: state, price per hour, cost so far."""
    from outlast.app.clusters import cluster_rows

    clusters = clusters_in(workspace_url)
    found = cluster_rows(clusters)
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    elif not found:
        note("no clusters; start one with `outlast cluster up`")
    else:
        click.echo(list_text(found, now=time.time()))
    return report_damaged(clusters.damaged)


@command(
    progress="querying the head",
    interrupt="stopped reading; the cluster keeps running and is billed: `outlast cluster down` ends it",
    json="ClusterStatus",
)
@cluster_argument
@click.option("--watch", "watch", is_flag=True, help="Refresh until interrupted.")
@json_option
@workspace_option
def status(name: str, workspace_url: str, watch: bool, as_json: bool) -> int:
    """Show a cluster: nodes, pending, failed and idle machines, usage, cost."""
    from outlast.app.clusters import status_of, watch_cluster

    clusters = clusters_in(workspace_url)
    found = find_cluster(clusters, name)
    if not watch:
        _print(found, status_of(clusters, found), as_json=as_json)
        return 0
    with interruptible():
        watch_cluster(clusters, found, lambda now, snapshot: _print(now, snapshot, as_json=as_json, again=True))
    note(f"`{found.name}` is down")
    return 0


def _print(found: Cluster, snapshot: ClusterStatus, *, as_json: bool, again: bool = False) -> None:
    """Print the status. With `again` it replaces the last one on a terminal, and follows it elsewhere."""
    if as_json:
        import msgspec

        click.echo(msgspec.json.encode(snapshot).decode())
        return
    if again and sys.stdout.isatty():
        clear()
        again = False
    click.echo(status_text(found, snapshot) + ("\n" if again else ""))


_BAR = 24
_NAMES_MAX = 3


def list_text(rows: Sequence[ClusterRow], *, now: float) -> str:
    cells = [
        [
            row.name,
            row.cloud,
            row.phase,
            str(row.machines),
            str(row.jobs),
            describe_s(max(0.0, now - row.asked_at)),
            money(row.usd_per_hour),
            money(row.cost_usd),
            row.who,
            row.problem,
        ]
        for row in rows
    ]
    header = ["CLUSTER", "CLOUD", "STATE", "MACHINES", "JOBS", "AGE", "$/H", "COST", "WHO", "REMARKS"]
    return table(cells, header=header)


def status_text(found: Cluster, snapshot: ClusterStatus) -> str:
    lines = [
        f"{snapshot.name} on {snapshot.cloud}, {snapshot.phase}, by {found.who or 'an unknown user'}",
        _counts(found, snapshot),
    ]
    lines.append(f"{money(snapshot.usd_per_hour)} an hour, {money(snapshot.cost_usd)} so far")
    if snapshot.down_in_s >= 0:
        lines.append(f"idle: stops automatically in {describe_s(snapshot.down_in_s)}")
    if snapshot.unreachable:
        lines.append(f"Ray cannot be reached: {snapshot.unreachable}")
    header = ["MACHINE", "KIND", "STATUS", "RAY", "ZONE", "PRICED", "$/H", "COST", "REMARKS"]
    lines += ["", table([_row(node) for node in snapshot.nodes], header=header) if snapshot.nodes else "no machines"]
    lines += [f"pending: {one['count']} × {one['kind']}" for one in snapshot.pending]
    lines += [f"waiting: {one['count']} × {_amounts(one['bundle'])}" for one in snapshot.demands]
    lines += _grouped("failed", snapshot.failed) + _grouped("preempted", snapshot.preempted)
    usage = {name: amounts for name, amounts in snapshot.usage.items() if amounts[1] and ":" not in name}
    if usage:
        width = max(map(len, usage))
        lines += ["", *(_bar(name.ljust(width), used, total) for name, (used, total) in sorted(usage.items()))]
    return "\n".join(lines)


def _counts(found: Cluster, snapshot: ClusterStatus) -> str:
    workers = [node for node in snapshot.nodes if node.role == "worker"]
    parts = [f"{len(workers)} of at most {found.spec.max_workers} workers"]
    for what in ("active", "idle"):
        if number := sum(node.ray == what for node in workers):
            parts.append(f"{number} {what}")
    if coming := sum(one["count"] for one in snapshot.pending):
        parts.append(f"{coming} pending")
    return ", ".join(parts)


def _row(node: NodeStatus) -> list[str]:
    return [
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


def _amounts(bundle: Mapping[str, float]) -> str:
    return " + ".join(f"{amount:g} {name}" for name, amount in bundle.items())


def _grouped(what: str, gone: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per reason, with the newest machines that it affected."""
    groups: dict[tuple[str, str], list[str]] = {}
    for one in gone:
        groups.setdefault((str(one["kind"]), str(one.get("why", ""))), []).append(str(one.get("machine", "")))
    lines = []
    for (kind, why), machines in groups.items():
        names = [name for name in machines if name][-_NAMES_MAX:]
        more = ", …" if names and len(machines) > len(names) else ""
        of = f" ({', '.join(names)}{more})" if names else ""
        lines.append(f"{what}: {len(machines)} × {kind}{of}" + (f": {why}" if why and why != what else ""))
    return lines


def _bar(name: str, used: float, total: float) -> str:
    full = round(_BAR * min(1.0, used / total))
    unit, scale = (" GB", 1e9) if "memory" in name else ("", 1.0)
    return f"{name}  {'█' * full}{'░' * (_BAR - full)} {used / scale:.4g} of {total / scale:.4g}{unit}"
