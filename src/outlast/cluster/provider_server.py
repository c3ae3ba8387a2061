"""Serves the calls of Ray's autoscaler about a cluster's machines, in the head's program.

Ray's Python may be another one, in a container, where `provider.py` forwards the calls. An exception about one
vanished machine would abort the autoscaler's whole round, so such calls are answered from the last listing. A preempted
machine is stopped and its disk still costs money: Ray sees it as gone, and it is deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from outlast.clouds.cloud import Machine
from outlast.cluster.machines import ClusterMachines
from outlast.cluster.record import UNNEEDED, NodeRecord
from outlast.cluster.socket_rpc import SocketServer
from outlast.errors import BadRequest, NoCapacity, OutlastError, OverQuota

_ALIVE = ("pending", "running")
_GONE = ("stopped", "broken")
# Names of Ray's tags.
_KIND, _TYPE, _STATUS = "ray-node-type", "ray-user-node-type", "ray-node-status"


class ProviderServer:
    """The machines of one cluster for Ray's autoscaler. Thread-safe."""

    def __init__(self, machines: ClusterMachines, report: Callable[[str], None]) -> None:
        self.machines = machines
        self.report = report
        self._lock = threading.RLock()
        self._seen: dict[str, Machine] = {}
        self._tags: dict[str, dict[str, str]] = {}
        self._deleting: set[str] = set()

    def serve(self, path: str) -> None:
        """Serve in a thread until this program ends."""
        server = SocketServer(path, self.answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.5}, daemon=True).start()

    def answer(self, call: str, args: dict[str, Any]) -> Any:
        match call:
            case "nodes":
                return self.alive(args["tags"])
            case "is_running":
                return self.status(args["name"]) == "running"
            case "is_terminated":
                return self.status(args["name"]) not in _ALIVE
            case "tags":
                return self.tags(args["name"])
            case "set_tags":
                return self.set_tags(args["name"], args["tags"])
            case "address":
                return self.address(args["name"])
            case "create":
                return self.create(args["kind"], args["tags"])
            case "delete":
                return self.delete(args["name"])
        raise BadRequest(f"unknown call `{call}` to the head")

    def alive(self, tags: dict[str, str]) -> list[str]:
        machines = {machine.name: machine for machine in self.machines.all()}
        with self._lock:
            self._seen = machines
        self._delete_gone([machine for machine in machines.values() if machine.status in _GONE])
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
        cluster = self.machines.cluster
        if name == cluster.head:
            role, found = "head", NodeRecord(machine=name, kind=cluster.spec.head.name)
        else:
            role = "worker"
            known = self.machines.clusters.get(cluster.name, "nodes", name, NodeRecord)
            found = known or NodeRecord(machine=name, kind=cluster.spec.workers[0].name)
        own = {_KIND: role, _TYPE: found.kind, _STATUS: "up-to-date"}
        with self._lock:
            return dict(self._tags.setdefault(name, {**own, **found.tags}))

    def set_tags(self, name: str, tags: dict[str, str]) -> None:
        merged = {**self.tags(name), **tags}
        with self._lock:
            self._tags[name] = merged
        if name != self.machines.cluster.head:
            node = NodeRecord(machine=name, kind=merged.get(_TYPE, ""), tags=merged)
            self.machines.clusters.put(self.machines.cluster.name, "nodes", name, node)

    def create(self, kind: str, tags: dict[str, str]) -> dict[str, str]:
        """Launch a worker and return its name, or the failure, which Ray records before it retries."""
        try:
            machine = self.machines.launch(kind, tags, report=self.report)
        except OutlastError as problem:
            self.report(f"could not launch a worker: {problem.message}")
            what = "no capacity" if isinstance(problem, NoCapacity | OverQuota) else type(problem).__name__
            return {"failed": what, "why": problem.message}
        with self._lock:
            self._seen[machine.name] = machine
        return {"name": machine.name}

    def delete(self, name: str) -> None:
        if name == self.machines.cluster.head:
            return  # `cluster down` deletes the head
        self.machines.delete(name, why=UNNEEDED)
        with self._lock:
            self._seen.pop(name, None)

    def _delete_gone(self, gone: list[Machine]) -> None:
        """Delete stopped machines in the background: the autoscaler must not wait for a slow cloud."""
        for machine in gone:
            with self._lock:
                if machine.name in self._deleting or machine.name == self.machines.cluster.head:
                    continue
                self._deleting.add(machine.name)
            threading.Thread(target=self._delete, args=(machine,), daemon=True).start()

    def _delete(self, machine: Machine) -> None:
        try:
            self.report(f"{machine.name} is {machine.status} ({machine.why}): deleting it")
            self.machines.delete(machine.name, why=machine.why or machine.status)
        except OutlastError as problem:
            self.report(f"could not delete {machine.name}, will retry: {problem.message}")
        finally:
            with self._lock:
                self._deleting.discard(machine.name)
