"""`outlast init --from` converts cluster files of Ray, and reports every field that it drops."""

from __future__ import annotations

import tomllib

import pytest
from msgspec import structs

from outlast.spec.cluster import parse_cluster
from outlast.spec.raycluster import parse_ray
from outlast.spec.rayexport import cluster_table
from tests.integration.cli.console import Console
from tests.integration.cli.test_init_from import ask, refusal

RAY = """
cluster_name: search
provider: {type: gcp, region: us-west1, availability_zone: us-west1-a}
max_workers: 6
upscaling_speed: 2.0
idle_timeout_minutes: 7
available_node_types:
  head: {node_config: {machineType: n1-standard-4}, resources: {CPU: 0}}
  worker:
    min_workers: 1
    max_workers: 6
    resources: {CPU: 8, big: 1}
    node_config:
      machineType: n1-standard-8
      scheduling: [{preemptible: true}]
head_node_type: head
setup_commands: ["pip install -r requirements.txt", "echo 'it''s done'"]
file_mounts: {"~/data": ./data}
head_start_ray_commands: ["ray stop", "ray start --head --object-store-memory=100000000"]
"""


def test_a_cluster_file_of_ray_becomes_a_cluster(console: Console) -> None:
    import yaml

    answer = ask(console, RAY)
    assert answer.returncode == 0, answer.stderr
    assert "outlast cluster up --dry-run" in answer.stderr
    found = parse_cluster(tomllib.loads((console.folder / "outlast.toml").read_text()), name="x", source="outlast.toml")
    wanted, _ = parse_ray(yaml.safe_load(RAY), source="task.yaml")
    # A cluster has exactly one head.
    assert found == structs.replace(wanted, head=structs.replace(wanted.head, max=0))


def test_fields_that_a_cluster_table_lacks_are_named(console: Console) -> None:
    answer = ask(console, RAY + "rsync_exclude: ['*.pyc']\nauth: {ssh_user: ubuntu}\n")
    assert answer.returncode == 0, answer.stderr
    assert "left out: rsync_exclude: *.pyc: " in answer.stderr
    assert "changed: auth: " in answer.stderr


def test_the_container_of_a_cluster_is_converted(console: Console) -> None:
    answer = ask(
        console, RAY + "docker: {image: 'rayproject/ray:2.60', container_name: box, run_options: [--env A=b]}\n"
    )
    assert answer.returncode == 0, answer.stderr
    found = parse_cluster(tomllib.loads((console.folder / "outlast.toml").read_text()), name="x", source="outlast.toml")
    assert found.head.container is not None
    assert found.head.container.image == "rayproject/ray:2.60"
    assert "left out: docker: name of head" in answer.stderr
    assert "left out: docker: env of worker" in answer.stderr


def test_containers_that_differ_are_refused(console: Console) -> None:
    boxes = (
        "docker: {head_image: 'rayproject/ray:2.60', worker_image: 'rayproject/ray:2.60-gpu', container_name: ray}\n"
    )
    assert "different images" in refusal(console, RAY + boxes)


def test_an_invalid_cluster_file_is_refused_with_every_reason(console: Console) -> None:
    said = refusal(console, RAY.replace("search", "me-CUSTOMIZE-THIS") + "nonsense: 1\n")
    assert "has not been filled in" in said
    assert "nonsense" in said


def test_every_field_of_a_cluster_is_written() -> None:
    """A new field of `[cluster]` that the export lacks would be lost silently."""
    import yaml

    spec, _ = parse_ray(yaml.safe_load(RAY), source="task.yaml")
    result = set(cluster_table(spec)[0]["cluster"])
    ours = {"container", "idle_down", "orphan", "life", "env", "initialization", "head_setup", "worker_setup"}
    with pytest.raises(Exception, match="unknown field") as raised:
        parse_cluster({"cluster": {"?": 1, "workers": {"a": {}}}}, name="x", source="x")
    known = set(str(raised.value).partition("known here: ")[2].split("\n")[0].split(", "))
    assert known == result | ours
