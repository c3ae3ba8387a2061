"""Ray's node provider: what its autoscaler asks of us, in its own process on the head. Imported by Ray alone.

Called from many threads. One exception for one machine that vanished would lose the autoscaler a whole round, so such
questions are answered from what was last seen. Machines that were preempted are stopped and bill for their disks; Ray
is told that they are gone, and they are deleted.
"""

from __future__ import annotations

import logging
import sys
import threading
from typing import Any

from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import (
    NODE_KIND_HEAD,
    NODE_KIND_WORKER,
    STATUS_UP_TO_DATE,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

from outlast.clouds.cloud import Machine
from outlast.cluster.fleet import Fleet, cloud_of_head
from outlast.cluster.record import Clusters, Node
from outlast.errors import NoCapacity, OutlastError, OverQuota
from outlast.workspace.workspace import open_workspace

log = logging.getLogger(__name__)
_ALIVE = ("pending", "running")
_GONE = ("stopped", "broken")


class OutlastNodes(NodeProvider):
    """The machines of one cluster, for Ray."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        own = provider_config["outlast"]
        clusters = Clusters(open_workspace(own["workspace"]))
        cluster = clusters.find(own["cluster"])
        if cluster is None:
            raise RuntimeError(f"the workspace has no cluster `{own['cluster']}`")
        self.fleet = Fleet(clusters, cluster, cloud_of_head(own["cloud"], own["broker"]))
        self._lock = threading.RLock()
        self._seen: dict[str, Machine] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._deleting: set[str] = set()

    # What there is

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        machines = {machine.name: machine for machine in self.fleet.machines()}
        with self._lock:
            self._seen = machines
        self._bury([machine for machine in machines.values() if machine.status in _GONE])
        alive = [name for name, machine in machines.items() if machine.status in _ALIVE]
        return [name for name in alive if tag_filters.items() <= self.node_tags(name).items()]

    def is_running(self, node_id: str) -> bool:
        with self._lock:
            machine = self._seen.get(node_id)
        return machine is not None and machine.status == "running"

    def is_terminated(self, node_id: str) -> bool:
        with self._lock:
            machine = self._seen.get(node_id)
        return machine is None or machine.status not in _ALIVE

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self._lock:
            if node_id in self._tags:
                return dict(self._tags[node_id])
        cluster = self.fleet.cluster
        if node_id == cluster.head:
            kind, found = NODE_KIND_HEAD, Node(machine=node_id, kind=cluster.spec.head.name)
        else:
            kind = NODE_KIND_WORKER
            known = self.fleet.clusters.get(cluster.name, "nodes", node_id, Node)
            found = known or Node(machine=node_id, kind=cluster.spec.workers[0].name)
        own = {TAG_RAY_NODE_KIND: kind, TAG_RAY_USER_NODE_TYPE: found.kind, TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE}
        with self._lock:
            return dict(self._tags.setdefault(node_id, {**own, **found.tags}))

    def internal_ip(self, node_id: str) -> str:
        with self._lock:
            machine = self._seen.get(node_id)
        return machine.address if machine is not None else ""

    def external_ip(self, node_id: str) -> str:
        return self.internal_ip(node_id)

    # What is wanted

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        merged = {**self.node_tags(node_id), **tags}
        with self._lock:
            self._tags[node_id] = merged
        if node_id != self.fleet.cluster.head:
            node = Node(machine=node_id, kind=merged.get(TAG_RAY_USER_NODE_TYPE, ""), tags=merged)
            self.fleet.clusters.put(self.fleet.cluster.name, "nodes", node_id, node)

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for _ in range(count):
            try:
                machine = self.fleet.launch(node_config["kind"], dict(tags), say=log.info)
            except OutlastError as problem:
                kind = "no capacity" if isinstance(problem, NoCapacity | OverQuota) else type(problem).__name__
                log.warning("a worker cannot be launched: %s", problem.message)
                raise NodeLaunchException(kind[:20], problem.message, sys.exc_info()) from problem
            with self._lock:
                self._seen[machine.name] = machine
            made[machine.name] = {}
        return made

    def terminate_node(self, node_id: str) -> dict[str, Any] | None:
        if node_id == self.fleet.cluster.head:
            return None  # it goes last, and by other hands
        self.fleet.delete(node_id, why="not needed any more")
        with self._lock:
            self._seen.pop(node_id, None)
        return None

    def _bury(self, gone: list[Machine]) -> None:
        """Delete what was stopped, in the background: the autoscaler must not wait for a slow cloud."""
        for machine in gone:
            with self._lock:
                if machine.name in self._deleting or machine.name == self.fleet.cluster.head:
                    continue
                self._deleting.add(machine.name)
            threading.Thread(target=self._delete, args=(machine,), daemon=True).start()

    def _delete(self, machine: Machine) -> None:
        try:
            log.info("%s is %s (%s): deleting it", machine.name, machine.status, machine.why)
            self.fleet.delete(machine.name, why=machine.why or machine.status)
        except OutlastError as problem:
            log.warning("%s could not be deleted, and is tried again: %s", machine.name, problem.message)
        finally:
            with self._lock:
                self._deleting.discard(machine.name)

    # What Ray's launcher would ask, and its autoscaler does not

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config

    def prepare_for_head_node(self, cluster_config: dict[str, Any]) -> dict[str, Any]:
        return cluster_config
