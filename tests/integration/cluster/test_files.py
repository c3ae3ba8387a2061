"""Cluster files: ours, and Ray's in both layouts. All problems are reported at once, before any launch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from outlast.errors import SpecError
from outlast.spec.cluster import ClusterSpec, parse_cluster
from outlast.spec.raycluster import parse_ray
from tests.integration.cli.console import Console

# The layout before `available_node_types`, as a team's guide has it: three places to fill in.
MARKER = f"{3 * 'X'}-CUSTOMIZE-THIS-{3 * 'X'}"
TEMPLATE = """
# Unique identifier for head node and workers of this cluster
cluster_name: il-rep-@MARKER@

min_workers: 1
max_workers: 5
initial_workers: 1
autoscaling_mode: default
target_utilization_fraction: 0.8
idle_timeout_minutes: 5

docker:
  image: "rayproject/ray:2.60.0-gpu"
  container_name: "ray_container"
  pull_before_run: True
  run_options:
    - --ulimit nofile=65536:65536
    - --shm-size=4gb --env TEAM=il-rep
    - -v /mnt/nfs:/mnt/nfs

provider:
  type: gcp
  region: us-west1
  availability_zone: us-west1-b
  project_id: my-project

auth:
  ssh_user: ubuntu

head_node:
  machineType: n1-standard-8
  disks:
    - boot: true
      autoDelete: true
      type: PERSISTENT
      initializeParams:
        diskSizeGb: 100
        sourceImage: projects/deeplearning-platform-release/global/images/family/common-cpu
  scheduling:
    - onHostMaintenance: TERMINATE

worker_nodes:
  machineType: n1-standard-8
  disks:
    - boot: true
      autoDelete: true
      type: PERSISTENT
      initializeParams:
        diskSizeGb: 100
        sourceImage: projects/deeplearning-platform-release/global/images/family/common-cpu
  guestAccelerators:
    - acceleratorType: projects/my-project/zones/us-west1-b/acceleratorTypes/nvidia-tesla-t4
      acceleratorCount: 1
  metadata:
    items:
      - key: install-nvidia-driver
        value: "True"
  scheduling:
    - preemptible: true
    - onHostMaintenance: TERMINATE

file_mounts:
  ~/.ssh/ssh_deploy_key: deploy_key
  ~/scripts: scripts

initialization_commands:
  - sudo modprobe nvidia || true

setup_commands:
  - |
    ( test -e ~/il-rep && git -C ~/il-rep pull ) \\
    || git clone --depth 1 -b @MARKER@ git@example.com:team/il-rep.git ~/il-rep
  - cd ~/il-rep && cluster_name="cluster-@MARKER@" && mkdir -p ~/runs/$cluster_name
head_setup_commands: []
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
TEMPLATE = TEMPLATE.replace("@MARKER@", MARKER)
FILLED = TEMPLATE.replace(f"il-rep-{MARKER}", "il-rep-ada").replace(MARKER, "main")


def read(text: str) -> tuple[ClusterSpec, list[str]]:
    return parse_ray(yaml.safe_load(text), source="cluster.yaml")


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as raised:
        read(text)
    return raised.value.problems


def test_exports_that_steer_rays_launcher_become_notes_and_others_stay_errors() -> None:
    usual = "ulimit -n 65536; ray start --head"
    spec, notes = read(FILLED.replace(usual, f"export AUTOSCALER_MAX_NUM_FAILURES=inf; {usual}"))
    assert spec.head.options["object-manager-port"] == "8076"
    assert any("`export AUTOSCALER_MAX_NUM_FAILURES=inf` is left out" in note for note in notes)
    (problem,) = problems(FILLED.replace(usual, f"export MODEL=large; {usual}"))
    assert "`export MODEL=large` is not supported" in problem


def test_the_filled_in_template_of_the_guide_is_accepted() -> None:
    spec, notes = read(FILLED)
    assert (spec.name, spec.cloud, spec.max_workers, spec.idle_s) == ("il-rep-ada", "gcp", 5, 300.0)
    assert (spec.head.type, spec.head.spot, spec.head.disk_gb) == ("n1-standard-8", False, 100.0)
    (worker,) = spec.workers
    assert (worker.spot, worker.min, worker.max, worker.gpu, worker.gpus) == (True, 1, 5, "T4", 1)
    assert worker.image == "projects/deeplearning-platform-release/global/images/family/common-cpu"
    assert worker.zones == ("us-west1-b",)
    assert worker.metadata == {"install-nvidia-driver": "True"}
    assert worker.options == {"object-manager-port": "8076"}
    assert [name for name, commands in spec.phases.of("worker") for _ in commands] == [
        "initialization",
        "setup",
        "setup",
    ]
    assert spec.files == {"~/.ssh/ssh_deploy_key": "deploy_key", "~/scripts": "scripts"}
    assert any(note.startswith("auth:") for note in notes)
    box = worker.container
    assert box is not None
    assert box == spec.head.container
    assert (box.image, box.name, box.pull) == ("rayproject/ray:2.60.0-gpu", "ray_container", True)
    assert (box.ulimits, box.env, box.volumes) == (
        *({"nofile": "65536:65536"}, {"TEAM": "il-rep"}, ("/mnt/nfs:/mnt/nfs",)),
    )


def test_all_errors_of_a_file_are_reported_at_once() -> None:
    broken = TEMPLATE.replace("max_workers: 5", 'max_workers: "five"').replace("auth:", "speed: 3\nauth:")
    reported = problems(broken)
    assert [line.partition(":")[0] for line in reported if "has not been filled in" in line] == [
        *("cluster_name", "setup_commands[0]", "setup_commands[1]"),
    ]
    assert "max_workers: expected a whole number, got 'five'" in reported
    assert any(re.match(r"speed: unknown field", line) for line in reported)
    assert len(reported) == 5


def test_the_current_layout_is_read_with_its_node_kinds() -> None:
    spec, _ = read(NEW)
    assert (spec.head.name, spec.head.type, spec.head.spot) == ("head", "n1-standard-2", False)
    assert [(kind.name, kind.min, kind.max, kind.spot) for kind in spec.workers] == [
        *(("cpu", 0, 4, True), ("steady", 1, 2, False)),
    ]
    assert spec.workers[0].resources == {"CPU": 2.0}
    assert spec.max_workers == 6


NEW = """
cluster_name: new
max_workers: 6
provider: {type: gcp, region: us-central1}
head_node_type: main
available_node_types:
  main: {resources: {CPU: 0}, node_config: {machineType: n1-standard-2}}
  cpu:
    min_workers: 0
    max_workers: 4
    resources: {CPU: 2}
    node_config: {machineType: n1-standard-2, scheduling: {provisioningModel: SPOT}}
  steady:
    min_workers: 1
    max_workers: 2
    node_config: {machineType: n1-standard-2, scheduling: {preemptible: false}}
"""


@pytest.mark.parametrize(
    ("changed", "reported"),
    [
        ("file_mounts_sync_continuously: true", "file_mounts_sync_continuously: not supported"),
        (
            "docker: {image: a, run_options: ['--mount type=bind,source=/data,target=/in,readonly']}",
            "[docker] run_options: `--mount type=bind,source=/data,target=/in,readonly` is not supported: "
            "write `--volume /data:/in:ro`",
        ),
        (
            "docker: {image: a, run_options: ['--mount=type=bind,src=/data,dst=/in']}",
            "[docker] run_options: `--mount=type=bind,src=/data,dst=/in` is not supported: write `--volume /data:/in`",
        ),
        (
            "docker: {image: a, run_options: ['--mount=type=tmpfs,target=/in']}",
            "[docker] run_options: `--mount=type=tmpfs,target=/in` is not supported: only folders of the machine",
        ),
        ("docker: {image: a, run_options: [--privileged]}", "[docker] run_options: `--privileged` is not supported"),
        (
            "docker: {image: a, head_run_options: [-p 80:80]}",
            "[docker] head_run_options: `-p 80:80` is not supported",
        ),
        (
            "docker: {image: a, run_options: ['$([ -d /proc/driver ] && echo --runtime=nvidia)']}",
            "[docker] run_options: `$([ -d /proc/driver ] && echo --runtime=nvidia)` is not supported",
        ),
        ("docker: {image: 'A B'}", "[docker] image: invalid container image 'A B'"),
        ("docker: {image: a, pull_before_run: sometimes}", "[docker] pull_before_run: expected true or false"),
        ("docker: {image: a, imgae: b}", "[docker] imgae: unknown field; did you mean `image`?"),
        ("rsync_filter: [.rayignore]", "rsync_filter: only `.gitignore` is supported"),
        ("provider: {type: aws, security_group: {GroupName: a}}", "[provider] security_group: not supported"),
        (
            "head_start_ray_commands: [conda activate x]",
            "head_start_ray_commands: `conda activate x` is not supported",
        ),
        ("provider: {type: azure}", "[provider] type: unsupported provider `azure`"),
        (
            "head_node_type: mian",
            "head_node_type: expected one of `available_node_types`, got `mian`; did you mean `main`?",
        ),
        ("setup_commands: pip install x", "setup_commands: expected a list of commands"),
        ("head_node: {machineType: x}", "head_node: cannot be combined with `available_node_types`"),
        ("upscaling_speed: fast", "upscaling_speed: expected a number"),
    ],
)
def test_unsupported_fields_are_named(changed: str, reported: str) -> None:
    table: dict[str, Any] = {**yaml.safe_load(NEW), **yaml.safe_load(changed)}
    assert any(line.startswith(reported) for line in problems(yaml.safe_dump(table)))


def test_our_own_table_reports_all_its_errors() -> None:
    table = {
        "cluster": {
            "name": "Big",
            "colour": "red",
            "head": {"spot": "yes"},
            "workers": {"cpu": {"min": 3, "max": 2, "ray": {"port": 1}, "resources": {"CPU": "many"}}},
        }
    }
    with pytest.raises(SpecError) as raised:
        parse_cluster(table, name="p", source="outlast.toml")
    reported = "\n".join(raised.value.problems)
    for field in (
        "[cluster] name",
        "[cluster] colour: unknown field",
        "[cluster.head] spot",
        "[cluster.workers.cpu] min",
    ):
        assert field in reported
    assert "[cluster.workers.cpu] ray: `port` is set by outlast" in reported
    assert "[cluster.workers.cpu] resources: CPU: expected a number" in reported


def test_a_wrong_file_ends_with_code_2_and_launches_nothing(tmp_path: Path) -> None:
    console = Console(tmp_path)
    path = tmp_path / "cluster.yaml"
    path.write_text(TEMPLATE)
    answer = console.run("cluster", "up", str(path))
    assert answer.returncode == 2
    assert answer.stderr.count("has not been filled in") == 3
    assert "clusters" not in [child.name for child in (tmp_path / "workspace").glob("*")]
