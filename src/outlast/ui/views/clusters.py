"""Clusters as rows, and one with its nodes, what they have and use, its jobs and their output. Values.

What the records tell is there at once; what only Ray knows is asked of the head, and its absence is told, not hidden.
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
    desk_words,
    head_link,
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
# How often the head tells what Ray knows, and how long its first word may take: it has to load Ray.
_WORD_S, _FIRST_S = 1.0, 60.0

Known = Callable[[Workspace], Mapping[str, InteractiveCloud]]


class Resource(msgspec.Struct, frozen=True, kw_only=True):
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
    resources: tuple[Resource, ...]
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


class ClusterSight(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cloud: str
    phase: str
    tone: str
    who: str
    head: str
    nodes: tuple[NodeRow, ...]
    resources: tuple[Resource, ...]
    demands: tuple[str, ...]
    # What is to come, what was lost, and why.
    notes: tuple[str, ...]
    jobs: tuple[JobRow, ...]
    usd_per_hour: float
    cost_usd: float
    goes_in_s: float
    # Why Ray could not be asked.
    unreachable: str = ""


class ClusterReader:
    """All clusters, from their records and from their clouds' lists of machines."""

    def __init__(self, workspace: Workspace, known: Known = interactive_clouds) -> None:
        self.workspace = workspace
        self.clusters = Clusters(workspace)
        self.known = known

    def __call__(self) -> tuple[ClusterRow, ...]:
        found = rows(self.clusters, self.known(self.workspace))
        return (*found, *(_damaged(name, why) for name, why in self.clusters.damaged.items()))


def _damaged(name: str, why: str) -> ClusterRow:
    """One whose record cannot be read; its machines may bill all the same."""
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


class Newest(ClusterWatch):
    """The newest of Ray's words: they come by themselves, and whoever asks less often is not told old ones."""

    def __init__(self, cloud: InteractiveCloud, every_s: float) -> None:
        super().__init__(cloud, every_s)
        self._told: Any = None
        self._problem: OutlastError | None = None
        self._heard = threading.Event()
        self._over = False
        self._reader: threading.Thread | None = None

    def next(self, cluster: Cluster) -> Any:
        if self._reader is None or not self._reader.is_alive():
            self._heard.clear()
            self._reader = threading.Thread(target=self._listen, args=(cluster,), name="cluster", daemon=True)
            self._reader.start()
        if not self._heard.wait(_FIRST_S):
            raise CloudError(f"the head has not answered for {_FIRST_S:g} s")
        if self._problem is not None:
            raise self._problem
        return self._told

    def _listen(self, cluster: Cluster) -> None:
        """Until the connection is lost, or nobody looks; who asks then makes another one."""
        while not self._over:
            try:
                self._told, self._problem = super().next(cluster), None
            except OutlastError as problem:
                self._problem = problem
            self._heard.set()
            if self._problem is not None:
                return

    def close(self) -> None:
        self._over = self._over or threading.current_thread() is not self._reader
        super().close()


class OneCluster:
    """One cluster, asked again and again. Raises NoSuchRun if there is none."""

    def __init__(self, workspace: Workspace, name: str, known: Known = interactive_clouds) -> None:
        self.workspace = workspace
        self.clusters = Clusters(workspace)
        self.name = name
        self.known = known
        self._watch: Newest | None = None

    def __call__(self) -> ClusterSight:
        cluster, cloud = self._found()
        if self._watch is None:
            self._watch = Newest(cloud, _WORD_S)
        sight = read_status(self.clusters, cloud, cluster, watch=self._watch)
        unreachable = sight.unreachable
        try:
            told = jobs(self.clusters, cloud, cluster)
        except StoreUnreachable:
            raise
        except OutlastError as problem:
            unreachable = unreachable or problem.message
            told = [_unknown(job) for job in self.clusters.each(cluster.name, "jobs", ClusterJob)]
        return sight_of(cluster, sight, told, unreachable=unreachable, now=time.time())

    def log(self, job_id: str) -> str:
        """The end of a job's output, from the head. Raises CloudError."""
        cluster, cloud = self._found()
        answer = head_link(cloud, cluster).run(desk_words("logs", job_id), timeout_s=_LOG_S)
        return answer.stdout[-_LOG_BYTES:].decode(errors="replace")

    def close(self) -> None:
        """Nobody looks any more: the program on the head ends."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _found(self) -> tuple[Cluster, InteractiveCloud]:
        cluster = self.clusters.find(self.name)
        if cluster is None:
            raise NoSuchRun(f"there is no cluster `{self.name}`", hint="see `outlast cluster list`")
        cloud = self.known(self.workspace).get(cluster.cloud)
        if cloud is None:
            raise NoSuchRun(f"`{cluster.cloud}`, where `{self.name}` is, cannot be asked from here")
        return cluster, cloud


def phase_tone(phase: str, problem: str) -> str:
    """What nobody could make sure of is not shown as good."""
    return "warn" if problem and phase == "ready" else _PHASES[phase]


def _unknown(job: ClusterJob) -> dict[str, Any]:
    return {"id": job.id, "command": job.command, "who": job.who, "matrix": job.matrix, "status": "UNKNOWN"}


def sight_of(
    cluster: Cluster, sight: ClusterStatus, told: list[dict[str, Any]], *, unreachable: str, now: float
) -> ClusterSight:
    return ClusterSight(
        name=cluster.name,
        cloud=cluster.cloud,
        phase=sight.phase,
        tone=phase_tone(sight.phase, unreachable),
        who=cluster.who,
        head=cluster.head,
        nodes=tuple(_node(node) for node in sight.nodes),
        resources=tuple(_resource(name, *pair[:2]) for name, pair in sorted(sight.usage.items()) if shown(name)),
        demands=tuple(_demand(demand) for demand in sight.demands),
        notes=tuple(_notes(sight)),
        jobs=tuple(_job(job, now) for job in reversed(told)),
        usd_per_hour=sight.usd_per_hour,
        cost_usd=sight.cost_usd,
        goes_in_s=sight.goes_in_s,
        unreachable=unreachable,
    )


def shown(resource: str) -> bool:
    """Ray counts every address and every node as a resource of one; nobody asks for those."""
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


def _resource(name: str, used: float, total: float) -> Resource:
    if name in ("memory", "object_store_memory"):
        text = f"{size(int(used))} of {size(int(total))}"
    else:
        text = f"{used:g} of {total:g}"
    return Resource(name=name.replace("_", " "), used=used, total=total, text=text)


def _demand(demand: Mapping[str, Any]) -> str:
    """Ray's words for what it cannot place yet."""
    argv = ", ".join(f"{value:g} {name}" for name, value in demand["bundle"].items() if shown(name))
    return f"{demand['count']} × {argv}"


def _notes(sight: ClusterStatus) -> list[str]:
    coming = [f"{one['count']} × {one['kind']} to come" for one in sight.pending]
    lost = [f"{one['machine']}: {one['why']}" for one in (*sight.failed, *sight.preempted) if one.get("machine")]
    refused = [f"{one.get('kind', '')}: {one['why']}" for one in sight.failed if not one.get("machine")]
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
        # Of one under way it would change with every look; the page has a clock of its own for what is live.
        took=took if is_over(status) else "",
        remark="" if status in ("SUCCEEDED", "RUNNING") else str(job.get("message") or "").partition("\n")[0],
    )
