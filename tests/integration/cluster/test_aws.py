"""A cluster on Amazon's API: the head and the workers are launched, and nothing remains after `down`."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.aws.client import AwsClient
from outlast.clouds.aws.cloud import AwsCloud
from outlast.clouds.aws.region import SUPERVISOR
from outlast.clouds.local.cloud import LocalCloud
from outlast.cluster.record import Clusters, NodeState
from outlast.workspace import open_workspace
from tests.integration.aws.home import left
from tests.support.cluster import Bench
from tests.support.waiting import eventually

pytest.importorskip("boto3")
pytest.importorskip("moto.moto_server")
FILE = """
cluster_name: small
max_workers: 1
provider: {type: aws, region: us-east-1, availability_zone: "us-east-1a,us-east-1b"}
auth: {ssh_user: ubuntu}
head_node_type: ray.head.default
available_node_types:
  ray.head.default:
    resources: {}
    node_config:
      InstanceType: m5.large
      BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 40}}]
  ray.worker.default:
    min_workers: 1
    max_workers: 1
    resources: {}
    node_config:
      InstanceType: m5.large
      InstanceMarketOptions: {MarketType: spot}
file_mounts: {~/notes: notes}
setup_commands: [test "$(cat ~/notes)" = remembered]
head_start_ray_commands: [ray stop, ray start --head --port=6379 --object-store-memory=100000000]
worker_start_ray_commands: [ray stop, "ray start --address=$RAY_HEAD_IP:6379 --object-store-memory=100000000"]
"""


@pytest.fixture
def aws(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsCloud]:
    """moto with machines behind it that have addresses of their own."""
    root = str(bench.root / "instances")
    Path(root).mkdir()
    local = LocalCloud(root, mode=bench.environment["OUTLAST_LOCAL_MODE"])
    argv = [sys.executable, "-m", "outlast.testing.motobridge", root]
    with open(f"{root}/bridge.log", "wb") as log:
        server = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "OUTLAST_LOCAL_MODE": local.mode}
        )
    assert server.stdout is not None
    url = server.stdout.readline().decode().strip()
    assert url.startswith("http://127.0.0.1:"), Path(root, "bridge.log").read_text()
    settings = {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "OUTLAST_AWS_SSH_USER": "root",
        "OUTLAST_AWS_SSH_PROXY": shlex.join([sys.executable, "-m", "tests.integration.aws.connect", root]) + " %i",
        "OUTLAST_TEST_MODE": local.mode,
        "PYTHONPATH": os.getcwd(),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    bucket = f"box-{secrets.token_hex(4)}"
    AwsClient().call("s3", "create_bucket", Bucket=bucket)
    bench.environment |= {**settings, "OUTLAST_WORKSPACE": f"s3://{bucket}/ws"}
    before, bench.clusters = bench.clusters, Clusters(open_workspace(f"s3://{bucket}/ws"))
    yield AwsCloud()
    bench.clean()
    bench.clusters = before
    server.terminate()
    server.wait(timeout=600)
    for machine in local.machines():
        local.delete(machine.name)


@pytest.mark.cluster
def test_a_cluster_on_aws_comes_up_works_and_leaves_nothing(bench: Bench, aws: AwsCloud) -> None:
    (bench.project / "cluster.yaml").write_text(FILE)
    (bench.project / "notes").write_text("remembered")
    bench.good("setup", "aws", "--apply")
    assert bench.good("cluster", "up", "cluster.yaml") == "small\n"

    def ready() -> list[str]:
        states = bench.clusters.each("small", "state", NodeState)
        return [state.machine for state in states if state.phase == "ready" and "-w-" in state.machine]

    eventually(ready, within_s=150, what="a worker")
    (worker,) = ready()
    by_api = {machine.name: machine for machine in aws.machines()}
    head = next(name for name in by_api if "-head-" in name)
    assert (by_api[head].spot, by_api[worker].spot) == (False, True)
    assert (by_api[head].disk_gb, by_api[head].type) == (40.0, "m5.large")
    assert by_api[worker].zone in ("us-east-1a", "us-east-1b")
    # The head has the role of a supervisor, which launches machines; a worker has the role of a plain machine.
    assert str(aws.instances.find(head)["IamInstanceProfile"]["Arn"]).endswith(f"/{SUPERVISOR}")
    output = bench.good("cluster", "submit", "--wait", "small", "--", "python", "-c", "print(6 * 7)")
    assert "42" in output.split()

    # Without a head only `down` cleans up; the disk of a stopped head still costs money.
    aws.stop(head)
    eventually(lambda: aws.machine(head).status == "stopped", within_s=60, what="the end of the head")
    bench.good("cluster", "down", "cluster.yaml", "--yes")
    assert list(aws.machines()) == []
    found = left(aws.client)
    assert found == {what: found[what] for what in found if what == "security groups of machines"}
    assert list(bench.clusters.bucket.list("clusters/")) == []
    assert list(bench.clusters.bucket.list("machines/")) == []
