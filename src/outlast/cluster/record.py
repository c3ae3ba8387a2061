"""What the workspace remembers of a cluster: its record, its nodes, their state, its jobs. Refuses to ask a cloud.

clusters/NAME.json             the record: written before anything is launched, removed after everything is gone
clusters/NAME/head.json        which machine is the head now, and where the others find it; the head's own word
clusters/NAME/nodes/MACHINE    what Ray wants to be remembered of a node; before its launch
clusters/NAME/state/MACHINE    how far a node has come; its own word, a hint
clusters/NAME/jobs/ID          what was submitted; before Ray hears of it
clusters/NAME/ended/ID         how a job ended; the head's word
clusters/NAME/past/MACHINE     what a machine that is gone has cost
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from outlast.clouds.cloud import LABEL_CLUSTER, Boot
from outlast.code.record import CodeRecord
from outlast.errors import Exists, Missing
from outlast.records.machines import MachineRecords, cluster_purpose
from outlast.records.record import Record, Records
from outlast.spec.cluster import ClusterSpec, NodeKind
from outlast.store.codec import decoded, read_all
from outlast.workspace import Workspace

# On every machine of a cluster; Ray's own word for the first.
LABEL_NAME = "ray-cluster-name"
LABEL_ID = LABEL_CLUSTER
# The records of its machines are valid for so long after the head has last said so.
LEASE_S = 1200.0
# Why a worker went that did what it was there for.
UNNEEDED = "not needed any more"
PORT = 6379
DASHBOARD_PORT = 8265
T = TypeVar("T", bound=msgspec.Struct)


class ClusterMount(msgspec.Struct, frozen=True, kw_only=True):
    """A file or folder that every machine gets: as a bundle, or one file as a blob, or as a secret."""

    code: CodeRecord | None = None
    blob: str = ""
    secret: str = ""
    executable: bool = False


class Cluster(Record, frozen=True, kw_only=True):
    """One cluster: what was asked for, by whom, and how its machines are born."""

    spec: ClusterSpec
    # `host:path` of the file that it was made from: whoever changed the name in it is understood all the same.
    file: str = ""
    head: str = ""
    secrets: str = ""
    code: CodeRecord | None = None
    mounts: dict[str, ClusterMount] = msgspec.field(default_factory=dict)
    worker_boot: Boot = Boot()
    # What Ray believes that a node of each kind has.
    has: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)

    def kind(self, name: str) -> NodeKind:
        return next((kind for kind in self.spec.workers if kind.name == name), self.spec.head)

    @property
    def purpose(self) -> str:
        return cluster_purpose(self.name)


class HeadPlace(msgspec.Struct, frozen=True, kw_only=True):
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
    # By the machine's own clock, and only ever compared with itself.
    at: float = 0.0
    # The cluster is idle and will go down in so many seconds; below zero: it will not.
    goes_in_s: float = -1.0


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    command: str
    # The head that it was given to. On another one nobody knows it any more.
    head: str
    who: str = ""
    asked_at: float = 0.0
    code: CodeRecord | None = None
    env: dict[str, str] = {}
    # The grid that it is a point of.
    matrix: str = ""


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a job ended, by the head's word: Ray's own is lost with the head."""

    id: str
    status: str
    message: str = ""
    started_at: float = 0.0
    ended_at: float = 0.0
    exit_code: int | None = None


class Past(msgspec.Struct, frozen=True, kw_only=True):
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
        """Everything about it; the record last, so that one cut short is found again."""
        for entry in list(self.bucket.list(f"clusters/{cluster.name}/")):
            self.bucket.delete(entry.key)
        self.bucket.delete(self.key(cluster.name))

    # What is below

    def put(self, cluster: str, part: str, name: str, value: msgspec.Struct, *, durable: bool = False) -> None:
        self.bucket.put(f"clusters/{cluster}/{part}/{name}", msgspec.json.encode(value), durable=durable)

    def add(self, cluster: str, part: str, name: str, value: msgspec.Struct) -> bool:
        """False if there is one already."""
        try:
            self.bucket.create(f"clusters/{cluster}/{part}/{name}", msgspec.json.encode(value))
        except Exists:
            return False
        return True

    def get(self, cluster: str, part: str, name: str, kind: type[T]) -> T | None:
        key = f"clusters/{cluster}/{part}/{name}"
        try:
            return decoded(self.bucket.get(key), kind, key)
        except Missing:
            return None

    def each(self, cluster: str, part: str, kind: type[T]) -> list[T]:
        """All that can be read; the others are in `damaged`."""
        names = self.bucket.children(f"clusters/{cluster}/{part}/")
        damaged: dict[str, str] = {}
        found = read_all(names, lambda name: self.get(cluster, part, name, kind), damaged)
        self.damaged.update({f"{cluster}/{part}/{name}": why for name, why in damaged.items()})
        return found

    def drop(self, cluster: str, part: str, name: str) -> None:
        self.bucket.delete(f"clusters/{cluster}/{part}/{name}")

    def head(self, cluster: str) -> HeadPlace | None:
        key = f"clusters/{cluster}/head.json"
        try:
            return decoded(self.bucket.get(key), HeadPlace, key)
        except Missing:
            return None

    def tell_head(self, cluster: str, place: HeadPlace) -> None:
        self.bucket.put(f"clusters/{cluster}/head.json", msgspec.json.encode(place), durable=True)
