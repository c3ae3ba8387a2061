"""The `docker` section: Ray, the set-up and the jobs run in a real container, on the head and on the workers."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from outlast.agent.container import Engine
from outlast.cluster.container import NodeContainer
from outlast.cluster.paths import NodePaths
from outlast.spec.cluster import ContainerSpec
from tests.support.cluster import Bench
from tests.support.waiting import eventually

RUNC = shutil.which("runc") or shutil.which("/usr/sbin/runc")
# Where the programs of this computer are, which the container borrows: its root is its own.
PROGRAMS = sorted({"/usr", sys.prefix, os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)})
JOB = """
import os, ray

ray.init(address="auto", log_to_driver=False)

@ray.remote(num_cpus=1)
def look():
    there = [os.path.exists(path) for path in ("/etc/inside", "/etc/set-up")]
    return *there, os.environ.get("COLOUR"), open("/etc/by").read()

print("HERE", os.path.exists("/etc/inside"), open(os.path.expanduser("~/notes")).read(), os.environ.get("COLOUR"))
print("THERE", *ray.get(look.remote()), flush=True)
"""


def root_file_system(paths: Path) -> Path:
    for name in ("etc", "proc", "dev", "sys", "tmp", "usr/bin", "root", "run", "opt"):
        (paths / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", paths / name)
    (paths / "etc/inside").write_text("")
    for name in ("passwd", "group", "hosts", "resolv.conf"):
        shutil.copy(f"/etc/{name}", paths / "etc")
    return paths


def cluster_file(root: Path, **docker: object) -> str:
    borrowed = [f"-v {path}:{path}:ro" for path in PROGRAMS if not path.startswith("/usr/")]
    options = [*borrowed, f"--env PATH={Path(sys.executable).parent}:/usr/bin:/bin", "--env COLOUR=red"]
    text: str = yaml.safe_dump(
        {
            "cluster_name": "small",
            "min_workers": 0,
            "max_workers": 1,
            "idle_timeout_minutes": 5,
            "provider": {"type": "external"},
            "docker": {
                "image": f"oci:{root}",
                "container_name": "boxed",
                "pull_before_run": True,
                "run_options": [*options, "--ulimit nofile=4096:4096", "--shm-size=1gb"],
                "worker_run_options": ["--cap-add", "SYS_NICE"],
                **docker,
            },
            "head_node": {"machineType": "local-1"},
            "worker_nodes": {"machineType": "local-1"},
            "file_mounts": {"~/notes": "notes"},
            "initialization_commands": ["test ! -e /etc/inside && echo outside > /etc/by-init"],
            "setup_commands": ["test -e /etc/inside && echo done > /etc/set-up"],
            "head_setup_commands": ["echo head > /etc/by"],
            "worker_setup_commands": ["echo worker > /etc/by", "test ! -e /etc/by-init"],
        }
    )
    return text


@pytest.mark.cluster
@pytest.mark.skipif(RUNC is None, reason="needs the Debian package runc")
def test_ray_the_set_up_and_the_jobs_run_in_the_container_on_every_machine(bench: Bench) -> None:
    if bench.cloud.mode != "root":
        pytest.skip("containers on machines of this computer need root")
    root = root_file_system(bench.root / "image")
    (bench.project / "cluster.yaml").write_text(cluster_file(root))
    (bench.project / "notes").write_text("remembered")
    (bench.project / "job.py").write_text(JOB)
    assert bench.good("cluster", "up", "cluster.yaml") == "small\n"
    output = bench.good("cluster", "submit", "--wait", "small", "--", "python", "job.py")
    assert "HERE True remembered red" in output
    assert "THERE True True red worker" in output
    assert bench.good("cluster", "exec", "small", "--", "cat /etc/by; ulimit -n").split() == ["head", "4096"]
    nodes = {node["role"]: node["ray"] for node in bench.status()["nodes"]}
    assert set(nodes) == {"head", "worker"}
    # Writes stay on the machine: the image is unchanged.
    assert sorted(path.name for path in (root / "etc").iterdir()) == [
        "group",
        "hosts",
        "inside",
        "passwd",
        "resolv.conf",
    ]
    bench.good("cluster", "down", "cluster.yaml", "--yes")
    eventually(lambda: bench.left() == [], within_s=30, what="nothing being left")


def test_an_image_that_this_computer_cannot_run_is_reported_before_any_launch(bench: Bench) -> None:
    if bench.cloud.mode != "root":
        pytest.skip("containers on machines of this computer need root")
    for image, why in (
        ("oci:/nowhere/root", "has no folder `/nowhere/root`"),
        ("rayproject/ray:2.60.0", "machines of the local cloud have no docker"),
    ):
        if image.startswith("ray") and shutil.which("podman"):
            continue
        (bench.project / "cluster.yaml").write_text(cluster_file(bench.root, image=image))
        (bench.project / "notes").write_text("remembered")
        answer = bench.outlast("cluster", "up", "cluster.yaml")
        assert answer.returncode == 2
        assert why in answer.stderr
    assert bench.left() == []


def test_docker_gets_the_options_that_ray_would_pass(tmp_path: Path) -> None:
    paths = NodePaths(machine="m", role="worker", kind="cpu", address="10.0.0.1", home=str(tmp_path))
    spec = ContainerSpec(
        image="rayproject/ray:2.60.0",
        name="boxed",
        ulimits={"nofile": "65536:65536"},
        capabilities=("CAP_SYS_PTRACE",),
        volumes=("/data:/data:ro",),
    )
    argv = NodeContainer(spec, paths, print).run_argv(
        Engine(kind="docker", program="docker"), [("/work/code", "/work/code", "rw"), ("/data", "/data", "ro")]
    )
    line = " ".join(argv)
    assert line.startswith("run --detach --name boxed --network host --ipc host --pid host --user 0:0")
    assert "--mount type=bind,source=/work/code,target=/work/code " in line
    assert "--mount type=bind,source=/data,target=/data,readonly " in line
    assert "--ulimit nofile=65536:65536 --cap-add SYS_PTRACE" in line
    assert argv[-5:-2] == ["--entrypoint", "/bin/sh", "rayproject/ray:2.60.0"]
