"""What there is to see of a cluster: its machines, Ray's nodes, its jobs, its costs. Refuses to change anything."""

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
from outlast.cluster.record import LABEL_ID, UNNEEDED, Cluster, ClusterJob, Clusters, Ended, NodeRecord, NodeState, Past
from outlast.errors import CloudError, CloudUnreachable, NotFound, OutlastError
from outlast.machines.ssh import Link

# Ray's word, and ours for what Ray cannot tell: the head that knew the job is gone.
LOST = "LOST"
_OVER = ("SUCCEEDED", "FAILED", "STOPPED", LOST)
_CALL_S = 120.0
_OFF_S = 5.0
# What `ssh` itself ends with.
SSH_LOST = 255
# For what may be interrupted: who shares a connection leaves his output, and his program there, to whoever keeps it.
ALONE = ("-o", "ControlPath=none")
# How Ray's words for the end of a node begin.
_IN_ORDER = ("Expected termination", "Terminated due to idle")
_PREEMPTED = "Terminated due to preemption"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
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


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    name: str
    cloud: str
    phase: str
    head: str
    nodes: list[NodeStatus]
    # `kind`, `count`: wanted by the autoscaler, and not in Ray yet.
    pending: list[dict[str, Any]] = []
    # `kind`, `machine`, `why`: launches that failed, and machines that died of something else than their end.
    failed: list[dict[str, Any]] = []
    # The same of machines that their cloud has taken away.
    preempted: list[dict[str, Any]] = []
    demands: list[dict[str, Any]] = []
    usage: dict[str, list[float]] = {}
    usd_per_hour: float = 0.0
    cost_usd: float = 0.0
    goes_in_s: float = -1.0
    # Why Ray could not be asked.
    unreachable: str = ""


def desk_words(*argv: str) -> list[str]:
    """The desk on the head, as root, whoever one logs in as."""
    call = f'd=~root/{FOLDER}/desk; [ "$(id -u)" = 0 ] && exec "$d" "$@"; exec sudo -n -H sh -c \'"$0" "$@"\' "$d" "$@"'
    return ["sh", "-c", call, "desk", *argv]


def ask(link: Link, *argv: str) -> Any:
    """One answer of the desk. Raises CloudError with its words."""
    answer = link.run(desk_words(*argv), timeout_s=_CALL_S)
    return _read(answer.stdout, shlex.join(argv))


def _read(said: bytes, asked: str) -> Any:
    try:
        found = json.loads(said.decode().strip().splitlines()[-1])
    except (ValueError, IndexError) as problem:
        raise CloudError(f"the head does not answer `{asked}`: {said[-500:]!r}") from problem
    if isinstance(found, dict) and "error" in found:
        raise CloudError(str(found["error"]), hint=str(found.get("hint", "")))
    return found


def head_link(cloud: InteractiveCloud, cluster: Cluster) -> Link:
    """ssh to the head. Raises NotFound if the cluster has none that lives."""
    try:
        machine = cloud.machine(cluster.head)
        status = f"{machine.status} ({machine.why})" if machine.why not in ("", machine.status) else machine.status
        lives = machine.status in ("pending", "running")
    except NotFound:
        status, lives = "gone", False
    if not lives:
        raise NotFound(
            f"the head of `{cluster.name}` is {status}, and with it whatever ran",
            hint=f"`outlast cluster up` launches another; `outlast cluster down {cluster.name}` ends what is left",
        )
    return Link(cloud, cluster.head)


def lost(cloud: InteractiveCloud, cluster: Cluster) -> CloudError:
    """Why a connection to the head broke. It breaks before its cloud says that the machine is off, so that is waited
    for a little."""
    ends_at = time.monotonic() + _OFF_S
    while time.monotonic() < ends_at:
        try:
            head_link(cloud, cluster)
        except NotFound as gone:
            return gone
        time.sleep(0.5)
    return CloudUnreachable(
        f"the connection to {cluster.head} was lost", hint="the same words again; what runs goes on"
    )


class ClusterWatch:
    """Ray's word again and again, by one program on the head: to load Ray for every look would keep it busy."""

    def __init__(self, cloud: InteractiveCloud, every_s: float) -> None:
        self.cloud = cloud
        self.every_s = every_s
        self._asked: subprocess.Popen[bytes] | None = None
        self._head = ""

    def next(self, cluster: Cluster) -> Any:
        """The next word, when it comes. Raises CloudError."""
        if self._asked is None or self._head != cluster.head:
            self.close()
            link = head_link(self.cloud, cluster)
            argv = [*link.argv(options=ALONE), "--", shlex.join(desk_words("status", str(self.every_s)))]
            self._asked = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            self._head = cluster.head
        assert self._asked.stdout is not None
        line = self._asked.stdout.readline()
        if not line:
            self.close()
            raise lost(self.cloud, cluster)
        return _read(line, "status")

    def close(self) -> None:
        if self._asked is not None:
            self._asked.kill()
            self._asked.communicate()
        self._asked = None


def read_status(
    clusters: Clusters, cloud: InteractiveCloud, cluster: Cluster, *, watch: ClusterWatch | None = None
) -> ClusterStatus:
    told: dict[str, Any] = {}
    unreachable = ""
    try:
        told = watch.next(cluster) if watch else ask(head_link(cloud, cluster), "status")
    except OutlastError as problem:
        unreachable = problem.message
    machines = cloud.machines({LABEL_WORKSPACE: clusters.workspace.id, LABEL_ID: cluster.id})
    by_machine = {str(node["machine"]): node for node in told.get("nodes", [])}
    nodes = [_node(clusters, cluster, machine, by_machine) for machine in machines]
    past = {one.machine: one for one in clusters.each(cluster.name, "past", Past)}
    state = clusters.get(cluster.name, "state", cluster.head, NodeState)
    ended = _ended(told.get("ended", []), past)
    return ClusterStatus(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=phase_of(cluster, machines),
        head=cluster.head,
        nodes=sorted(nodes, key=lambda node: (node.role != "head", node.machine)),
        pending=_counted(told.get("pending", [])),
        failed=[*told.get("failed", []), *ended["failed"]],
        preempted=ended["preempted"],
        demands=told.get("demands", []),
        usage=told.get("usage", {}),
        usd_per_hour=sum(machine.bills_usd_per_hour for machine in machines),
        cost_usd=sum(machine.cost_usd for machine in machines) + sum(one.cost_usd for one in past.values()),
        goes_in_s=state.goes_in_s if state and not unreachable else -1.0,
        unreachable=unreachable,
    )


def _counted(pending: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By kind. Ray names those that are to come by numbers that nobody else knows."""
    counts: dict[str, int] = {}
    for one in pending:
        counts[one["kind"]] = counts.get(one["kind"], 0) + int(one.get("count", 1))
    return [{"kind": kind, "count": count} for kind, count in counts.items()]


def _ended(told: Sequence[Mapping[str, Any]], past: Mapping[str, Past]) -> dict[str, list[dict[str, Any]]]:
    """Nodes that Ray has lost, without those that ended in order: it drains those that are idle or preempted, and what
    becomes of the others is known to whoever deleted the machine."""
    found: dict[str, list[dict[str, Any]]] = {"failed": [], "preempted": []}
    for one in told:
        why = str(one["why"])
        known = past.get(str(one["machine"]))
        if why.startswith(_PREEMPTED) or (known is not None and known.why == "preempted"):
            found["preempted"].append({**one, "why": "preempted"})
        elif not why.startswith(_IN_ORDER):
            reason = known.why if known is not None and known.why != UNNEEDED else why
            found["failed"].append({**one, "why": reason or "nobody knows why"})
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
    """Every job that was submitted, the newest last, and those that somebody started on the head by hand."""
    known = {job.id: job for job in clusters.each(cluster.name, "jobs", ClusterJob)}
    ended = {one.id: msgspec.structs.asdict(one) for one in clusters.each(cluster.name, "ended", Ended)}
    unreachable = ""
    try:
        told = {str(job["id"]): job for job in ask(head_link(cloud, cluster), "jobs")}
    except NotFound as problem:
        told, unreachable = {}, problem.message
    found = []
    for job in sorted(known.values(), key=lambda job: (job.asked_at, job.id)):
        ray = told.pop(job.id, None) or ended.get(job.id)
        lost = {"status": LOST, "message": unreachable or f"its head {job.head} was lost while it ran, and it with it"}
        if ray is None and job.head == cluster.head and not unreachable:
            lost = {"status": "UNSENT", "message": "whoever submitted it was cut short; submit it again"}
        found.append({"id": job.id, "command": job.command, "who": job.who, "matrix": job.matrix, **(ray or lost)})
    return [*found, *told.values()]


def is_over(status: str) -> bool:
    return status in _OVER
