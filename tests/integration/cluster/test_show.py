"""The output of `outlast cluster status` from given reports of Ray and the cloud, without Ray or machines."""

from __future__ import annotations

from pathlib import Path

from outlast.cli.cluster.show import list_text, status_text
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster.listing import rows
from outlast.cluster.record import UNNEEDED, Cluster, Clusters, PastMachine
from outlast.cluster.status import ClusterStatus, NodeStatus, _counted, _ended
from outlast.spec.cluster import parse_cluster
from outlast.workspace import open_workspace


def gone(machine: str, why: str) -> dict[str, str]:
    return {"kind": "cpu", "machine": machine, "why": why}


def past(machine: str, why: str) -> PastMachine:
    return PastMachine(machine=machine, cost_usd=0.1, ran_s=60.0, why=why)


def test_a_worker_that_ended_as_expected_has_not_failed() -> None:
    reported = [
        gone("idle", "Terminated due to idle (no Ray activity): Termination of node that's idle for 20 seconds."),
        gone("stopped", "Expected termination: received SIGTERM"),
        gone("drained", "Terminated due to preemption: preempted"),
        gone("vanished", "Unexpected termination: health check failed"),
        gone("crashed", "Unexpected termination: raylet died"),
        gone("odd", ""),
    ]
    known = [
        past("idle", UNNEEDED),
        past("drained", UNNEEDED),
        past("vanished", "preempted"),
        past("crashed", UNNEEDED),
    ]
    found = _ended(reported, {one.machine: one for one in known})
    assert [one["machine"] for one in found["preempted"]] == ["drained", "vanished"]
    assert {one["machine"]: one["why"] for one in found["failed"]} == {
        "crashed": "Unexpected termination: raylet died",
        "odd": "unknown reason",
    }


def test_pending_nodes_are_counted_by_kind() -> None:
    nodes = [
        {"kind": "cpu", "count": 2},
        {"kind": "cpu", "machine": "a-number"},
        {"kind": "gpu", "machine": "another"},
    ]
    assert _counted(nodes) == [{"kind": "cpu", "count": 3}, {"kind": "gpu", "count": 1}]


def test_the_list_shows_lost_heads_and_unreachable_clouds(tmp_path: Path) -> None:
    clusters = Clusters(open_workspace(str(tmp_path / "workspace")))
    table = {"head": {"type": "local-1"}, "workers": {"cpu": {"type": "local-1", "max": 9}}}
    spec = parse_cluster({"cluster": table}, name="small", source="here")
    for name, cloud, phase in (("headless", "local", "ready"), ("far", "gcp", "ready"), ("new", "local", "creating")):
        clusters.create(Cluster(name=name, id=name, cloud=cloud, spec=spec, phase=phase, head=f"{name}-h", who="ann"))
    clusters.add("headless", "past", "w", past("w", "preempted"))
    found = rows(clusters, {"local": LocalCloud(str(tmp_path / "cloud"))})
    lines = [line.split() for line in list_text(found, now=60.0).splitlines()]
    assert lines[0] == ["CLUSTER", "CLOUD", "STATE", "MACHINES", "JOBS", "AGE", "$/H", "COST", "WHO", "REMARKS"]
    assert [line[:5] for line in lines[1:]] == [
        ["far", "gcp", "ready", "0", "0"],
        ["headless", "local", "lost", "0", "0"],
        ["new", "local", "creating", "0", "0"],
    ]
    assert [row.problem for row in found] == ["cloud `gcp` is not configured here", "the head is gone", ""]
    assert [row.cost_usd for row in found] == [0.0, 0.1, 0.0]


def test_the_status_is_printed() -> None:
    table = {"name": "small", "head": {"type": "local-1"}, "workers": {"cpu": {"type": "local-1", "max": 9}}}
    spec = parse_cluster({"cluster": table}, name="small", source="here")
    cluster = Cluster(name="small", id="1", cloud="local", spec=spec, who="ann")
    sight = ClusterStatus(
        name="small",
        cloud="local",
        phase="ready",
        head="h",
        nodes=[
            NodeStatus(machine="h", kind="head", role="head", status="running", ray="active", usd_per_hour=0.5),
            NodeStatus(machine="w", kind="cpu", role="worker", status="running", ray="idle", idle_s=90.0, spot=True),
        ],
        pending=[{"kind": "cpu", "count": 2}],
        failed=[gone("bad", "no capacity")],
        preempted=[gone(f"w{number}", "preempted") for number in range(5)],
        demands=[{"bundle": {"CPU": 1.0, "GPU": 0.5}, "count": 4}],
        usage={"CPU": [1.0, 4.0], "memory": [2e9, 8e9], "node:10.0.0.1": [0.0, 1.0]},
        usd_per_hour=0.5,
        cost_usd=1.25,
        down_in_s=-1.0,
    )
    lines = status_text(cluster, sight).splitlines()
    assert lines[:3] == [
        "small on local, ready, by ann",
        "1 of at most 9 workers, 1 idle, 2 pending",
        "$0.50 an hour, $1.25 so far",
    ]
    assert [line.split()[:5] for line in lines if line.startswith("w ")] == [["w", "cpu", "running", "idle", "1m"]]
    assert "pending: 2 × cpu" in lines
    assert "waiting: 4 × 1 CPU + 0.5 GPU" in lines
    assert "failed: 1 × cpu (bad): no capacity" in lines
    assert "preempted: 5 × cpu (w2, w3, w4, …)" in lines
    assert lines[-2:] == [
        "CPU     ██████░░░░░░░░░░░░░░░░░░ 1 of 4",
        "memory  ██████░░░░░░░░░░░░░░░░░░ 2 of 8 GB",
    ]
