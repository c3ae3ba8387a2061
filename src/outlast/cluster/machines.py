"""Launch, list and delete the machines of one cluster, with their records. Used on the head; independent of Ray."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from outlast.billing.ledger_store import LedgerStore
from outlast.clouds.cloud import LABEL_MACHINE, InteractiveCloud, Machine, Requirements
from outlast.clouds.registry import Clouds
from outlast.clouds.traits import is_known, known_clouds, traits_of
from outlast.cluster.broker import BrokeredCloud
from outlast.cluster.record import LABEL_ID, LABEL_NAME, LEASE_S, Cluster, Clusters, NodeRecord, PastMachine
from outlast.errors import NotFound, OutlastError, UsageError
from outlast.machines.create import MachineRequest, create_machine
from outlast.machines.status import cost_usd
from outlast.records.machines import MachineRecord


def cloud_of_head(cloud: str, broker: str) -> InteractiveCloud:
    """Return the cloud as its machines can call it: a local one through the broker. Raises UsageError."""
    if not traits_of(cloud).remote:
        return cast(InteractiveCloud, BrokeredCloud(broker))
    if not is_known(cloud):
        raise UsageError(f"unknown cloud `{cloud}`", hint=f"use one of {', '.join(known_clouds())}")
    return cast(InteractiveCloud, Clouds()[cloud])


class ClusterMachines:
    """The machines of one cluster."""

    def __init__(self, clusters: Clusters, cluster: Cluster, cloud: InteractiveCloud) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.cloud = cloud

    def all(self) -> Sequence[Machine]:
        """Return all machines in any status, including the head."""
        return self.cloud.machines({LABEL_ID: self.cluster.id})

    def launch(
        self, kind_name: str, tags: dict[str, str], *, report: Callable[[str], None] = lambda _: None
    ) -> Machine:
        """Launch a worker, after writing its records. On CloudError, nothing remains."""
        kind = self.cluster.kind(kind_name)
        name = f"{self.cluster.name[:30].rstrip('-')}-w-{secrets.token_hex(4)}"
        boot = self.cluster.worker_boot
        own = {**kind.metadata, **boot.metadata, "outlast-kind": kind.name, "outlast-machine": name}
        request = MachineRequest(
            name=name,
            needs=self._reaching_head(kind.needs()),
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

    def _reaching_head(self, needs: Requirements) -> Requirements:
        """Return the request of a worker, in the region of the head if other regions have another network."""
        if not self.cloud.traits.regional_network or needs.zones or not self.cluster.head:
            return needs
        head = self.cloud.machine(self.cluster.head)
        there = self.cloud.offers(Requirements(type=head.type, zones=(head.zone,), spot=False))
        return msgspec.structs.replace(needs, zones=(there[0].region,)) if there else needs

    def lease(self, machine_record: MachineRecord) -> None:
        """Extend the record's `until`. The head does so periodically; without it, the reaper deletes the machine."""
        machine_records = self.clusters.machine_records
        machine_records.write(
            msgspec.structs.replace(machine_record, phase="ready", until=machine_records.now() + LEASE_S)
        )

    def renew(self) -> None:
        for machine in self.all():
            machine_record = self.clusters.machine_records.find(machine.name)
            if (
                machine_record is not None
                and machine_record.phase == "ready"
                and machine_record.id == machine.labels.get(LABEL_MACHINE)
            ):
                self.lease(machine_record)

    def delete(self, name: str, *, why: str) -> None:
        """Delete a machine in any status, with its disk and records; keep its cost."""
        try:
            self.record_cost(self.cloud.machine(name), why)
            self.cloud.delete(name)
        except NotFound:
            pass
        self.forget(name)

    def record_cost(self, machine: Machine, why: str) -> None:
        machine_record = self.clusters.machine_records.find(machine.name)
        past = PastMachine(
            machine=machine.name, cost_usd=cost_usd(machine, machine_record), ran_s=machine.ran_s, why=why
        )
        self.clusters.put(self.cluster.name, "past", machine.name, past)
        if machine_record is not None and machine_record.id == machine.labels.get(LABEL_MACHINE):
            LedgerStore(self.clusters.workspace).close_machine(machine_record, machine)

    def forget(self, name: str) -> None:
        for part in ("nodes", "state"):
            self.clusters.drop(self.cluster.name, part, name)
        self.clusters.machine_records.remove(name)
