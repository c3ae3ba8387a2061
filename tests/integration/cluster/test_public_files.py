"""Cluster files as Ray's documentation shows them: each is supported, or all unsupported fields are named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml

from outlast.errors import SpecError
from outlast.spec.cluster import ClusterSpec
from outlast.spec.raycluster import parse_ray

# The parts that all of them have in common, with the comments left out.
TAIL = """
idle_timeout_minutes: 5
auth: {ssh_user: ubuntu}
file_mounts: {}
cluster_synced_files: []
file_mounts_sync_continuously: False
rsync_exclude: ["**/.git", "**/.git/**"]
rsync_filter: [".gitignore"]
initialization_commands: []
setup_commands: []
head_setup_commands: [pip install google-api-python-client==1.7.8]
worker_setup_commands: []
head_start_ray_commands:
  - ray stop
  - >-
    ulimit -n 65536; ray start --head --port=6379 --object-manager-port=8076
    --autoscaling-config=~/ray_bootstrap_config.yaml
worker_start_ray_commands:
  - ray stop
  - ulimit -n 65536; ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076
"""
DOCKER = """
docker:
  image: "rayproject/ray:latest-cpu"
  container_name: "ray_container"
  pull_before_run: True
  run_options:
    - --ulimit nofile=65536:65536
"""
GCP_FULL = f"""
cluster_name: default
max_workers: 2
upscaling_speed: 1.0
{DOCKER}
provider: {{type: gcp, region: us-west1, availability_zone: us-west1-a, project_id: null}}
available_node_types:
  ray_head_default:
    resources: {{"CPU": 2}}
    node_config: &machine
      machineType: n1-standard-2
      disks:
        - boot: true
          autoDelete: true
          type: PERSISTENT
          initializeParams:
            diskSizeGb: 50
            sourceImage: projects/deeplearning-platform-release/global/images/family/common-cpu
  ray_worker_small:
    min_workers: 1
    max_workers: 2
    resources: {{"CPU": 2}}
    node_config:
      <<: *machine
      scheduling: [{{preemptible: true}}]
      serviceAccounts:
        - email: ray-autoscaler-sa-v1@p.iam.gserviceaccount.com
          scopes: [https://www.googleapis.com/auth/cloud-platform]
head_node_type: ray_head_default
{TAIL}
"""
AWS_FULL = f"""
cluster_name: default
max_workers: 2
upscaling_speed: 1.0
docker:
  image: "rayproject/ray-ml:latest-gpu"
  container_name: "ray_container"
  pull_before_run: True
  run_options: ["--ulimit nofile=65536:65536"]
provider:
  type: aws
  region: us-west-2
  availability_zone: us-west-2a,us-west-2b
  cache_stopped_nodes: True
available_node_types:
  ray.head.default:
    resources: {{}}
    node_config:
      InstanceType: m5.large
      ImageId: ami-0387d929287ab193e
      BlockDeviceMappings: [{{DeviceName: /dev/sda1, Ebs: {{VolumeSize: 140, VolumeType: gp3}}}}]
  ray.worker.default:
    docker:
      worker_image: "rayproject/ray-ml:latest-cpu"
      worker_run_options: ["--env KIND=worker"]
    min_workers: 1
    max_workers: 2
    resources: {{}}
    node_config:
      InstanceType: m5.large
      ImageId: ami-0387d929287ab193e
      InstanceMarketOptions: {{MarketType: spot}}
head_node_type: ray.head.default
{TAIL}
"""
# From before `available_node_types`, with the field names of that time.
AWS_OLD = """
cluster_name: default
min_workers: 0
max_workers: 2
initial_workers: 0
autoscaling_mode: default
target_utilization_fraction: 0.8
idle_timeout_minutes: 5
docker: {image: "", container_name: "", pull: True, run_options: []}
provider: {type: aws, region: us-west-2, availability_zone: "us-west-2a,us-west-2b"}
auth: {ssh_user: ubuntu}
head_node:
  InstanceType: m5.large
  ImageId: ami-05931d11d2bf831c3
  BlockDeviceMappings: [{DeviceName: /dev/sda1, Ebs: {VolumeSize: 100}}]
worker_nodes:
  InstanceType: m5.large
  ImageId: ami-05931d11d2bf831c3
  InstanceMarketOptions: {MarketType: spot}
file_mounts: {}
setup_commands: [echo hello]
head_setup_commands: [pip install boto3==1.4.8]
head_start_ray_commands:
  - ray stop
  - ulimit -n 65536; ray start --head --redis-port=6379 --object-manager-port=8076
worker_start_ray_commands:
  - ray stop
  - ulimit -n 65536; ray start --redis-address=$RAY_HEAD_IP:6379 --object-manager-port=8076
"""
MARKER = f"{3 * 'X'}-CUSTOMIZE-THIS-{3 * 'X'}"
MINIMAL = "cluster_name: minimal\nprovider: {type: %s, region: us-west-2}\n"


def read(text: str) -> ClusterSpec:
    return parse_ray(yaml.safe_load(text), source="cluster.yaml")[0]


def problems(table: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as raised:
        parse_ray(table, source="cluster.yaml")
    return raised.value.problems


def test_the_full_example_for_google_is_supported_with_its_container() -> None:
    spec = read(GCP_FULL)
    (worker,) = spec.workers
    assert (spec.cloud, spec.head.disk_gb, worker.spot, worker.min, worker.max) == ("gcp", 50.0, True, 1, 2)
    assert spec.head.container is not None
    assert spec.head.container.image == "rayproject/ray:latest-cpu"
    assert worker.container == spec.head.container


def test_the_full_example_for_amazon_is_supported_and_a_node_kind_has_another_container() -> None:
    spec = read(AWS_FULL)
    (worker,) = spec.workers
    assert (spec.cloud, spec.head.type, spec.head.disk_gb, spec.head.spot) == ("aws", "m5.large", 140.0, False)
    assert (worker.spot, worker.zones, worker.image) == (True, ("us-west-2a", "us-west-2b"), "ami-0387d929287ab193e")
    assert spec.head.container is not None
    assert worker.container is not None
    assert (spec.head.container.image, worker.container.image) == (
        *("rayproject/ray-ml:latest-gpu", "rayproject/ray-ml:latest-cpu"),
    )
    assert worker.container.env == {"KIND": "worker"}
    assert worker.container.ulimits == spec.head.container.ulimits == {"nofile": "65536:65536"}


def test_the_old_layout_is_supported_with_an_empty_image_as_no_container() -> None:
    spec = read(AWS_OLD)
    assert (spec.head.container, spec.workers[0].container) == (None, None)
    assert spec.workers[0].options == {"object-manager-port": "8076"}
    assert spec.max_workers == 2


@pytest.mark.parametrize("cloud", ["gcp", "aws"])
def test_the_smallest_file_is_enough(cloud: str) -> None:
    assert read(MINIMAL % cloud).cloud == cloud


@pytest.mark.parametrize(
    ("field", "value", "reported"),
    [
        ("NetworkInterfaces", [{"SubnetId": "a"}], "not supported: machines are in the default network"),
        ("SubnetIds", ["subnet-1"], "not supported: machines are in the default network"),
        ("SecurityGroupIds", ["sg-1"], "not supported: machines are in the security group"),
        ("LaunchTemplate", {"LaunchTemplateId": "lt-1"}, "not supported: its fields are unknown here"),
        ("UserData", "#!/bin/sh", "not supported: outlast sets the boot script"),
        ("ImageId", "latest_dlami", "invalid image 'latest_dlami'"),
        (
            "InstanceMarketOptions",
            {"MarketType": "spot", "SpotOptions": {"MaxPrice": "1"}},
            "SpotOptions is not supported",
        ),
        ("InstanceMarketOptions", {"MarketType": "block"}, "MarketType: expected `spot`"),
        ("BlockDeviceMappings", [{"DeviceName": "a"}], "expected a disk with `Ebs`"),
        ("BlockDeviceMappings", [{"Ebs": {"VolumeSize": "big"}}], "VolumeSize: expected a number"),
        ("BlockDeviceMappings", [{"Ebs": {}}, {"Ebs": {}}], "not supported: machines have one disk"),
        ("machineType", "n1-standard-2", "unknown field"),
    ],
)
def test_unsupported_fields_for_amazon_are_named(field: str, value: object, reported: str) -> None:
    table = yaml.safe_load(AWS_OLD)
    table["worker_nodes"][field] = value
    assert any(line.startswith(f"[worker_nodes] {field}: {reported}") for line in problems(table))


def test_a_wrong_type_an_unknown_field_and_an_unfilled_marker_are_reported_at_once() -> None:
    table = yaml.safe_load(GCP_FULL)
    table["docker"] |= {"pull_before_run": "yes please", "worker_image": f"team/{MARKER}", "memory": 3}
    table["docker"]["run_options"].append("--publish 80:80")
    table["max_workers"] = "two"
    reported = problems(table)
    assert f"docker.worker_image: the marker `team/{MARKER}` has not been filled in" in reported
    for begins in (
        *("[docker] pull_before_run: expected true or false", "[docker] memory: unknown field"),
        *("[docker] run_options: `--publish 80:80` is not supported", "max_workers: expected a whole number"),
    ):
        assert any(line.startswith(begins) for line in reported), (begins, reported)
    assert len([line for line in reported if "--publish" in line]) == 1


def test_fields_that_one_node_kind_alone_cannot_have_are_named() -> None:
    table = yaml.safe_load(AWS_FULL)
    kind = table["available_node_types"]["ray.worker.default"]
    kind |= {"worker_setup_commands": ["true"], "idle_timeout_s": 5, "labels": {"a": "b"}, "priority": 1}
    reported = problems(table)
    assert len(reported) == 4
    assert all("not supported for one node type" in line for line in reported)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in below:
        yield from _paths(inner, (*path, key))


@pytest.mark.parametrize("text", [GCP_FULL, AWS_FULL, AWS_OLD], ids=["gcp", "aws", "old"])
def test_any_value_in_a_file_is_read_or_refused_without_a_crash(text: str) -> None:
    whole = yaml.safe_load(text)
    for path in _paths(whole):
        for wrong in (None, True, -1, 1.5, "", "word", "$(", [], [None], ["'"], {}, {"a": None}, {1: 2}):
            table = copy.deepcopy(whole)
            place = table
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = wrong
            with suppress(SpecError):
                parse_ray(table, source="cluster.yaml")
