"""The program on a machine of a cluster: brings code and files, runs the set-up once, starts Ray, and guards it.

    python -m outlast.cluster.node_main

Who it is, it learns from the instance metadata; what to do, from the workspace. Ray runs below it: a node whose Ray
ended deletes its machine, unless another head takes it over.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from outlast.agent import mounts
from outlast.agent.boot import reach_of, this_machine
from outlast.agent.container import outermost
from outlast.agent.instance import Instance, patiently
from outlast.cluster import setup
from outlast.cluster.container import NodeContainer
from outlast.cluster.fleet import ClusterMachines, cloud_of_head
from outlast.cluster.paths import NodePaths
from outlast.cluster.provider_server import ProviderServer
from outlast.cluster.ray_monitor import HeadGuard, WorkerGuard
from outlast.cluster.raystart import environment
from outlast.cluster.record import Cluster, Clusters, NodeState
from outlast.errors import OutlastError
from outlast.records.mounts import ATTRIBUTE, decode
from outlast.runs.data import local_path
from outlast.spec.cluster import HEAD
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace

# How long a node that could not be set up stays, for whoever wants to see why.
_LINGER_S = 600.0


class NodeMain:
    """One machine of one cluster."""

    def __init__(self, clusters: Clusters, cluster: Cluster, instance: Instance, place: NodePaths) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.instance = instance
        self.place = place

    def live(self) -> None:
        """Until Ray ends or the cluster does; then the machine is to go. Raises OutlastError when it cannot come up."""
        self.tell("fetching")
        secrets = self.instance.secrets(self.cluster.secrets)
        self.place.write_token(secrets["RAY_TOKEN"])
        setup.bring(self.clusters.bucket, self.cluster, self.place, secrets)
        volumes = decode(self.instance.attribute(ATTRIBUTE))
        mounts.mount_all(
            volumes,
            code=self.place.code,
            home=self.place.home,
            owner=self.cluster.name,
            since=self.cluster.asked_at,
        )
        variables = self._variables()
        first, *phases = self.cluster.spec.phases.of(self.place.role)
        setup.run_phases([first], self.place, variables, tell=self.tell)
        self._enter_container([os.path.join(self.place.code, mount.path) for mount in volumes])
        box = self.cluster.kind(self.place.kind).container
        own = {**self.cluster.spec.env, **(box.env if box else {})}
        self.place.write_environment(variables, own)
        with suppress(OutlastError):
            self.place.find_ray()
            variables["PATH"] = os.pathsep.join([os.path.dirname(self.place.ray), variables["PATH"]])
        setup.run_phases(phases, self.place, variables, tell=self.tell, marks="done-inside")
        # The set-up may have installed it, or another one.
        self.place.find_ray()
        self.place.write_environment(variables, own)
        self.place.write_desk(workspace=self.clusters.workspace.url, cluster=self.cluster.name)
        if self.place.role == HEAD:
            fleet = ClusterMachines(self.clusters, self.cluster, cloud_of_head(self.cluster.cloud, self.place.broker))
            ProviderServer(fleet, report).serve(self.place.socket)
        guard = HeadGuard if self.place.role == HEAD else WorkerGuard
        guard(self.clusters, self.cluster, self.instance, self.place, variables, tell=self.tell).run()

    def _variables(self) -> dict[str, str]:
        kind = self.cluster.kind(self.place.kind)
        own = environment(self.cluster, self.place.machine, kind.name, self.place.token)
        # Ours is the machine's Python; Ray's may be another, and finds there what it needs of us.
        return {**os.environ, **own, "PYTHONPATH": self.place.write_library()}

    def _enter_container(self, volumes: list[str]) -> None:
        """From here on everything of Ray's happens in there, if the file names one."""
        spec = self.cluster.kind(self.place.kind).container
        if spec is None:
            return
        self.tell("starting the container", spec.image)
        there = [self.place.folder, self.place.code, *map(self.place.at, self.cluster.mounts), *volumes]
        there.append(local_path(self.clusters.workspace.url) or "")
        mounts = outermost([path for path in there if path and os.path.exists(path)])
        self.place.inner, new = NodeContainer(spec, self.place, report).start(mounts)
        if new:
            # Whatever was done in the one before is not in this one.
            shutil.rmtree(f"{self.place.folder}/done-inside", ignore_errors=True)

    def tell(self, phase: str, why: str = "", goes_in_s: float = -1.0) -> None:
        report(phase + (f": {why}" if why else ""))
        state = NodeState(machine=self.place.machine, phase=phase, why=why, at=time.time(), goes_in_s=goes_in_s)
        self.clusters.put(self.cluster.name, "state", self.place.machine, state)


def report(line: str) -> None:
    print(f"outlast: {line}", flush=True)


def main() -> int:
    instance = this_machine()
    name = patiently(instance, "outlast-cluster")
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    clusters = Clusters(Workspace(open_bucket(instance.attribute("outlast-workspace"), reach_of(instance))))
    place = NodePaths.of(instance)
    try:
        cluster = _patiently(lambda: clusters.find(name))
        if cluster is None:
            report(f"the workspace has no cluster `{name}`")
        else:
            node = NodeMain(clusters, cluster, instance, place)
            try:
                node.live()
            except (OutlastError, OSError) as problem:
                why = problem.message if isinstance(problem, OutlastError) else str(problem)
                node.tell("failed", why)
                _linger(clusters, cluster, place)
    except OutlastError as problem:
        report(f"error: {problem.message}")
    leave(clusters, name, instance, place)
    return 0


def _patiently(find: Callable[[], Cluster | None], *, timeout_s: float = 30.0) -> Cluster | None:
    """The record is there before us; a store that does not answer at once is asked again."""
    ends_at = time.monotonic() + timeout_s
    while True:
        try:
            return find()
        except OutlastError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(1.0)


def _linger(clusters: Clusters, cluster: Cluster, place: NodePaths) -> None:
    ends_at = time.monotonic() + _LINGER_S
    while time.monotonic() < ends_at:
        time.sleep(5.0)
        found = clusters.find(cluster.name)
        if found is None or found.id != cluster.id or (place.role == HEAD and found.head != place.machine):
            return


def leave(clusters: Clusters, name: str, instance: Instance, place: NodePaths) -> None:
    """The record first: a machine that could not delete itself then is nobody's, and the reaper finds it."""
    try:
        clusters.machine_records.remove(place.machine)
        for part in ("nodes", "state"):
            clusters.drop(name, part, place.machine)
        report(f"deleting {shlex.quote(place.machine)}")
        instance.delete_self()
    except (OutlastError, OSError) as problem:
        report(f"cannot delete this machine: {problem}")


if __name__ == "__main__":
    sys.exit(main())
