"""A cluster whose head is lost or idle."""

from __future__ import annotations

import json

import pytest

from outlast.cluster.record import JobEnd, NodeState
from tests.integration.sync.keyboard import Keyboard
from tests.support.cluster import FILE, TICKS, Bench, read_until
from tests.support.ports import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.cluster


def ready(bench: Bench, name: str) -> bool:
    state = bench.clusters.get("small", "state", name, NodeState)
    return state is not None and state.phase == "ready"


def test_workers_join_the_next_head_and_delete_themselves_without_one(bench: Bench) -> None:
    (bench.project / "outlast.toml").write_text(FILE.replace("max = 3", "min = 1\nmax = 1"))
    bench.good("cluster", "up")
    eventually(lambda: bench.workers() and ready(bench, bench.workers()[0]), within_s=90, what="a worker")
    (worker,) = bench.workers()
    over = bench.good("cluster", "submit", "small", "--wait", "--", "true").split()[0]
    runs = bench.good("cluster", "submit", "small", "--", "sleep", "300").strip()
    eventually(lambda: bench.clusters.get("small", "ended", over, JobEnd), within_s=30, what="the record of the end")
    lost = bench.clusters.all()[0].head
    bench.cloud.delete(lost)
    bench.clusters.drop("small", "state", worker)
    bench.good("cluster", "up")
    eventually(lambda: ready(bench, worker), within_s=60, what="the worker with the new head")
    assert bench.workers() == [worker]
    statuses = {job["id"]: job["status"] for job in json.loads(bench.good("cluster", "jobs", "--json"))}
    assert statuses == {over: "SUCCEEDED", runs: "LOST"}

    bench.cloud.delete(bench.clusters.all()[0].head)
    eventually(lambda: bench.workers() == [], within_s=120, what="the end of a worker without a head")
    assert [
        machine_record.name for machine_record in bench.clusters.machine_records.all() if "-w-" in machine_record.name
    ] == []
    bench.good("cluster", "down", "--yes")
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")


def test_an_idle_cluster_warns_and_goes_down(bench: Bench) -> None:
    (bench.project / "outlast.toml").write_text(FILE.replace('idle = "10s"', 'idle_down = "25s"'))
    bench.good("cluster", "up")
    eventually(lambda: bench.status()["down_in_s"] > 0, within_s=60, what="the warning")
    eventually(lambda: not bench.left(), within_s=120, what="nothing left")


def test_every_command_reports_a_killed_head(bench: Bench) -> None:
    (bench.project / "ticks.py").write_text(TICKS)
    bench.good("cluster", "up")
    over = bench.good("cluster", "submit", "small", "--wait", "--", "true").split()[0]
    eventually(lambda: bench.clusters.get("small", "ended", over, JobEnd), within_s=30, what="the record of the end")
    running = bench.good("cluster", "submit", "small", "--", "python", "ticks.py").strip()
    follower = bench.start("cluster", "logs", "small", running, "-f")
    read_until(follower, "tick 1")
    watcher = bench.start("cluster", "status", "--watch")
    read_until(watcher, "an hour")
    tunnel = bench.start("cluster", "dashboard", "--port", str(free_port()))
    read_until(tunnel, "Ctrl-C ends this")
    entered = Keyboard(bench, "cluster", "attach")
    entered.until("outlast")
    head = bench.clusters.all()[0].head
    bench.cloud.stop(head)

    assert "the head of `small` is stopped" in follower.communicate(timeout=600)[0]
    assert follower.returncode == 5
    assert entered.wait(within_s=60) == 5
    read_until(watcher, "Ray cannot be reached: the head of `small` is stopped")
    read_until(tunnel, "waiting for another")
    for argv in (("logs", "small", running), ("stop", "small", running)):
        answer = bench.outlast("cluster", *argv)
        assert (answer.returncode, "LOST" in answer.stderr) == (6, True), answer.stderr
    for argv in (("submit", "small", "--", "true"), ("exec", "small", "--", "true")):
        answer = bench.outlast("cluster", *argv)
        assert answer.returncode == 5
        assert "`outlast cluster up` launches another" in answer.stderr
    statuses = {job["id"]: job["status"] for job in json.loads(bench.good("cluster", "jobs", "--json"))}
    assert statuses == {over: "SUCCEEDED", running: "LOST"}

    bench.good("cluster", "down", "--yes")
    assert "`small` is down" in watcher.communicate(timeout=600)[0]
    assert watcher.returncode == 0
    assert "`small` is down" in tunnel.communicate(timeout=600)[0]
    eventually(lambda: not bench.left(), within_s=20, what="nothing left")
