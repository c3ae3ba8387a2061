"""Clusters as table rows, and one cluster with nodes, resources and jobs, as values.

Data from records is available at once. Data from Ray comes from the head; if it does not answer, the page says so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from outlast.clouds.cloud import InteractiveCloud
from outlast.clouds.registry import interactive_clouds
from outlast.cluster.listing import LOST, ClusterRow, rows
from outlast.cluster.record import Cluster, ClusterJob, Clusters
from outlast.cluster.status import (
    ClusterStatus,
    ClusterWatch,
    NodeStatus,
    head_link,
    head_rpc_argv,
    is_over,
    jobs,
    read_status,
)
from outlast.errors import CloudError, NoSuchRun, OutlastError, StoreUnreachable
from outlast.formatting.quantities import size
from outlast.spec.quantity import describe_s
from outlast.workspace import Workspace

DAMAGED = "damaged"
_PHASES = {"creating": "busy", "ready": "good", "deleting": "warn", LOST: "bad", DAMAGED: "bad"}
_JOBS = {"RUNNING": "good", "SUCCEEDED": "done", "PENDING": "busy", "FAILED": "bad", "LOST": "bad", "UNSENT": "warn"}
_LOG_BYTES, _LOG_S = 200_000, 60.0
# The interval of the head's reports, and the maximum time for the first one: the head has to load Ray.
_WORD_S, _FIRST_S = 1.0, 60.0

Known = Callable[[Workspace], Mapping[str, InteractiveCloud]]


class ClusterResource(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    used: float
    total: float
    text: str

    @property
    def part(self) -> float:
        return min(1.0, self.used / self.total) if self.total else 0.0


class NodeRow(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    kind: str
    role: str
    status: str
    tone: str
    where: str
    ray: str
    resources: tuple[ClusterResource, ...]
    usd_per_hour: float
    cost_usd: float
    why: str


class JobRow(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    status: str
    tone: str
    command: str
    who: str
    point: str
    took: str
    remark: str


class ClusterDetail(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cloud: str
    phase: str
    tone: str
    who: str
    head: str
    nodes: tuple[NodeRow, ...]
    resources: tuple[ClusterResource, ...]
    demands: tuple[str, ...]
    # Planned nodes, and lost ones with the reason.
    notes: tuple[str, ...]
    jobs: tuple[JobRow, ...]
    usd_per_hour: float
    cost_usd: float
    down_in_s: float
    # Why Ray's data is missing.
    unreachable: str = ""


class ClusterReader:
    """The reader of all clusters, from their records and their clouds' lists of machines."""

    def __init__(self, workspace: Workspace, known: Known = interactive_clouds) -> None:
        self.workspace = workspace
        self.clusters = Clusters(workspace)
        self.known = known

    def __call__(self) -> tuple[ClusterRow, ...]:
        found = rows(self.clusters, self.known(self.workspace))
        return (*found, *(_damaged(name, why) for name, why in self.clusters.damaged.items()))


def _damaged(name: str, why: str) -> ClusterRow:
    """Return the row of a cluster with an unreadable record; its machines may be billed."""
    return ClusterRow(
        name=name,
        cloud="",
        phase=DAMAGED,
        who="",
        head="",
        machines=0,
        jobs=0,
        usd_per_hour=0.0,
        cost_usd=0.0,
        asked_at=0.0,
        problem=why,
    )


class NewestStatus(ClusterWatch):
    """The newest status from the head. Reports arrive continuously; a thread keeps the last one."""

    def __init__(self, cloud: InteractiveCloud, every_s: float) -> None:
        super().__init__(cloud, every_s)
        self._status: Any = None
        self._problem: OutlastError | None = None
        self._received = threading.Event()
        self._over = False
        self._reader: threading.Thread | None = None

    def next(self, cluster: Cluster) -> Any:
        if self._reader is None or not self._reader.is_alive():
            self._received.clear()
            self._reader = threading.Thread(target=self._listen, args=(cluster,), name="cluster", daemon=True)
            self._reader.start()
        if not self._received.wait(_FIRST_S):
            raise CloudError(f"the head has not answered for {_FIRST_S:g} s")
        if self._problem is not None:
            raise self._problem
        return self._status

    def _listen(self, cluster: Cluster) -> None:
        """Read until the connection is lost or closed; the next call opens another one."""
        while not self._over:
            try:
                self._status, self._problem = super().next(cluster), None
            except OutlastError as problem:
                self._problem = problem
            self._received.set()
            if self._problem is not None:
                return

    def close(self) -> None:
        self._over = self._over or threading.current_thread() is not self._reader
        super().close()


class ClusterDetailReader:
    """The repeated reader of one cluster. Raises NoSuchRun if there is none."""

    def __init__(self, workspace: Workspace, name: str, known: Known = interactive_clouds) -> None:
        self.workspace = workspace
        self.clusters = Clusters(workspace)
        self.name = name
        self.known = known
        self._watch: NewestStatus | None = None

    def __call__(self) -> ClusterDetail:
        cluster, cloud = self._found()
        if self._watch is None:
            self._watch = NewestStatus(cloud, _WORD_S)
        status = read_status(self.clusters, cloud, cluster, watch=self._watch)
        unreachable = status.unreachable
        try:
            job_list = jobs(self.clusters, cloud, cluster)
        except StoreUnreachable:
            raise
        except OutlastError as problem:
            unreachable = unreachable or problem.message
            job_list = [_unknown(job) for job in self.clusters.each(cluster.name, "jobs", ClusterJob)]
        return detail_of(cluster, status, job_list, unreachable=unreachable, now=time.time())

    def log(self, job_id: str) -> str:
        """Return the end of a job's output, from the head. Raises CloudError."""
        cluster, cloud = self._found()
        answer = head_link(cloud, cluster).run(head_rpc_argv("logs", job_id), timeout_s=_LOG_S)
        return answer.stdout[-_LOG_BYTES:].decode(errors="replace")

    def close(self) -> None:
        """End the program on the head: there are no more viewers."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _found(self) -> tuple[Cluster, InteractiveCloud]:
        cluster = self.clusters.find(self.name)
        if cluster is None:
            raise NoSuchRun(f"cluster `{self.name}` does not exist", hint="see `outlast cluster list`")
        cloud = self.known(self.workspace).get(cluster.cloud)
        if cloud is None:
            raise NoSuchRun(f"`{self.name}` is on `{cluster.cloud}`, which is not configured on this computer")
        return cluster, cloud


def phase_tone(phase: str, problem: str) -> str:
    """Return the colour of a phase; never `good` if the phase could not be verified."""
    return "warn" if problem and phase == "ready" else _PHASES[phase]


def _unknown(job: ClusterJob) -> dict[str, Any]:
    return {"id": job.id, "command": job.command, "who": job.who, "matrix": job.matrix, "status": "UNKNOWN"}


def detail_of(
    cluster: Cluster, status: ClusterStatus, job_list: list[dict[str, Any]], *, unreachable: str, now: float
) -> ClusterDetail:
    return ClusterDetail(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=status.phase,
        tone=phase_tone(status.phase, unreachable),
        who=cluster.who,
        head=cluster.head,
        nodes=tuple(_node(node) for node in status.nodes),
        resources=tuple(_resource(name, *pair[:2]) for name, pair in sorted(status.usage.items()) if shown(name)),
        demands=tuple(_demand(demand) for demand in status.demands),
        notes=tuple(_notes(status)),
        jobs=tuple(_job(job, now) for job in reversed(job_list)),
        usd_per_hour=status.usd_per_hour,
        cost_usd=status.cost_usd,
        down_in_s=status.down_in_s,
        unreachable=unreachable,
    )


def shown(resource: str) -> bool:
    """Return whether to show a resource: Ray counts every node as a resource of one."""
    return not resource.startswith("node:")


def _node(node: NodeStatus) -> NodeRow:
    tones = {"running": "good", "stopped": "warn", "stopping": "warn"}
    return NodeRow(
        machine=node.machine,
        kind=node.kind,
        role=node.role,
        status=node.status,
        tone=tones.get(node.status, "busy"),
        where=f"{node.zone}{'' if node.spot else ', on demand'}",
        ray=node.ray + (f" for {describe_s(node.idle_s)}" if node.ray == "idle" and node.idle_s >= 1 else ""),
        resources=tuple(
            _resource(name, node.used.get(name, 0.0), whole)
            for name, whole in sorted(node.total.items())
            if shown(name)
        ),
        usd_per_hour=node.usd_per_hour,
        cost_usd=node.cost_usd,
        why=node.why,
    )


def _resource(name: str, used: float, total: float) -> ClusterResource:
    if name in ("memory", "object_store_memory"):
        text = f"{size(int(used))} of {size(int(total))}"
    else:
        text = f"{used:g} of {total:g}"
    return ClusterResource(name=name.replace("_", " "), used=used, total=total, text=text)


def _demand(demand: Mapping[str, Any]) -> str:
    """Format a resource demand that Ray cannot place yet."""
    bundle = ", ".join(f"{value:g} {name}" for name, value in demand["bundle"].items() if shown(name))
    return f"{demand['count']} × {bundle}"


def _notes(status: ClusterStatus) -> list[str]:
    coming = [f"{one['count']} × {one['kind']} planned" for one in status.pending]
    lost = [f"{one['machine']}: {one['why']}" for one in (*status.failed, *status.preempted) if one.get("machine")]
    refused = [f"{one.get('kind', '')}: {one['why']}" for one in status.failed if not one.get("machine")]
    return [*coming, *refused, *lost[-5:]]


def _job(job: Mapping[str, Any], now: float) -> JobRow:
    status = str(job["status"])
    begun = job.get("started_at") or 0.0
    took = describe_s(max(0.0, (job.get("ended_at") or now) - begun)) if begun else ""
    return JobRow(
        id=str(job["id"]),
        status=status,
        tone=_JOBS.get(status, "off"),
        command=str(job.get("command", "")),
        who=str(job.get("who", "")),
        point=str(job.get("matrix", "")),
        # Empty for a running job: it would change with every read.
        took=took if is_over(status) else "",
        remark="" if status in ("SUCCEEDED", "RUNNING") else str(job.get("message") or "").partition("\n")[0],
    )
