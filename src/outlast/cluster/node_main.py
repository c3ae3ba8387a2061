"""The program of a cluster's machine: fetches code and files, runs the set-up once, starts Ray, and monitors it.

    python -m outlast.cluster.node_main

The instance metadata names the cluster; the workspace has its record. When Ray has ended, the program deletes its
machine, unless a new head takes over.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from outlast.agent import mounts
from outlast.agent.boot import store_access_of, this_machine
from outlast.agent.container import outermost
from outlast.agent.environment import machine_installer, store_environment
from outlast.agent.instance import Instance, attribute_with_retries
from outlast.cluster import setup
from outlast.cluster.container import NodeContainer
from outlast.cluster.machines import ClusterMachines, cloud_of_head
from outlast.cluster.paths import NodePaths
from outlast.cluster.provider_server import ProviderServer
from outlast.cluster.ray_monitor import HeadMonitor, WorkerMonitor
from outlast.cluster.raystart import environment
from outlast.cluster.record import Cluster, Clusters, NodeState
from outlast.errors import OutlastError
from outlast.records.mounts import ATTRIBUTE, decode
from outlast.runs.data import local_path
from outlast.spec.cluster import HEAD
from outlast.store.bucket import open_bucket
from outlast.workspace import Workspace

# A node whose set-up failed stays this long, for debugging.
_LINGER_S = 600.0


class NodeMain:
    """The life of one machine of a cluster."""

    def __init__(self, clusters: Clusters, cluster: Cluster, instance: Instance, paths: NodePaths) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.instance = instance
        self.paths = paths

    def run(self) -> None:
        """Set the node up and return when Ray or the cluster has ended. Raises OutlastError if the set-up fails."""
        self.report_state("fetching")
        secrets = self.instance.secrets(self.cluster.secrets)
        self.paths.write_token(secrets["RAY_TOKEN"])
        setup.fetch_files(self.clusters.bucket, self.cluster, self.paths, secrets)
        volumes = decode(self.instance.attribute(ATTRIBUTE))
        mounts.mount_all(
            volumes,
            code=self.paths.code,
            home=self.paths.home,
            owner=self.cluster.name,
            since=self.cluster.asked_at,
        )
        variables = self._variables()
        first, *phases = self.cluster.spec.phases.of(self.paths.role)
        setup.run_phases([first], self.paths, variables, report_state=self.report_state)
        self._install_environment(variables)
        self._enter_container([os.path.join(self.paths.code, mount.path) for mount in volumes])
        spec = self.cluster.kind(self.paths.kind).container
        own = {**self.cluster.spec.env, **(spec.env if spec else {})}
        self.paths.write_environment(variables, own)
        with suppress(OutlastError):
            self.paths.find_ray()
            variables["PATH"] = os.pathsep.join([os.path.dirname(self.paths.ray), variables["PATH"]])
        setup.run_phases(phases, self.paths, variables, report_state=self.report_state, marks="done-inside")
        # The set-up may have installed Ray, or another version.
        self.paths.find_ray()
        self.paths.write_environment(variables, own)
        self.paths.write_head_programs(workspace=self.clusters.workspace.url, cluster=self.cluster.name)
        if self.paths.role == HEAD:
            machines = ClusterMachines(
                self.clusters, self.cluster, cloud_of_head(self.cluster.cloud, self.paths.broker)
            )
            ProviderServer(machines, report).serve(self.paths.socket)
        monitor = HeadMonitor if self.paths.role == HEAD else WorkerMonitor
        monitor(self.clusters, self.cluster, self.instance, self.paths, variables, report_state=self.report_state).run()

    def _variables(self) -> dict[str, str]:
        kind = self.cluster.kind(self.paths.kind)
        own = environment(self.cluster, self.paths.machine, kind.name, self.paths.token)
        # Ray's Python may differ from ours; this folder has the modules of ours that it imports.
        return {**os.environ, **own, "PYTHONPATH": self.paths.write_library()}

    def _install_environment(self, variables: dict[str, str]) -> None:
        """Install the packages of Ray and all jobs, and put them first on the PATH. Raises OutlastError."""
        record = self.cluster.environment
        if record is None:
            return
        path = self.instance.attribute("outlast-environment")  # built on the computer that this machine shares
        if not path:
            self.report_state("installing the environment", record.describe())
            uv_url = self.instance.attribute("outlast-uv")
            installer = machine_installer(
                self.clusters.bucket, record, home=self.paths.home, uv_url=uv_url, report=report, progress=report
            )
            path = installer.install()
            threading.Thread(target=store_environment, args=(installer, report), daemon=True).start()
        self.paths.environment = path
        variables["PATH"] = os.pathsep.join([os.path.join(path, "bin"), variables["PATH"]])
        variables["VIRTUAL_ENV"] = path

    def _enter_container(self, volumes: list[str]) -> None:
        """Start the container, if the cluster file names one. From then on, Ray's commands run in it."""
        spec = self.cluster.kind(self.paths.kind).container
        if spec is None:
            return
        self.report_state("starting the container", spec.image)
        needed = [self.paths.folder, self.paths.code, *map(self.paths.at, self.cluster.mounts), *volumes]
        needed.append(local_path(self.clusters.workspace.url) or "")
        mounts = outermost([path for path in needed if path and os.path.exists(path)])
        self.paths.inner, new = NodeContainer(spec, self.paths, report).start(mounts)
        if new:
            # A new container lacks the set-up of the previous one.
            shutil.rmtree(f"{self.paths.folder}/done-inside", ignore_errors=True)

    def report_state(self, phase: str, why: str = "", down_in_s: float = -1.0) -> None:
        report(phase + (f": {why}" if why else ""))
        state = NodeState(machine=self.paths.machine, phase=phase, why=why, at=time.time(), down_in_s=down_in_s)
        self.clusters.put(self.cluster.name, "state", self.paths.machine, state)


def report(line: str) -> None:
    print(f"outlast: {line}", flush=True)


def main() -> int:
    instance = this_machine()
    name = attribute_with_retries(instance, "outlast-cluster")
    if host := instance.attribute("outlast-storage-host"):
        os.environ.setdefault("STORAGE_EMULATOR_HOST", host)
    clusters = Clusters(Workspace(open_bucket(instance.attribute("outlast-workspace"), store_access_of(instance))))
    paths = NodePaths.of(instance)
    try:
        cluster = _read_cluster(lambda: clusters.find(name))
        if cluster is None:
            report(f"no cluster `{name}` in the workspace")
        else:
            node = NodeMain(clusters, cluster, instance, paths)
            try:
                node.run()
            except (OutlastError, OSError) as problem:
                why = problem.message if isinstance(problem, OutlastError) else str(problem)
                node.report_state("failed", why)
                _wait_before_deletion(clusters, cluster, paths)
    except OutlastError as problem:
        report(f"error: {problem.message}")
    leave(clusters, name, instance, paths)
    return 0


def _read_cluster(find: Callable[[], Cluster | None], *, timeout_s: float = 30.0) -> Cluster | None:
    """Read the cluster's record, and retry while the store is unreachable."""
    ends_at = time.monotonic() + timeout_s
    while True:
        try:
            return find()
        except OutlastError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(1.0)


def _wait_before_deletion(clusters: Clusters, cluster: Cluster, paths: NodePaths) -> None:
    ends_at = time.monotonic() + _LINGER_S
    while time.monotonic() < ends_at:
        time.sleep(5.0)
        found = clusters.find(cluster.name)
        if found is None or found.id != cluster.id or (paths.role == HEAD and found.head != paths.machine):
            return


def leave(clusters: Clusters, name: str, instance: Instance, paths: NodePaths) -> None:
    """Remove the record, then delete the machine: if that fails, the reaper finds a machine without a record."""
    try:
        clusters.machine_records.remove(paths.machine)
        for part in ("nodes", "state"):
            clusters.drop(name, part, paths.machine)
        report(f"deleting {shlex.quote(paths.machine)}")
        instance.delete_self()
    except (OutlastError, OSError) as problem:
        report(f"cannot delete this machine: {problem}")


if __name__ == "__main__":
    sys.exit(main())
