"""The machines of a cluster as Ray's autoscaler asks for them, answered by the head's own program.

Ray's Python may be another one than ours, in a container: there `provider.py` only carries the questions here. One
exception for one machine that vanished would lose the autoscaler a whole round, so such questions are answered from
what was last seen. Machines that were preempted are stopped and bill for their disks; Ray is told that they are gone,
and they are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from outlast.clouds.cloud import Machine
from outlast.cluster.fleet import ClusterMachines
from outlast.cluster.record import UNNEEDED, NodeRecord
from outlast.cluster.socket_rpc import SocketServer
from outlast.errors import BadRequest, NoCapacity, OutlastError, OverQuota

_ALIVE = ("pending", "running")
_GONE = ("stopped", "broken")
# Ray's own words.
_KIND, _TYPE, _STATUS = "ray-node-type", "ray-user-node-type", "ray-node-status"


class ProviderServer:
    """Asked by many threads at once."""

    def __init__(self, fleet: ClusterMachines, report: Callable[[str], None]) -> None:
        self.fleet = fleet
        self.report = report
        self._lock = threading.RLock()
        self._seen: dict[str, Machine] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._deleting: set[str] = set()

    def serve(self, path: str) -> None:
        """From now on, until this program ends."""
        server = SocketServer(path, self.answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()

    def answer(self, call: str, given: dict[str, Any]) -> Any:
        match call:
            case "nodes":
                return self.alive(given["tags"])
            case "is_running":
                return self.status(given["name"]) == "running"
            case "is_terminated":
                return self.status(given["name"]) not in _ALIVE
            case "tags":
                return self.tags(given["name"])
            case "set_tags":
                return self.set_tags(given["name"], given["tags"])
            case "address":
                return self.address(given["name"])
            case "create":
                return self.create(given["kind"], given["tags"])
            case "delete":
                return self.delete(given["name"])
        raise BadRequest(f"the head has no `{call}`")

    def alive(self, tags: dict[str, str]) -> list[str]:
        machines = {machine.name: machine for machine in self.fleet.machines()}
        with self._lock:
            self._seen = machines
        self._bury([machine for machine in machines.values() if machine.status in _GONE])
        alive = [name for name, machine in machines.items() if machine.status in _ALIVE]
        return [name for name in alive if tags.items() <= self.tags(name).items()]

    def status(self, name: str) -> str:
        with self._lock:
            machine = self._seen.get(name)
        return machine.status if machine is not None else "gone"

    def address(self, name: str) -> str:
        with self._lock:
            machine = self._seen.get(name)
        return machine.address if machine is not None else ""

    def tags(self, name: str) -> dict[str, str]:
        with self._lock:
            if name in self._tags:
                return dict(self._tags[name])
        cluster = self.fleet.cluster
        if name == cluster.head:
            role, found = "head", NodeRecord(machine=name, kind=cluster.spec.head.name)
        else:
            role = "worker"
            known = self.fleet.clusters.get(cluster.name, "nodes", name, NodeRecord)
            found = known or NodeRecord(machine=name, kind=cluster.spec.workers[0].name)
        own = {_KIND: role, _TYPE: found.kind, _STATUS: "up-to-date"}
        with self._lock:
            return dict(self._tags.setdefault(name, {**own, **found.tags}))

    def set_tags(self, name: str, tags: dict[str, str]) -> None:
        merged = {**self.tags(name), **tags}
        with self._lock:
            self._tags[name] = merged
        if name != self.fleet.cluster.head:
            node = NodeRecord(machine=name, kind=merged.get(_TYPE, ""), tags=merged)
            self.fleet.clusters.put(self.fleet.cluster.name, "nodes", name, node)

    def create(self, kind: str, tags: dict[str, str]) -> dict[str, str]:
        """The machine, or why there is none: Ray has words of its own for that, and tries again later."""
        try:
            machine = self.fleet.launch(kind, tags, report=self.report)
        except OutlastError as problem:
            self.report(f"a worker cannot be launched: {problem.message}")
            what = "no capacity" if isinstance(problem, NoCapacity | OverQuota) else type(problem).__name__
            return {"failed": what, "why": problem.message}
        with self._lock:
            self._seen[machine.name] = machine
        return {"name": machine.name}

    def delete(self, name: str) -> None:
        if name == self.fleet.cluster.head:
            return  # it goes last, and by other hands
        self.fleet.delete(name, why=UNNEEDED)
        with self._lock:
            self._seen.pop(name, None)

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
            self.report(f"{machine.name} is {machine.status} ({machine.why}): deleting it")
            self.fleet.delete(machine.name, why=machine.why or machine.status)
        except OutlastError as problem:
            self.report(f"{machine.name} could not be deleted, and is tried again: {problem.message}")
        finally:
            with self._lock:
                self._deleting.discard(machine.name)
