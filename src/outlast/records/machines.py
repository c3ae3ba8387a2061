"""Records of the machines that no run owns: created by users, or by a command for its own use.

A machine that carries the label of such a record is an orphan if the record is gone or its owner has died.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.errors import Exists, Missing, UsageError
from outlast.records.record import OWNER_TIMEOUT_S, Phase, Record, Records
from outlast.workspace import Workspace

_CLUSTER = "cluster:"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a machine that its cloud reports, at one moment."""

    type: str = ""
    disk_gb: float = 0.0
    image: str = ""
    labels: dict[str, str] = {}
    metadata: dict[str, str] = {}


class MachineRecord(Record, frozen=True, kw_only=True):
    """One machine that no run owns. Its id is also a label of the machine."""

    # `manual`, or the name of the command that created it for its own use.
    purpose: str = "manual"
    # The supervisor deletes it after this time (store's clock), even if it is `ready`; 0: never.
    until: float = 0.0
    spot: bool = False
    script: str = ""
    image: str = ""
    zones: tuple[str, ...] = ()
    # Properties at creation; anything that differs now has drifted.
    born: Facts | None = None
    # `stopped`: a user stopped it, and `outlast machine keep` must not start it.
    wanted: Literal["running", "stopped"] = "running"
    # A supervisor machine that may be deleted once no run is alive.
    until_idle: bool = False
    # Cost that the cloud's figures omit: under an earlier type, or in an earlier zone.
    extra_usd: float = 0.0


class MachineRecordView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a record that decides whether its machine is still in use."""

    id: str
    phase: Phase
    # Seconds since the owner last wrote the record, by the store's clock; infinite if it has died.
    owner_silent_s: float = 0.0
    # The record's `until` has passed.
    overdue: bool = False
    until_idle: bool = False
    who: str = ""
    # The cluster to which the machine belongs.
    cluster: str = ""
    # A worker of a cluster that has been without a head for too long.
    headless: bool = False

    @property
    def abandoned(self) -> bool:
        return self.overdue or self.headless or (self.phase != "ready" and self.owner_silent_s > OWNER_TIMEOUT_S)


class _ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    orphan_s: float = 300.0


class ClusterView(Record, frozen=True, kw_only=True):
    """The part of a cluster's record that decides whether its machines are still in use."""

    # The head machine, and for how long workers wait for another one.
    head: str = ""
    spec: _ClusterSpec = _ClusterSpec()


def cluster_purpose(cluster: str) -> str:
    """Return the purpose of a cluster's machines, which are orphans once the cluster's record is gone."""
    return f"{_CLUSTER}{cluster}"


def cluster_of(purpose: str) -> str:
    """Return the cluster in a purpose; empty for other purposes."""
    return purpose.removeprefix(_CLUSTER) if purpose.startswith(_CLUSTER) else ""


def supervisor_name(workspace: Workspace) -> str:
    """Return the name of a workspace's supervisor machine. It is derived, so a second request finds the first."""
    return f"outlast-supervisor-{workspace.id[:6]}"


def is_supervisor_vm(who: str) -> bool:
    """Return whether the holder of a lease is a supervisor machine rather than a process on a user's computer."""
    return who.startswith("outlast-supervisor-")


class MachineRecords(Records[MachineRecord]):
    """The machine records of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace, "machines", MachineRecord)
        self.clusters = Records(workspace, "clusters", ClusterView)

    def create(self, record: MachineRecord) -> MachineRecord:
        """Write the intent; may be repeated. Raises Exists when the name is taken.

        A record whose owner has died is not taken over: its machine must be deleted first, then the record.
        """
        try:
            return super().create(record)
        except Exists:
            found = self.find(record.name)
            if found is None or found.id != record.id:
                raise
        return found

    def write(self, record: MachineRecord) -> MachineRecord:
        """Replace a record. Raises UsageError if the name now belongs to another machine.

        That happens to an owner that counted as dead because it was suspended.
        """
        found = self._other(record)
        if found is not None:
            raise UsageError(
                f"`{record.name}` now names another machine (on {found.cloud}, by {found.who or 'unknown'})",
                hint="choose another name",
            )
        return super().write(record)

    def view(self, name: str) -> MachineRecordView | None:
        """Return the supervisor's view of a record. Raises Damaged."""
        record = self.find(name)
        if record is None:
            return None
        cluster = cluster_of(record.purpose)
        if cluster and self.without_cluster(cluster):
            return MachineRecordView(id=record.id, phase="deleting", owner_silent_s=float("inf"))
        if record.phase == "ready":
            return MachineRecordView(
                id=record.id,
                phase=record.phase,
                overdue=bool(record.until) and self.now() > record.until,
                until_idle=record.until_idle,
                who=record.who,
                cluster=cluster,
            )
        return MachineRecordView(
            id=record.id, phase=record.phase, owner_silent_s=self.owner_silent_s(record), who=record.who
        )

    def without_cluster(self, name: str) -> bool:
        """Return whether the cluster is gone, or the process that brought it up or down has died. Raises Damaged."""
        cluster = self.clusters.find(name)
        return cluster is None or self.clusters.abandoned(cluster)

    def head_silent_s(self, cluster: str, head: str) -> float:
        """Return the seconds since the head last wrote its state; infinite if it never did, or has signed off."""
        try:
            written_at = self.bucket.head(f"clusters/{cluster}/state/{head}").modified_at
        except Missing:
            return float("inf")
        return max(0.0, self.now() - written_at)

    def remove(self, name: str) -> None:
        """Remove a record; may be repeated."""
        self.bucket.delete(self.key(name))

    def remove_own(self, record: MachineRecord) -> None:
        """Remove exactly this record. Without its own record, a later machine of the same name would be reaped."""
        if self._other(record) is None:
            self.remove(record.name)

    def _other(self, record: MachineRecord) -> MachineRecord | None:
        """Return the stored record of that name if it belongs to another machine."""
        found = self.find_readable(record.name)
        return found if found is not None and found.id != record.id else None
