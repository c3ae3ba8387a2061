"""`outlast cluster up`, `down`, `list`, `status`: how clusters come, what they are, how they go."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cluster.find import cluster_argument, find_cluster
from outlast.cli.machine.find import interactive_clouds, workshop
from outlast.cli.shared.command import READ_ONLY, command
from outlast.cli.shared.interrupt_text import interruptible
from outlast.cli.shared.options import json_option, workspace_option
from outlast.cli.shared.sanitize import clear
from outlast.cli.shared.terminal import find_workspace, money, note, table, tell_damaged
from outlast.spec.quantity import describe_s

if TYPE_CHECKING:
    from outlast.cluster.listing import ClusterRow
    from outlast.cluster.record import Cluster
    from outlast.cluster.status import ClusterStatus, NodeStatus

_EVERY_S = 2.0


@command("list", progress="querying the clouds", interrupt=READ_ONLY, json="list[ClusterRow]")
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


@command(
    progress="querying the head",
    interrupt="stopped reading; the cluster continues, and costs: `outlast cluster down` ends it",
    json="ClusterStatus",
)
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


_BAR = 24
_NAMES_MAX = 3


def listed(rows: Sequence[ClusterRow], *, now: float) -> str:
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


def shown(found: Cluster, sight: ClusterStatus) -> str:
    lines = [f"{sight.name} on {sight.cloud}, {sight.phase}, by {found.who or 'somebody'}", _counts(found, sight)]
    lines.append(f"{money(sight.usd_per_hour)} an hour, {money(sight.cost_usd)} so far")
    if sight.goes_in_s >= 0:
        lines.append(f"idle: it goes down by itself in {describe_s(sight.goes_in_s)}")
    if sight.unreachable:
        lines.append(f"Ray cannot be asked: {sight.unreachable}")
    header = ["MACHINE", "KIND", "STATUS", "RAY", "ZONE", "PRICED", "$/H", "COST", "REMARKS"]
    lines += ["", table([_row(node) for node in sight.nodes], header=header) if sight.nodes else "no machines"]
    lines += [f"pending: {one['count']} × {one['kind']}" for one in sight.pending]
    lines += [f"waiting: {one['count']} × {_amounts(one['bundle'])}" for one in sight.demands]
    lines += _grouped("failed", sight.failed) + _grouped("preempted", sight.preempted)
    told = {name: amounts for name, amounts in sight.usage.items() if amounts[1] and ":" not in name}
    if told:
        width = max(map(len, told))
        lines += ["", *(_bar(name.ljust(width), used, total) for name, (used, total) in sorted(told.items()))]
    return "\n".join(lines)


def _counts(found: Cluster, sight: ClusterStatus) -> str:
    workers = [node for node in sight.nodes if node.role == "worker"]
    argv = [f"{len(workers)} of at most {found.spec.max_workers} workers"]
    for what in ("active", "idle"):
        if number := sum(node.ray == what for node in workers):
            argv.append(f"{number} {what}")
    if coming := sum(one["count"] for one in sight.pending):
        argv.append(f"{coming} pending")
    return ", ".join(argv)


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
    """A line for each reason, with the newest machines that it was the reason of."""
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
