"""The records of clusters in the workspace.

clusters/NAME.json             the cluster: written before any launch, removed after everything is deleted
clusters/NAME/head.json        the current head machine and its address, written by the head
clusters/NAME/nodes/MACHINE    Ray's tags of a node, written before its launch
clusters/NAME/state/MACHINE    the progress of a node, written by the node
clusters/NAME/jobs/ID          a submitted job, written before Ray receives it
clusters/NAME/ended/ID         how a job ended, written by the head
clusters/NAME/past/MACHINE     the cost of a deleted machine
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outlast.clouds.cloud import LABEL_CLUSTER, Boot
from outlast.code.environment import EnvironmentRecord
from outlast.code.record import CodeRecord
from outlast.errors import Exists
from outlast.records.machines import MachineRecords, cluster_purpose
from outlast.records.record import Record, Records
from outlast.spec.cluster import ClusterSpec, NodeKind
from outlast.store.blobs import blob_key
from outlast.store.codec import read_all, read_object
from outlast.workspace import Workspace

# Labels of every machine of a cluster. The first is Ray's name for it.
LABEL_NAME = "ray-cluster-name"
LABEL_ID = LABEL_CLUSTER
# Machine records stay valid for this long after the head's last renewal.
LEASE_S = 1200.0
# The reason for deleting an idle worker.
UNNEEDED = "no longer needed"
PORT = 6379
DASHBOARD_PORT = 8265
T = TypeVar("T", bound=msgspec.Struct)


class ClusterMount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that every machine receives: a folder as a bundle, a file as a blob or a secret."""

    code: CodeRecord | None = None
    blob: str = ""
    secret: str = ""
    executable: bool = False


class Cluster(Record, frozen=True, kw_only=True):
    """One cluster: its spec, its owner, and the boot settings of its machines."""

    spec: ClusterSpec
    # `host:path` of the cluster file. It finds the cluster even if the name in the file has changed.
    file: str = ""
    head: str = ""
    secrets: str = ""
    code: CodeRecord | None = None
    # The packages of Ray and all jobs; None: those of the image.
    environment: EnvironmentRecord | None = None
    mounts: dict[str, ClusterMount] = msgspec.field(default_factory=dict)
    worker_boot: Boot = Boot()
    # Kind of node → the resources that Ray assumes for it.
    resources: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    def kind(self, name: str) -> NodeKind:
        return next((kind for kind in self.spec.workers if kind.name == name), self.spec.head)

    @property
    def purpose(self) -> str:
        return cluster_purpose(self.name)

    @property
    def shared_keys(self) -> tuple[str, ...]:
        """The keys of all shared objects that it refers to."""
        codes = [code for code in (self.code, *(mount.code for mount in self.mounts.values())) if code is not None]
        keys = {key for code in codes for key in code.shared_keys}
        keys |= {blob_key(mount.blob) for mount in self.mounts.values() if mount.blob}
        if self.environment is not None and self.environment.packages:
            keys.add(self.environment.lock_key)
        return tuple(sorted(keys))


class HeadAddress(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    address: str


class NodeRecord(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    kind: str
    tags: dict[str, str] = {}


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    phase: str
    why: str = ""
    # By the machine's clock; compare it only with other values of the same machine.
    at: float = 0.0
    # Seconds until the idle cluster goes down; negative: it does not.
    down_in_s: float = -1.0


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    command: str
    # The head that received it. Another head does not know it.
    head: str
    who: str = ""
    asked_at: float = 0.0
    code: CodeRecord | None = None
    env: dict[str, str] = {}
    # The grid of which it is a point.
    matrix: str = ""


class JobEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended. Ray's own record of it is lost with the head."""

    id: str
    status: str
    message: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int | None = None


class PastMachine(msgspec.Struct, frozen=True, kw_only=True):
    machine: str
    cost_usd: float
    ran_s: float
    why: str = ""


class Clusters(Records[Cluster]):
    """The clusters of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, "clusters", Cluster)
        self.machine_records = MachineRecords(workspace)

    def forget(self, cluster: Cluster) -> None:
        """Remove everything about a cluster; the record last, so that an interrupted removal is found again."""
        for entry in list(self.bucket.list(f"clusters/{cluster.name}/")):
            self.bucket.delete(entry.key)
        self.bucket.delete(self.key(cluster.name))

    def put(self, cluster: str, part: str, name: str, value: msgspec.Struct, *, durable: bool = False) -> None:
        self.bucket.put(f"clusters/{cluster}/{part}/{name}", msgspec.json.encode(value), durable=durable)

    def add(self, cluster: str, part: str, name: str, value: msgspec.Struct) -> bool:
        """Write a value once; return False if it exists."""
        try:
            self.bucket.create(f"clusters/{cluster}/{part}/{name}", msgspec.json.encode(value))
        except Exists:
            return False
        return True

    def get(self, cluster: str, part: str, name: str, kind: type[T]) -> T | None:
        return read_object(self.bucket, f"clusters/{cluster}/{part}/{name}", kind)

    def each(self, cluster: str, part: str, kind: type[T]) -> list[T]:
        """Return all readable values of a part; the others are in `damaged`."""
        names = self.bucket.children(f"clusters/{cluster}/{part}/")
        damaged: dict[str, str] = {}
        found = read_all(names, lambda name: self.get(cluster, part, name, kind), damaged)
        self.damaged.update({f"{cluster}/{part}/{name}": why for name, why in damaged.items()})
        return found

    def drop(self, cluster: str, part: str, name: str) -> None:
        self.bucket.delete(f"clusters/{cluster}/{part}/{name}")

    def head(self, cluster: str) -> HeadAddress | None:
        return read_object(self.bucket, f"clusters/{cluster}/head.json", HeadAddress)

    def write_head(self, cluster: str, head: HeadAddress) -> None:
        self.bucket.put(f"clusters/{cluster}/head.json", msgspec.json.encode(head), durable=True)
