"""A cluster on Google's API: the head and the workers are launched, and `down` deletes stopped workers too."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.prices import PriceBook
from outlast.cluster.record import Clusters, NodeState
from outlast.workspace import open_workspace
from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import PROJECT, variables, write_files
from tests.support.cluster import Bench
from tests.support.waiting import eventually

pytest.importorskip("google.auth", reason="google-auth is not installed")
FILE = """
cluster_name: small
min_workers: 1
max_workers: 2
provider: {type: gcp, region: us-central1, availability_zone: "us-central1-a,us-central1-b"}
auth: {ssh_user: ubuntu}
head_node:
  machineType: e2-standard-2
worker_nodes:
  machineType: e2-standard-2
  scheduling: [{preemptible: true}, {onHostMaintenance: TERMINATE}]
file_mounts: {~/notes: notes}
setup_commands: [test "$(cat ~/notes)" = remembered]
head_start_ray_commands: [ray stop, ray start --head --port=6379 --object-store-memory=100000000]
worker_start_ray_commands: [ray stop, "ray start --address=$RAY_HEAD_IP:6379 --object-store-memory=100000000"]
"""


@pytest.fixture
def google(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[GcpCloud]:
    endpoint = Endpoint(str(bench.root / "served"), cloud=bench.cloud)
    endpoint.start()
    write_files(endpoint.root, endpoint.url)
    settings = variables(endpoint.root, endpoint.url)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    cloud = GcpCloud(PROJECT, prices=PriceBook(str(bench.root / "cache")))
    bucket = f"box-{secrets.token_hex(4)}"
    cloud.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": bucket})
    bench.environment |= {**settings, "OUTLAST_WORKSPACE": f"gs://{bucket}/ws"}
    local, bench.clusters = bench.clusters, Clusters(open_workspace(f"gs://{bucket}/ws"))
    yield cloud
    bench.clean()
    # What comes after us has no endpoint to ask.
    bench.clusters = local
    endpoint.stop()


@pytest.mark.cluster
def test_a_ray_cluster_file_comes_up_and_down_deletes_stopped_workers(bench: Bench, google: GcpCloud) -> None:
    (bench.project / "cluster.yaml").write_text(FILE)
    (bench.project / "notes").write_text("remembered")
    # The zone that is asked first has none to give: the worker is found in the next.
    bench.cloud.set_zone("us-central1-a", capacity=1)
    assert bench.good("cluster", "up", "cluster.yaml") == "small\n"

    def ready() -> list[str]:
        states = bench.clusters.each("small", "state", NodeState)
        return [state.machine for state in states if state.phase == "ready" and "-w-" in state.machine]

    eventually(ready, within_s=120, what="a worker")
    (worker,) = ready()
    by_api = {machine.name: machine for machine in google.machines()}
    head = next(name for name in by_api if "-head-" in name)
    assert (by_api[head].spot, by_api[worker].spot) == (False, True)
    assert (by_api[head].zone, by_api[worker].zone) == ("us-central1-a", "us-central1-b")

    # Without a head only `down` deletes a preempted worker.
    bench.cloud.preempt(worker, notice=False)
    google.stop(head)
    eventually(lambda: google.machine(head).status == "stopped", within_s=30, what="the end of the head")
    there = [machine.status for machine in google.machines()]
    assert "stopped" in there
    bench.good("cluster", "down", "cluster.yaml", "--yes")
    assert list(google.machines()) == []
    disks = google.client.compute("GET", "aggregated/disks").doc.get("items", {})
    assert [disk["name"] for zone in disks.values() for disk in zone.get("disks", [])] == []
    assert list(bench.clusters.bucket.list("clusters/")) == []
    assert list(bench.clusters.bucket.list("machines/")) == []
