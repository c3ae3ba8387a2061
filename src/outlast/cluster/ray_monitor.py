"""What watches over Ray on a machine: the notice, the head, the idle hour. Decides when a machine of a cluster goes.

Worker: a notice drains the node with the deadline, so that Ray replaces it before it dies. One whose head is gone joins
the next one, if there is one; else it deletes itself after a while. Head: renews the leases of all machines, and takes
the cluster down when nobody has used it for long.
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
from outlast.cluster.fleet import ClusterMachines, cloud_of_head
from outlast.cluster.paths import NodePaths
from outlast.cluster.rayclient import Api, RequestRefused
from outlast.cluster.record import DASHBOARD_PORT, PORT, Cluster, Clusters, Ended, HeadPlace, NodeState
from outlast.cluster.setup import Tell
from outlast.errors import OutlastError

_LOOK_S = 1.0
_RENEW_S = 120.0
_BEAT_S = 10.0
# An actor whose machine dies after the deadline is told that it was preempted; so the deadline is a little before.
_EARLY_S = 3.0
_START_S = 120.0
_ASK_S = 10.0
_TRIES = 3
# `ray start` gives up after half a minute if its node is not in the cluster by then.
_GIVES_UP_S = 60.0
# How long before the end it is said, at the least.
_WARN_S = 60.0


class _Guard:
    def __init__(
        self,
        clusters: Clusters,
        cluster: Cluster,
        instance: Instance,
        place: NodePaths,
        variables: Mapping[str, str],
        *,
        tell: Tell,
    ) -> None:
        self.clusters = clusters
        self.cluster = cluster
        self.instance = instance
        self.place = place
        self.variables = dict(variables)
        self.tell = tell
        self.ray: subprocess.Popen[bytes] | None = None

    def start_ray(self, head: str, config: str = "") -> subprocess.Popen[bytes]:
        kind = self.cluster.kind(self.place.kind)
        argv = raystart.start_words(
            self.place.ray,
            self.cluster,
            kind,
            self.cluster.has.get(kind.name, {}),
            address=self.place.address,
            head=head,
            config=config,
        )
        self.tell("starting Ray")
        # A session of its own: whatever it leaves is ended with it.
        self.ray = subprocess.Popen(
            argv, env=self.variables, cwd=self.place.home, stdin=subprocess.DEVNULL, start_new_session=True
        )
        return self.ray

    def end_ray(self) -> None:
        """All of it, by its own command: its processes have sessions of their own, and the machine has no other Ray."""
        if self.ray is None:
            return
        subprocess.run(
            [self.place.ray, "stop", "--force"],
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
        """The cluster as it is now; None if it is gone. One that cannot be read is as it was."""
        try:
            found = self.clusters.find(self.cluster.name)
        except OutlastError:
            return self.cluster
        return found if found is not None and found.id == self.cluster.id else None


class WorkerGuard(_Guard):
    def run(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()
        lost_at = time.monotonic()
        joined, tries = "", _TRIES
        while time.monotonic() - lost_at < self.cluster.spec.orphan_s:
            head = self._head()
            if head is not None and head.machine != joined and answers(head.address, PORT):
                self.end_ray()
                joined = head.machine
                # Another head has another token.
                self.place.write_token(self.instance.secrets(self.cluster.secrets)["RAY_TOKEN"])
                process = self.start_ray(head.address)
                if not self._watch(process, head) and (tries := tries - 1):
                    joined = ""  # it never was in the cluster, as on a busy computer: once more
                lost_at = time.monotonic()
            if self.reread() is None:
                return
            time.sleep(_LOOK_S)
        self.tell("leaving", f"no head for {self.cluster.spec.orphan_s:g} s")

    def _head(self) -> HeadPlace | None:
        try:
            return self.clusters.head(self.cluster.name)
        except OutlastError:
            return None

    def _watch(self, process: subprocess.Popen[bytes], head: HeadPlace) -> bool:
        """Until Ray ends, or another head has come; whether it lived longer than it takes to give up at the start."""
        began = time.monotonic()
        told = looked_at = 0.0
        while process.poll() is None:
            if not told and raylet_runs():
                told = time.monotonic()
                self.tell("ready")
            if time.monotonic() - looked_at > _BEAT_S:
                looked_at = time.monotonic()
                now = self._head()
                if now is not None and now.machine != head.machine:
                    return True
            time.sleep(_LOOK_S)
        self.tell("without Ray", f"it ended with {process.returncode}")
        return time.monotonic() - began > _GIVES_UP_S

    def _listen(self) -> None:
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
        """Running work goes on, new work goes elsewhere, and the replacement is launched now."""
        head = self._head()
        if head is None:
            return
        left_s = max(1, int(notice.grace_s - _EARLY_S))
        argv = [self.place.ray, "drain-node", f"--address={head.address}:{PORT}"]
        argv += ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", notice.why]
        argv += ["--deadline-remaining-seconds", str(left_s)]
        answer = subprocess.run(
            argv, env=self.variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        said = (answer.stderr or answer.stdout).strip().splitlines()
        self.tell("draining", notice.why if answer.returncode == 0 else f"could not: {said[-1:] or ''}")


class HeadGuard(_Guard):
    def run(self) -> None:
        self.fleet = ClusterMachines(self.clusters, self.cluster, cloud_of_head(self.cluster.cloud, self.place.broker))
        self.idle_since: float | None = None
        self.ended: set[str] = set()
        config = f"{self.place.folder}/autoscaler.yaml"
        wanted = raystart.autoscaling_config(self.cluster, socket=self.place.socket)
        with open(config, "wb") as file:
            file.write(msgspec.json.encode(wanted))  # which is YAML as well
        process = self._start_patiently(config)
        self.clusters.tell_head(self.cluster.name, HeadPlace(machine=self.place.machine, address=self.place.address))
        self.tell("ready")
        self._watch(process)

    def _start_patiently(self, config: str) -> subprocess.Popen[bytes]:
        """Ray with its own node in it. It gives up by itself after half a minute, which a busy computer may need."""
        why = ""
        for _ in range(_TRIES):
            process = self.start_ray("", config)
            ends_at = time.monotonic() + _START_S
            while process.poll() is None and time.monotonic() < ends_at:
                if answers("127.0.0.1", DASHBOARD_PORT) and self._has_node():
                    return process
                time.sleep(0.2)
            why = f"`ray start` ended with {process.poll()}; its words are on the serial console"
            self.end_ray()
        raise OutlastError(why)

    def _has_node(self) -> bool:
        try:
            return bool(self._api().get("/api/v0/nodes?limit=1")["data"]["result"]["total"])
        except (OSError, RequestRefused, KeyError, TypeError):
            return False

    def _api(self) -> Api:
        with open(self.place.token, encoding="utf-8") as file:
            return Api(file.read(), timeout_s=_ASK_S)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        beat_at = renewed_at = 0.0
        while process.poll() is None:
            now = time.monotonic()
            found = self.reread()
            if found is None or found.phase == "deleting" or found.head != self.place.machine:
                self.tell("leaving", "the cluster has no use for this head any more")
                return
            self.cluster = found
            if now - beat_at > _BEAT_S:
                beat_at = now
                if self._idle_too_long():
                    self._take_down()
                    return
            if now - renewed_at > _RENEW_S:
                renewed_at = now
                try:
                    self.fleet.renew()
                except OutlastError as problem:
                    self.tell("ready", f"leases could not be renewed: {problem.message}")
            time.sleep(_LOOK_S)
        raise OutlastError(f"Ray ended with {process.returncode}; its jobs are lost")

    def _idle_too_long(self) -> bool:
        """Whether nobody has used the cluster for as long as it may be idle; says so before."""
        limit_s = self.cluster.spec.idle_down_s
        if self._busy() or not limit_s:
            self.idle_since = None
            self.tell_quietly("ready")
            return False
        self.idle_since = self.idle_since or time.monotonic()
        left_s = limit_s - (time.monotonic() - self.idle_since)
        self.tell_quietly("ready", goes_in_s=max(0.0, left_s))
        if left_s < _WARN_S:
            print(f"outlast: nobody uses this cluster: it goes down in {max(0.0, left_s):.0f} s", flush=True)
        return left_s <= 0

    def tell_quietly(self, phase: str, goes_in_s: float = -1.0) -> None:
        state = NodeState(machine=self.place.machine, phase=phase, at=time.time(), goes_in_s=goes_in_s)
        try:
            self.clusters.put(self.cluster.name, "state", self.place.machine, state)
        except OutlastError:
            pass  # a hint

    def _busy(self) -> bool:
        """Whether a job runs or an actor lives. If Ray does not say, it is taken for busy."""
        try:
            api = self._api()
            jobs = api.jobs()
            self._remember_ended(jobs)
            if any(job["status"] in ("PENDING", "RUNNING") for job in jobs):
                return True
            living = "filter_keys=state&filter_predicates=%3D&filter_values=ALIVE"
            actors = api.get(f"/api/v0/actors?limit=1&{living}")
            return bool(actors["data"]["result"]["total"])
        except (OSError, RequestRefused, KeyError, TypeError):
            return True

    def _remember_ended(self, jobs: list[dict[str, Any]]) -> None:
        """Once each: if this head is lost, what was over before is not told as lost."""
        for job in jobs:
            job_id = job.get("submission_id")
            if not job_id or job_id in self.ended or job["status"] in ("PENDING", "RUNNING"):
                continue
            ended = Ended(
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
        """Everything but ourselves; then the record, and we are the last."""
        self.tell("leaving", f"nobody used the cluster for {self.cluster.spec.idle_down_s:g} s")
        self.clusters.write(msgspec.structs.replace(self.cluster, phase="deleting"))
        self.end_ray()
        for machine in self.fleet.machines():
            if machine.name != self.place.machine:
                self.fleet.delete(machine.name, why="the cluster was idle")
        self.fleet.cloud.drop_secrets(self.cluster.secrets)
        self.clusters.forget(self.cluster)


def answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=2.0):
            return True
    except OSError:
        return False


def raylet_runs() -> bool:
    """Whether the node's own part of Ray is there, by the names of this machine's processes."""
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            try:
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    if file.read().strip() == "raylet":
                        return True
            except OSError:
                continue
    return False
