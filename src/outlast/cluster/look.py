"""What there is to see of a cluster: its machines, Ray's nodes, its jobs, its costs. Refuses to change anything."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Machine, Workshop
from outlast.cluster.place import FOLDER
from outlast.cluster.record import LABEL_ID, Cluster, Clusters, Ended, Job, Node, NodeState, Past
from outlast.errors import CloudError, NotFound, OutlastError
from outlast.machines.ssh import Link

# Ray's word, and ours for what Ray cannot tell: the head that knew the job is gone.
LOST = "LOST"
_OVER = ("SUCCEEDED", "FAILED", "STOPPED", LOST)
_CALL_S = 120.0


class NodeSight(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the cluster, and what Ray says of it."""

    machine: str
    kind: str
    role: str
    status: str
    zone: str = ""
    spot: bool = False
    # Ray's word: active, idle, pending, none.
    ray: str = ""
    idle_s: float = 0.0
    used: dict[str, float] = {}
    total: dict[str, float] = {}
    usd_per_hour: float = 0.0
    cost_usd: float = 0.0
    why: str = ""


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    name: str
    cloud: str
    phase: str
    head: str
    nodes: list[NodeSight]
    pending: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    demands: list[dict[str, Any]] = []
    usage: dict[str, list[float]] = {}
    usd_per_hour: float = 0.0
    cost_usd: float = 0.0
    goes_in_s: float = -1.0
    # Why Ray could not be asked.
    blind: str = ""


def desk_words(*words: str) -> list[str]:
    """The desk on the head, as root, whoever one logs in as."""
    call = f'd=~root/{FOLDER}/desk; [ "$(id -u)" = 0 ] && exec "$d" "$@"; exec sudo -n -H sh -c \'"$0" "$@"\' "$d" "$@"'
    return ["sh", "-c", call, "desk", *words]


def ask(link: Link, *words: str) -> Any:
    """One answer of the desk. Raises CloudError with its words."""
    answer = link.run(desk_words(*words), timeout_s=_CALL_S)
    try:
        found = json.loads(answer.stdout.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as problem:
        raise CloudError(f"the head does not answer `{shlex.join(words)}`: {answer.stdout[-500:]!r}") from problem
    if isinstance(found, dict) and "error" in found:
        raise CloudError(str(found["error"]), hint=str(found.get("hint", "")))
    return found


def see(clusters: Clusters, cloud: Workshop, cluster: Cluster) -> Sight:
    machines = cloud.machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id})
    told: dict[str, Any] = {}
    blind = ""
    head = next((machine for machine in machines if machine.name == cluster.head), None)
    if head is None or head.status != "running":
        blind = f"the head is {head.status if head else 'gone'}"
    else:
        try:
            told = ask(Link(cloud, cluster.head), "status")
        except OutlastError as problem:
            blind = problem.message
    by_machine = {str(node["machine"]): node for node in told.get("nodes", [])}
    nodes = [_node(clusters, cluster, machine, by_machine) for machine in machines]
    past = clusters.each(cluster.name, "past", Past)
    state = clusters.get(cluster.name, "state", cluster.head, NodeState)
    return Sight(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=cluster.phase,
        head=cluster.head,
        nodes=sorted(nodes, key=lambda node: (node.role != "head", node.machine)),
        pending=told.get("pending", []),
        failed=told.get("failed", []),
        demands=told.get("demands", []),
        usage=told.get("usage", {}),
        usd_per_hour=sum(machine.bills_usd_per_hour for machine in machines),
        cost_usd=sum(machine.cost_usd for machine in machines) + sum(one.cost_usd for one in past),
        goes_in_s=state.goes_in_s if state else -1.0,
        blind=blind,
    )


def _node(clusters: Clusters, cluster: Cluster, machine: Machine, by_machine: Mapping[str, Any]) -> NodeSight:
    is_head = machine.name == cluster.head
    known = None if is_head else clusters.get(cluster.name, "nodes", machine.name, Node)
    state = clusters.get(cluster.name, "state", machine.name, NodeState)
    ray = by_machine.get(machine.name)
    return NodeSight(
        machine=machine.name,
        kind=cluster.spec.head.name if is_head else known.kind if known else "?",
        role="head" if is_head else "worker",
        status=machine.status,
        zone=machine.zone,
        spot=machine.spot,
        ray=("idle" if ray["idle"] else "active") if ray else (state.phase if state else ""),
        idle_s=float(ray["idle_s"]) if ray else 0.0,
        used=ray["used"] if ray else {},
        total=ray["total"] if ray else {},
        usd_per_hour=machine.bills_usd_per_hour,
        cost_usd=machine.cost_usd,
        why=(state.why if state and state.why else machine.why),
    )


def jobs(clusters: Clusters, cloud: Workshop, cluster: Cluster) -> list[dict[str, Any]]:
    """Every job that was submitted, the newest last, and those that somebody started on the head by hand."""
    known = {job.id: job for job in clusters.each(cluster.name, "jobs", Job)}
    ended = {one.id: msgspec.structs.asdict(one) for one in clusters.each(cluster.name, "ended", Ended)}
    blind = ""
    try:
        told = {str(job["id"]): job for job in ask(Link(cloud, cluster.head), "jobs")}
    except NotFound:
        told, blind = {}, "the head is gone"
    found = []
    for job in sorted(known.values(), key=lambda job: (job.asked_at, job.id)):
        ray = told.pop(job.id, None) or ended.get(job.id)
        lost = {"status": LOST, "message": blind or f"its head {job.head} was lost while it ran, and it with it"}
        if ray is None and job.head == cluster.head and not blind:
            lost = {"status": "UNSENT", "message": "whoever submitted it was cut short; submit it again"}
        found.append({"id": job.id, "command": job.command, "who": job.who, "matrix": job.matrix, **(ray or lost)})
    return [*found, *told.values()]


def is_over(status: str) -> bool:
    return status in _OVER
