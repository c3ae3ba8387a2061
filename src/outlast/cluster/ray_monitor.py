"""Monitors Ray on a cluster's machine, and decides when the machine is deleted.

A worker drains its Ray node when a preemption notice arrives, so that Ray replaces it before the deadline. A worker
without a head joins the next head, or deletes itself after `orphan_s`. The head renews the leases of all machines, and
takes the cluster down after `idle_down_s` without use.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from outlast.agent.instance import Instance, Notice
from outlast.cluster import raystart
from outlast.cluster.machines import ClusterMachines, cloud_of_head
from outlast.cluster.paths import NodePaths
from outlast.cluster.rayclient import Api, RequestRefused
from outlast.cluster.record import DASHBOARD_PORT, PORT, Cluster, Clusters, HeadAddress, JobEnd, NodeState
from outlast.cluster.setup import ReportState
from outlast.errors import OutlastError

_POLL_S = 1.0
_RENEW_S = 120.0
_CHECK_S = 10.0
# Ray reports preemption to actors whose machine dies after the drain deadline, so set it a little early.
_EARLY_S = 3.0
_START_S = 120.0
_API_S = 10.0
_TRIES = 3
# `ray start` exits after 30 s if its node has not joined the cluster.
_JOIN_S = 60.0
# Warn at least this long before an idle cluster goes down.
_WARN_S = 60.0


class _RayMonitor:
    """Starts and stops Ray on this machine."""

    def __init__(
        self,
        clusters: Clusters,
        cluster: Cluster,
        instance: Instance,
        paths: NodePaths,
        variables: Mapping[str, str],
        *,
        report_state: ReportState,
    ) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.instance = instance
        self.paths = paths
        self.variables = dict(variables)
        self.report_state = report_state
        self.ray: subprocess.Popen[bytes] | None = None

    def start_ray(self, head: str, config: str = "") -> subprocess.Popen[bytes]:
        kind = self.cluster.kind(self.paths.kind)
        argv = raystart.start_argv(
            self.paths.ray,
            self.cluster,
            kind,
            self.cluster.resources.get(kind.name, {}),
            address=self.paths.address,
            head=head,
            config=config,
        )
        self.report_state("starting Ray")
        # A separate session, so that its whole process group can be killed.
        self.ray = subprocess.Popen(
            argv, env=self.variables, cwd=self.paths.home, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self.ray

    def end_ray(self) -> None:
        """Stop all Ray processes of the machine. `ray stop` finds those in other sessions."""
        if self.ray is None:
            return
        subprocess.run(
            [self.paths.ray, "stop", "--force"],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )
        if self.ray.poll() is None:
            os.killpg(self.ray.pid, signal.SIGKILL)
        self.ray.wait()

    def reread(self) -> Cluster | None:
        """Return the cluster's current record; None if it is gone; the last known one if it cannot be read."""
        try:
            found = self.clusters.find(self.cluster.name)
        except OutlastError:
            return self.cluster
        return found if found is not None and found.id == self.cluster.id else None


class WorkerMonitor(_RayMonitor):
    """Keeps a worker in the cluster of the current head."""

    def run(self) -> None:
        """Run until the cluster is gone, or no head has appeared for `orphan_s`."""
        threading.Thread(target=self._wait_for_notice, daemon=True).start()
        lost_at = time.monotonic()
        joined, tries = "", _TRIES
        while time.monotonic() - lost_at < self.cluster.spec.orphan_s:
            head = self._head()
            if head is not None and head.machine != joined and answers(head.address, PORT):
                self.end_ray()
                joined = head.machine
                # A new head has a new token.
                self.paths.write_token(self.instance.secrets(self.cluster.secrets)["RAY_TOKEN"])
                process = self.start_ray(head.address)
                if not self._watch(process, head) and (tries := tries - 1):
                    joined = ""  # the node never joined, as on a busy computer: retry
                lost_at = time.monotonic()
            if self.reread() is None:
                return
            time.sleep(_POLL_S)
        self.report_state("leaving", f"no head for {self.cluster.spec.orphan_s:g} s")

    def _head(self) -> HeadAddress | None:
        try:
            return self.clusters.head(self.cluster.name)
        except OutlastError:
            return None

    def _watch(self, process: subprocess.Popen[bytes], head: HeadAddress) -> bool:
        """Wait until Ray ends or the head changes. Return False if Ray ended during its start."""
        began = time.monotonic()
        ready, checked_at = False, 0.0
        while process.poll() is None:
            if not ready and raylet_runs():
                ready = True
                self.report_state("ready")
            if time.monotonic() - checked_at > _CHECK_S:
                checked_at = time.monotonic()
                now = self._head()
                if now is not None and now.machine != head.machine:
                    return True
            time.sleep(_POLL_S)
        self.report_state("without Ray", f"Ray exited with {process.returncode}")
        return time.monotonic() - began > _JOIN_S

    def _wait_for_notice(self) -> None:
        while True:
            try:
                notice = self.instance.wait_for_notice(60.0)
            except OSError:
                time.sleep(1.0)
                continue
            if notice is not None and not notice.early:
                self._drain(notice)
                return

    def _drain(self, notice: Notice) -> None:
        """Drain the node: running work continues, new work goes elsewhere, and Ray launches a replacement."""
        head = self._head()
        if head is None:
            return
        left_s = max(1, int(notice.grace_s - _EARLY_S))
        argv = [self.paths.ray, "drain-node", f"--address={head.address}:{PORT}"]
        argv += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", notice.why]
        argv += ["--deadline-remaining-seconds", str(left_s)]
        answer = subprocess.run(
            argv, env=self.variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        errors = (answer.stderr or answer.stdout).strip().splitlines()
        self.report_state("draining", notice.why if answer.returncode == 0 else f"failed: {' '.join(errors[-1:])}")


class HeadMonitor(_RayMonitor):
    """Keeps the head running, renews leases, and takes an idle cluster down."""

    def run(self) -> None:
        """Run until the cluster is deleted or has another head. Raises OutlastError if Ray ends."""
        self.machines = ClusterMachines(
            self.clusters, self.cluster, cloud_of_head(self.cluster.cloud, self.paths.broker)
        )
        self.idle_since: float | None = None
        self.ended: set[str] = set()
        config = f"{self.paths.folder}/autoscaler.yaml"
        wanted = raystart.autoscaling_config(self.cluster, socket=self.paths.socket)
        with open(config, "wb") as file:
            file.write(msgspec.json.encode(wanted))  # JSON is valid YAML
        process = self._start_head(config)
        self.clusters.write_head(self.cluster.name, HeadAddress(machine=self.paths.machine, address=self.paths.address))
        self.report_state("ready")
        self._watch(process)

    def _start_head(self, config: str) -> subprocess.Popen[bytes]:
        """Start Ray and wait for its head node. Retry, because `ray start` times out on a busy computer."""
        why = ""
        for _ in range(_TRIES):
            process = self.start_ray("", config)
            ends_at = time.monotonic() + _START_S
            while process.poll() is None and time.monotonic() < ends_at:
                if answers("127.0.0.1", DASHBOARD_PORT) and self._has_node():
                    return process
                time.sleep(0.2)
            why = f"`ray start` exited with {process.poll()}; see the serial console for its output"
            self.end_ray()
        raise OutlastError(why)

    def _has_node(self) -> bool:
        try:
            return bool(self._api().get("/api/v0/nodes?limit=1")["data"]["result"]["total"])
        except (OSError, RequestRefused, KeyError, TypeError):
            return False

    def _api(self) -> Api:
        with open(self.paths.token, encoding="utf-8") as file:
            return Api(file.read(), timeout_s=_API_S)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        checked_at = renewed_at = 0.0
        while process.poll() is None:
            now = time.monotonic()
            found = self.reread()
            if found is None or found.phase == "deleting" or found.head != self.paths.machine:
                self.report_state("leaving", "the cluster is being deleted or has another head")
                return
            self.cluster = found
            if now - checked_at > _CHECK_S:
                checked_at = now
                if self._idle_too_long():
                    self._take_down()
                    return
            if now - renewed_at > _RENEW_S:
                renewed_at = now
                try:
                    self.machines.renew()
                except OutlastError as problem:
                    self.report_state("ready", f"could not renew leases: {problem.message}")
            time.sleep(_POLL_S)
        raise OutlastError(f"Ray exited with {process.returncode}; its jobs are lost")

    def _idle_too_long(self) -> bool:
        """Return whether the cluster has been idle for `idle_down_s`. Warn before."""
        limit_s = self.cluster.spec.idle_down_s
        if self._busy() or not limit_s:
            self.idle_since = None
            self.write_state("ready")
            return False
        self.idle_since = self.idle_since or time.monotonic()
        left_s = limit_s - (time.monotonic() - self.idle_since)
        self.write_state("ready", down_in_s=max(0.0, left_s))
        if left_s < _WARN_S:
            print(f"outlast: the cluster is idle and goes down in {max(0.0, left_s):.0f} s", flush=True)
        return left_s <= 0

    def write_state(self, phase: str, down_in_s: float = -1.0) -> None:
        state = NodeState(machine=self.paths.machine, phase=phase, at=time.time(), down_in_s=down_in_s)
        try:
            self.clusters.put(self.cluster.name, "state", self.paths.machine, state)
        except OutlastError:
            pass  # a hint

    def _busy(self) -> bool:
        """Return whether a job runs or an actor lives. If Ray does not answer, assume so."""
        try:
            api = self._api()
            jobs = api.jobs()
            self._record_ended(jobs)
            if any(job["status"] in ("PENDING", "RUNNING") for job in jobs):
                return True
            alive = "filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
            actors = api.get(f"/api/v0/actors?limit=1&{alive}")
            return bool(actors["data"]["result"]["total"])
        except (OSError, RequestRefused, KeyError, TypeError):
            return True

    def _record_ended(self, jobs: list[dict[str, Any]]) -> None:
        """Record each ended job once, so that it does not count as lost if this head is."""
        for job in jobs:
            job_id = job.get("submission_id")
            if not job_id or job_id in self.ended or job["status"] in ("PENDING", "RUNNING"):
                continue
            ended = JobEnd(
                id=job_id,
                status=job["status"],
                message=str(job.get("message") or "")[:2000],
                started_at=(job.get("start_time") or 0) / 1000.0,
                ended_at=(job.get("end_time") or 0) / 1000.0,
                exit_code=job.get("driver_exit_code"),
            )
            try:
                self.clusters.add(self.cluster.name, "ended", job_id, ended)
            except OutlastError:
                continue
            self.ended.add(job_id)

    def _take_down(self) -> None:
        """Delete all other machines, then the record. The caller deletes this machine last."""
        self.report_state("leaving", f"the cluster was idle for {self.cluster.spec.idle_down_s:g} s")
        self.clusters.write(msgspec.structs.replace(self.cluster, phase="deleting"))
        self.end_ray()
        for machine in self.machines.all():
            if machine.name != self.paths.machine:
                self.machines.delete(machine.name, why="the cluster was idle")
        self.machines.cloud.drop_secrets(self.cluster.secrets)
        self.clusters.forget(self.cluster)


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2.0):
            return True
    except OSError:
        return False


def raylet_runs() -> bool:
    """Return whether a raylet process runs on this machine."""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    if file.read().strip() == "raylet":
                        return True
            except OSError:
                continue
    return False
