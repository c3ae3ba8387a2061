"""The machines of one cluster as its head sees them: launched, listed, deleted, with their records kept true.

Used by Ray's autoscaler (`provider.py`) and by the head's own guard. Refuses to know Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from outlast.billing.ledger_store import LedgerStore
from outlast.clouds.cloud import LABEL_MACHINE, InteractiveCloud, Machine
from outlast.cluster.broker import BrokeredCloud
from outlast.cluster.record import LABEL_ID, LABEL_NAME, LEASE_S, Cluster, Clusters, NodeRecord, Past
from outlast.errors import NotFound, OutlastError, UsageError
from outlast.machines.create import MachineRequest, create_machine
from outlast.machines.status import cost_usd
from outlast.records.machines import MachineRecord


def cloud_of_head(cloud: str, broker: str) -> InteractiveCloud:
    """The cloud, as a machine of it can call it."""
    if cloud == "local":
        return cast(InteractiveCloud, BrokeredCloud(broker))
    if cloud == "gcp":
        from outlast.clouds.gcp.cloud import GcpCloud

        return cast(InteractiveCloud, GcpCloud())
    if cloud == "aws":
        from outlast.clouds.aws.cloud import AwsCloud

        return cast(InteractiveCloud, AwsCloud())
    raise UsageError(f"clusters cannot be had on `{cloud}`", hint="use `local`, `gcp` or `aws`")


class ClusterMachines:
    """The machines of one cluster."""

    def __init__(self, clusters: Clusters, cluster: Cluster, cloud: InteractiveCloud) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.cloud = cloud

    def machines(self) -> Sequence[Machine]:
        """In every status; the head is among them."""
        return self.cloud.machines({LABEL_ID: self.cluster.id})

    def launch(
        self, kind_name: str, tags: dict[str, str], *, report: Callable[[str], None] = lambda _: None
    ) -> Machine:
        """A worker: its records first, then the launch, zone by zone. Raises CloudError, and leaves nothing."""
        kind = self.cluster.kind(kind_name)
        name = f"{self.cluster.name[:30].rstrip('-')}-w-{secrets.token_hex(4)}"
        boot = self.cluster.worker_boot
        own = {**kind.metadata, **boot.metadata, "outlast-kind": kind.name, "outlast-machine": name}
        request = MachineRequest(
            name=name,
            needs=kind.needs(),
            boot=msgspec.structs.replace(boot, image=kind.image, disk_gb=kind.disk_gb, metadata=own),
            labels={LABEL_NAME: self.cluster.name, LABEL_ID: self.cluster.id},
            purpose=self.cluster.purpose,
        )
        self.clusters.put(self.cluster.name, "nodes", name, NodeRecord(machine=name, kind=kind.name, tags=tags))
        try:
            machine, machine_record = create_machine(self.cloud, self.clusters.machine_records, request, report=report)
        except OutlastError:
            self.clusters.drop(self.cluster.name, "nodes", name)
            raise
        self.lease(machine_record)
        return machine

    def lease(self, machine_record: MachineRecord) -> None:
        """Its machine is somebody's for so long; the head says so again and again while it lives."""
        machine_records = self.clusters.machine_records
        machine_records.write(
            msgspec.structs.replace(machine_record, phase="ready", until=machine_records.now() + LEASE_S)
        )

    def renew(self) -> None:
        for machine in self.machines():
            machine_record = self.clusters.machine_records.find(machine.name)
            if (
                machine_record is not None
                and machine_record.phase == "ready"
                and machine_record.id == machine.labels.get(LABEL_MACHINE)
            ):
                self.lease(machine_record)

    def delete(self, name: str, *, why: str) -> None:
        """The machine with its disk, in whatever status; what it has cost is remembered, and the rest forgotten."""
        try:
            self.remember(self.cloud.machine(name), why)
            self.cloud.delete(name)
        except NotFound:
            pass
        self.forget(name)

    def remember(self, machine: Machine, why: str) -> None:
        machine_record = self.clusters.machine_records.find(machine.name)
        past = Past(machine=machine.name, cost_usd=cost_usd(machine, machine_record), ran_s=machine.ran_s, why=why)
        self.clusters.put(self.cluster.name, "past", machine.name, past)
        if machine_record is not None and machine_record.id == machine.labels.get(LABEL_MACHINE):
            LedgerStore(self.clusters.workspace).close_machine(machine_record, machine)

    def forget(self, name: str) -> None:
        for part in ("nodes", "state"):
            self.clusters.drop(self.cluster.name, part, name)
        self.clusters.machine_records.remove(name)
