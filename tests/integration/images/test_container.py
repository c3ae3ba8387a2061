"""A command in a container: the engine's arguments, mounts, variables and error messages."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outlast.agent import oci
from outlast.agent.attempt import hopeless
from outlast.agent.container import (
    Container,
    ContainerUnavailable,
    Engine,
    command_line,
    find_engine,
    folders,
    inner_environment,
    prepare,
)
from outlast.agent.paths import AttemptPaths
from outlast.errors import SpecError
from outlast.spec.parse import parse

DOCKER = Engine(kind="docker", program="/bin/docker")
PODMAN = Engine(kind="podman", program="/bin/podman")


def paths(home: str = "/h", *, checkpoints: str = "") -> AttemptPaths:
    return AttemptPaths(
        home=home,
        code=f"{home}/work",
        checkpoints=checkpoints or f"{home}/work/ckpt",
        outputs=f"{home}/work/outputs",
        cache="/cache",
        notice_file=f"{home}/signals/notice.json",
        done_file=f"{home}/signals/done.json",
        metrics_file=f"{home}/signals/metrics.jsonl",
    )


def container(user: int = 1000, *, gpus: bool = False, where: AttemptPaths | None = None) -> Container:
    return Container(
        image="python:3.12", name="outlast-r-1-a1", paths=where or paths(), user=user, group=user, gpus=gpus
    )


def after(argv: list[str], option: str) -> list[str]:
    return [argv[number + 1] for number, word in enumerate(argv) if word == option]


def test_docker_gets_the_whole_command_line() -> None:
    assert command_line(DOCKER, container(), ["python", "train.py"], {"OUTLAST_RUN": "r-1"}) == [
        *("/bin/docker", "run", "--rm", "--name", "outlast-r-1-a1"),
        *("--network", "host", "--ipc", "host", "--pid", "host"),
        *("--user", "1000:1000"),
        *("--mount", "type=bind,source=/cache,target=/cache"),
        *("--mount", "type=bind,source=/h/signals,target=/h/signals"),
        *("--mount", "type=bind,source=/h/work,target=/h/work"),
        *("--workdir", "/h/work", "--env", "OUTLAST_RUN"),
        *("--entrypoint", "python", "python:3.12", "train.py"),
    ]


@pytest.mark.parametrize(
    ("engine", "user", "gpus", "there", "absent"),
    [
        (DOCKER, 1000, True, ["--gpus", "all"], "nvidia.com/gpu=all"),
        (PODMAN, 1000, True, ["--device", "nvidia.com/gpu=all"], "--gpus"),
        (PODMAN, 1000, False, ["--userns", "keep-id"], "--device"),
        (PODMAN, 0, False, ["--user", "0:0"], "--userns"),
        (DOCKER, 0, False, ["--user", "0:0"], "--userns"),
    ],
)
def test_each_engine_gets_its_arguments(engine: Engine, user: int, gpus: bool, there: list[str], absent: str) -> None:
    argv = command_line(engine, container(user, gpus=gpus), ["true"], ())
    assert " ".join(there) in " ".join(argv)
    assert absent not in argv


def test_a_path_with_a_comma_and_a_quote_is_one_field() -> None:
    argv = command_line(DOCKER, container(where=paths('/a,"b')), ["true"], ())
    assert '"source=/a,""b/work"' in " ".join(after(argv, "--mount"))


def test_no_value_of_a_variable_is_on_the_command_line() -> None:
    argv = command_line(DOCKER, container(), ["true"], {"TOKEN": "hush"})
    assert after(argv, "--env") == ["TOKEN"]
    assert "hush" not in " ".join(argv)


def test_a_checkpoint_folder_outside_of_the_code_is_mounted_as_well() -> None:
    assert folders(paths(checkpoints="/h/checkpoints")) == ["/cache", "/h/checkpoints", "/h/signals", "/h/work"]


def test_programs_come_from_the_image_unless_the_user_sets_path() -> None:
    outside = {"PATH": "/machine", "HOME": "/machine", "OUTLAST_RUN": "r-1", "LD_LIBRARY_PATH": "/machine"}
    root = container(0)
    assert inner_environment(root, outside) == {"OUTLAST_RUN": "r-1"}
    # An ordinary user has no home in the image.
    assert inner_environment(container(1000), outside) == {"OUTLAST_RUN": "r-1", "HOME": "/h/signals/home"}
    wants = Container(image="i", name="n", paths=paths(), user=0, group=0, wanted=("PATH",))
    assert inner_environment(wants, outside)["PATH"] == "/machine"


def test_a_machine_without_an_engine_gets_an_install_hint() -> None:
    with pytest.raises(ContainerUnavailable, match="neither `docker` nor `podman`") as raised:
        find_engine("python:3.12", which=lambda _: None)
    assert "packages" in raised.value.hint
    with pytest.raises(ContainerUnavailable, match="no `runc`"):
        find_engine("oci:/opt/root", which=lambda _: None)
    result = hopeless(raised.value)
    assert result.hopeless
    assert not result.finished


def test_docker_comes_before_podman() -> None:
    assert find_engine("a:b", which=lambda name: f"/bin/{name}") == DOCKER
    assert find_engine("a:b", which=lambda name: f"/bin/{name}" if name == "podman" else None) == PODMAN


def test_a_broken_engine_is_reported_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text("#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ContainerUnavailable, match="does not work on this machine: Cannot connect to the daemon"):
        prepare("python:3.12", print)


def test_an_image_that_no_registry_has_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\n[ "$1" = version ] || { echo "manifest unknown" >&2; exit 1; }\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    reported: list[str] = []
    with pytest.raises(ContainerUnavailable, match="cannot pull `nothing:here`: manifest unknown"):
        prepare("nothing:here", reported.append)
    assert reported == ["fetching the container image nothing:here"]


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        ((), "has no folder"),
        (("root",), "is not a root file system"),
        (("root", "root/config.json"), "cannot be read"),
    ],
)
def test_an_invalid_root_file_system_is_refused(tmp_path: Path, made: tuple[str, ...], complaint: str) -> None:
    for name in made:
        path = tmp_path / name
        path.write_text("{") if name.endswith(".json") else path.mkdir()
    with pytest.raises(ContainerUnavailable, match=complaint):
        oci.root_of(str(tmp_path / "root"), ContainerUnavailable)


def test_a_bundle_gives_its_root_and_its_variables(tmp_path: Path) -> None:
    (tmp_path / "rootfs/bin").mkdir(parents=True)
    (tmp_path / "config.json").write_text(
        '{"root": {"path": "rootfs", "readonly": false}, "process": {"env": ["A=1"]}}'
    )
    made = oci.config(
        str(tmp_path),
        ["x"],
        mounts=["/w"],
        folder="/w",
        environment={"B": "2"},
        user=0,
        group=0,
        error=ContainerUnavailable,
    )
    assert made["root"] == {"path": str(tmp_path / "rootfs"), "readonly": False}
    assert {"A=1", "B=2"} <= set(made["process"]["env"])
    # The container shares the network and the process namespace.
    assert [space["type"] for space in made["linux"]["namespaces"]] == ["mount"]


def test_an_ordinary_user_stays_the_same_user_outside(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    made = oci.config(
        str(tmp_path), ["x"], mounts=[], folder="/", environment={}, user=7, group=8, error=ContainerUnavailable
    )
    assert made["linux"]["uidMappings"] == [{"containerID": 0, "hostID": 7, "size": 1}]
    assert made["process"]["user"] == {"uid": 0, "gid": 0}


@pytest.mark.parametrize(
    "name", ["python:3.12", "ghcr.io/acme/train:v1", "localhost:5000/a/b", "oci:/opt/root", "a@sha256:" + "0" * 64]
)
def test_valid_image_names_are_accepted(name: str) -> None:
    assert parse({"command": "true", "machine": {"container": name}}).machine.container == name


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("--privileged", "invalid container image"),
        ("a b", "invalid container image"),
        ("oci:root", "full path"),
        ("", "empty"),
    ],
)
def test_invalid_image_names_are_refused(name: str, complaint: str) -> None:
    with pytest.raises(SpecError) as raised:
        parse({"command": "true", "machine": {"container": name}})
    assert "[machine] container" in raised.value.problems[0]
    assert complaint in raised.value.problems[0]
