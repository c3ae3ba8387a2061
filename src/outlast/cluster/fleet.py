"""The machines of one cluster as its head sees them: launched, listed, deleted, with their records kept true.

Used by Ray's autoscaler (`provider.py`) and by the head's own guard. Refuses to know Ray.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from outlast.clouds.cloud import LABEL_HAND, Machine, Workshop
from outlast.cluster.broker import BrokeredCloud
from outlast.cluster.record import LABEL_ID, LABEL_NAME, LEASE_S, Cluster, Clusters, Node, Past
from outlast.errors import NotFound, OutlastError, UsageError
from outlast.machines.look import cost_usd
from outlast.machines.make import Wish, make
from outlast.workspace.books import Books
from outlast.workspace.hand import Hand


def cloud_of_head(cloud: str, broker: str) -> Workshop:
    """The cloud, as a machine of it can call it."""
    if cloud == "local":
        return cast(Workshop, BrokeredCloud(broker))
    if cloud == "gcp":
        from outlast.clouds.gcp.cloud import GcpCloud

        return cast(Workshop, GcpCloud())
    if cloud == "aws":
        from outlast.clouds.aws.cloud import AwsCloud

        return cast(Workshop, AwsCloud())
    raise UsageError(f"clusters cannot be had on `{cloud}`", hint="use `local`, `gcp` or `aws`")


class Fleet:
    """The machines of one cluster."""

    def __init__(self, clusters: Clusters, cluster: Cluster, cloud: Workshop) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.cloud = cloud

    def machines(self) -> Sequence[Machine]:
        """In every status; the head is among them."""
        return self.cloud.machines({LABEL_ID: self.cluster.id})

    def launch(self, kind_name: str, tags: dict[str, str], *, say: Callable[[str], None] = lambda _: None) -> Machine:
        """A worker: its records first, then the launch, zone by zone. Raises CloudError, and leaves nothing."""
        kind = self.cluster.kind(kind_name)
        name = f"{self.cluster.name[:30].rstrip('-')}-w-{secrets.token_hex(4)}"
        boot = self.cluster.worker_boot
        own = {**kind.metadata, **boot.metadata, "outlast-kind": kind.name, "outlast-machine": name}
        wish = Wish(
            name=name,
            needs=kind.needs(),
            boot=msgspec.structs.replace(boot, image=kind.image, disk_gb=kind.disk_gb, metadata=own),
            labels={LABEL_NAME: self.cluster.name, LABEL_ID: self.cluster.id},
            purpose=self.cluster.purpose,
        )
        self.clusters.put(self.cluster.name, "nodes", name, Node(machine=name, kind=kind.name, tags=tags))
        try:
            machine, hand = make(self.cloud, self.clusters.hands, wish, say=say)
        except OutlastError:
            self.clusters.drop(self.cluster.name, "nodes", name)
            raise
        self.lease(hand)
        return machine

    def lease(self, hand: Hand) -> None:
        """Its machine is somebody's for so long; the head says so again and again while it lives."""
        hands = self.clusters.hands
        hands.write(msgspec.structs.replace(hand, phase="ready", until=hands.now() + LEASE_S))

    def renew(self) -> None:
        for machine in self.machines():
            hand = self.clusters.hands.find(machine.name)
            if hand is not None and hand.phase == "ready" and hand.id == machine.labels.get(LABEL_HAND):
                self.lease(hand)

    def delete(self, name: str, *, why: str) -> None:
        """The machine with its disk, in whatever status; what it has cost is remembered, and the rest forgotten."""
        try:
            self.remember(self.cloud.machine(name), why)
            self.cloud.delete(name)
        except NotFound:
            pass
        self.forget(name)

    def remember(self, machine: Machine, why: str) -> None:
        hand = self.clusters.hands.find(machine.name)
        past = Past(machine=machine.name, cost_usd=cost_usd(machine, hand), ran_s=machine.ran_s, why=why)
        self.clusters.put(self.cluster.name, "past", machine.name, past)
        if hand is not None and hand.id == machine.labels.get(LABEL_HAND):
            Books(self.clusters.workspace).close_machine(hand, machine)

    def forget(self, name: str) -> None:
        for part in ("nodes", "state"):
            self.clusters.drop(self.cluster.name, part, name)
        self.clusters.hands.remove(name)
