"""The status of a cluster: its machines, Ray's nodes, its jobs and its cost. Read-only."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, InteractiveCloud, Machine
from outlast.cluster.listing import phase_of
from outlast.cluster.paths import FOLDER
from outlast.cluster.record import (
    LABEL_ID,
    UNNEEDED,
    Cluster,
    ClusterJob,
    Clusters,
    JobEnd,
    NodeRecord,
    NodeState,
    PastMachine,
)
from outlast.errors import CloudError, CloudUnreachable, NotFound, OutlastError
from outlast.machines.ssh import Link

# Our status for a job whose head is gone; the others are Ray's.
LOST = "LOST"
_OVER = ("SUCCEEDED", "FAILED", "STOPPED", LOST)
_CALL_S = 120.0
_OFF_S = 5.0
# ssh's exit code for a lost connection.
SSH_LOST = 255
# For commands that may be interrupted: over a shared connection, the remote program would continue.
SEPARATE_CONNECTION = ("-o", "ControlPath=none")
# Prefixes of Ray's messages about the end of a node.
_IN_ORDER = ("Expected termination", "Terminated due to idle")
_PREEMPTED = "Terminated due to preemption"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One machine of the cluster, with Ray's view of its node."""

    machine: str
    kind: str
    role: str
    status: str
    zone: str = ""
    spot: bool = False
    # Ray's status: active, idle; else the phase of the node's own program.
    ray: str = ""
    idle_s: float = 0.0
    used: dict[str, float] = {}
    total: dict[str, float] = {}
    usd_per_hour: float = 0.0
    cost_usd: float = 0.0
    why: str = ""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    name: str
    cloud: str
    phase: str
    head: str
    nodes: list[NodeStatus]
    # `kind`, `count`: requested by the autoscaler, not in Ray yet.
    pending: list[dict[str, Any]] = []
    # `kind`, `machine`, `why`: failed launches, and machines that died unexpectedly.
    failed: list[dict[str, Any]] = []
    # The same for preempted machines.
    preempted: list[dict[str, Any]] = []
    demands: list[dict[str, Any]] = []
    usage: dict[str, list[float]] = {}
    usd_per_hour: float = 0.0
    cost_usd: float = 0.0
    down_in_s: float = -1.0
    # Why Ray could not be queried.
    unreachable: str = ""


def head_rpc_argv(*argv: str) -> list[str]:
    """Return the remote argv that calls `head_rpc` on the head as root, for any ssh user."""
    call = f'p=~root/{FOLDER}/head_rpc; [ "$(id -u)" = 0 ] && exec "$p" "$@"\n'
    call += 'exec sudo -n -H sh -c \'"$0" "$@"\' "$p" "$@"'
    return ["sh", "-c", call, "head_rpc", *argv]


def call_head(link: Link, *argv: str) -> Any:
    """Send one request to the head and return its answer. Raises CloudError with the head's message."""
    answer = link.run(head_rpc_argv(*argv), timeout_s=_CALL_S)
    return _read(answer.stdout, shlex.join(argv))


def _read(output: bytes, request: str) -> Any:
    try:
        found = json.loads(output.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as problem:
        raise CloudError(f"invalid answer of the head to `{request}`: {output[-500:]!r}") from problem
    if isinstance(found, dict) and "error" in found:
        raise CloudError(str(found["error"]), hint=str(found.get("hint", "")))
    return found


def head_link(cloud: InteractiveCloud, cluster: Cluster) -> Link:
    """Return an ssh link to the head. Raises NotFound if the head is not alive."""
    try:
        machine = cloud.machine(cluster.head)
        status = f"{machine.status} ({machine.why})" if machine.why not in ("", machine.status) else machine.status
        alive = machine.status in ("pending", "running")
    except NotFound:
        status, alive = "gone", False
    if not alive:
        raise NotFound(
            f"the head of `{cluster.name}` is {status}; its jobs are lost",
            hint=f"`outlast cluster up` launches a new head; `outlast cluster down {cluster.name}` deletes the cluster",
        )
    return Link(cloud, cluster.head)


def connection_lost(cloud: InteractiveCloud, cluster: Cluster) -> CloudError:
    """Return why a connection to the head broke. Wait a little: the cloud may report a stopped machine late."""
    ends_at = time.monotonic() + _OFF_S
    while time.monotonic() < ends_at:
        try:
            head_link(cloud, cluster)
        except NotFound as gone:
            return gone
        time.sleep(0.5)
    return CloudUnreachable(
        f"the connection to {cluster.head} was lost", hint="repeat the command; running jobs continue"
    )


class ClusterWatch:
    """Reads Ray's status repeatedly from one program on the head: loading Ray for each status takes seconds."""

    def __init__(self, cloud: InteractiveCloud, every_s: float) -> None:
        self.cloud = cloud
        self.every_s = every_s
        self._process: subprocess.Popen[bytes] | None = None
        self._head = ""

    def next(self, cluster: Cluster) -> Any:
        """Wait for the next status and return it. Raises CloudError."""
        if self._process is None or self._head != cluster.head:
            self.close()
            link = head_link(self.cloud, cluster)
            argv = [
                *link.argv(options=SEPARATE_CONNECTION),
                "--",
                shlex.join(head_rpc_argv("status", str(self.every_s))),
            ]
            self._process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._head = cluster.head
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise connection_lost(self.cloud, cluster)
        return _read(line, "status")

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


def read_status(
    clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, *, watch: ClusterWatch | None = None
) -> ClusterStatus:
    ray: dict[str, Any] = {}
    unreachable = ""
    try:
        ray = watch.next(cluster) if watch else call_head(head_link(cloud, cluster), "status")
    except OutlastError as problem:
        unreachable = problem.message
    machines = cloud.machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id})
    by_machine = {str(node["machine"]): node for node in ray.get("nodes", [])}
    nodes = [_node(clusters, cluster, machine, by_machine) for machine in machines]
    past = {one.machine: one for one in clusters.each(cluster.name, "past", PastMachine)}
    state = clusters.get(cluster.name, "state", cluster.head, NodeState)
    ended = _ended(ray.get("ended", []), past)
    return ClusterStatus(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=phase_of(cluster, machines),
        head=cluster.head,
        nodes=sorted(nodes, key=lambda node: (node.role != "head", node.machine)),
        pending=_counted(ray.get("pending", [])),
        failed=[*ray.get("failed", []), *ended["failed"]],
        preempted=ended["preempted"],
        demands=ray.get("demands", []),
        usage=ray.get("usage", {}),
        usd_per_hour=sum(machine.bills_usd_per_hour for machine in machines),
        cost_usd=sum(machine.cost_usd for machine in machines) + sum(one.cost_usd for one in past.values()),
        down_in_s=state.down_in_s if state and not unreachable else -1.0,
        unreachable=unreachable,
    )


def _counted(pending: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the number of pending nodes by kind. Their ids in Ray have no meaning elsewhere."""
    counts: dict[str, int] = {}
    for one in pending:
        counts[one["kind"]] = counts.get(one["kind"], 0) + int(one.get("count", 1))
    return [{"kind": kind, "count": count} for kind, count in counts.items()]


def _ended(nodes: Sequence[Mapping[str, Any]], past: Mapping[str, PastMachine]) -> dict[str, list[dict[str, Any]]]:
    """Return failed and preempted nodes, without those that Ray ended as expected.

    The record of a deleted machine has a better reason than Ray.
    """
    found: dict[str, list[dict[str, Any]]] = {"failed": [], "preempted": []}
    for one in nodes:
        why = str(one["why"])
        known = past.get(str(one["machine"]))
        if why.startswith(_PREEMPTED) or (known is not None and known.why == "preempted"):
            found["preempted"].append({**one, "why": "preempted"})
        elif not why.startswith(_IN_ORDER):
            reason = known.why if known is not None and known.why != UNNEEDED else why
            found["failed"].append({**one, "why": reason or "unknown reason"})
    return found


def _node(clusters: Clusters, cluster: Cluster, machine: Machine, by_machine: Mapping[str, Any]) -> NodeStatus:
    is_head = machine.name == cluster.head
    known = None if is_head else clusters.get(cluster.name, "nodes", machine.name, NodeRecord)
    state = clusters.get(cluster.name, "state", machine.name, NodeState)
    ray = by_machine.get(machine.name)
    return NodeStatus(
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


def jobs(clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster) -> list[dict[str, Any]]:
    """Return every submitted job, newest last, and the running drivers that users started on the head."""
    known = {job.id: job for job in clusters.each(cluster.name, "jobs", ClusterJob)}
    ended = {one.id: msgspec.structs.asdict(one) for one in clusters.each(cluster.name, "ended", JobEnd)}
    unreachable = ""
    try:
        in_ray = {str(job["id"]): job for job in call_head(head_link(cloud, cluster), "jobs")}
    except NotFound as problem:
        in_ray, unreachable = {}, problem.message
    found = []
    for job in sorted(known.values(), key=lambda job: (job.asked_at, job.id)):
        ray = in_ray.pop(job.id, None) or ended.get(job.id)
        missing = {"status": LOST, "message": unreachable or f"the head {job.head} was lost while the job ran"}
        if ray is None and job.head == cluster.head and not unreachable:
            missing = {
                "status": "UNSENT",
                "message": "the submitting process died before Ray received it; submit it again",
            }
        found.append({"id": job.id, "command": job.command, "who": job.who, "matrix": job.matrix, **(ray or missing)})
    return [*found, *in_ray.values()]


def is_over(status: str) -> bool:
    return status in _OVER
