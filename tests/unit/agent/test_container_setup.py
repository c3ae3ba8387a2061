"""Containers on machines of public clouds: the engine is installed, and registries get the machine's own login."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.wheels import served

from outlast.agent.container import ContainerUnavailable, qualified
from outlast.agent.container_setup import engine_for, registry_of
from outlast.agent.ec2 import Ec2Instance
from outlast.agent.instance import GceInstance, Notice
from outlast.code.record import CodeRecord
from outlast.spec.parse import parse
from outlast.workspace import RunRequest

PODMAN = """#!/bin/sh
echo "$@" >> {log}
case "$1" in
login) cat >> {log}; echo >> {log} ;;
image) exit 1 ;;
esac
"""
# Installs the engine above, as apt would.
APT = """#!/bin/sh
echo "apt $@" >> {log}
case "$*" in
*install*) [ -e {broken} ] && {{ echo "E: Unable to fetch some archives" >&2; exit 100; }}
    cp {folder}/podman.deb {folder}/bin/podman && chmod +x {folder}/bin/podman ;;
esac
"""


class Machine:
    """A machine whose registries are at registry.example."""

    def attribute(self, name: str, default: str = "") -> str:
        return default

    def wait_for_notice(self, timeout_s: float) -> Notice | None:
        return None

    def address(self) -> str:
        return "10.0.0.1"

    def secrets(self, name: str) -> dict[str, str]:
        return {}

    def delete_self(self) -> None:
        pass

    def registry_login(self, host: str) -> tuple[str, str] | None:
        return ("robot", "pass word") if host == "registry.example" else None


class Bed:
    """A folder of programs, instead of those of this computer."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.reported = folder, folder / "log", list[str]()
        (folder / "bin").mkdir()
        self.log.touch()
        self.broken = folder / "broken"
        (folder / "podman.deb").write_text(PODMAN.format(log=self.log))
        self.program("apt-get", APT.format(log=self.log, folder=folder, broken=self.broken))
        for name in ("sh", "cp", "chmod", "cat"):
            os.symlink(f"/bin/{name}", folder / "bin" / name)

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def engine(self, image: str, *, gpu: str = "") -> str:
        table = {"name": "r", "command": "true", "machine": {"container": image, **({"gpu": gpu} if gpu else {})}}
        request = RunRequest(run="r-1", spec=parse(table), code=CodeRecord())
        found = engine_for(request, self.reported.append, instance=Machine())
        assert found is not None
        return found.kind

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("outlast.agent.apt._PAUSE_S", 0.0)
    return Bed(tmp_path)


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="outlast installs an engine only as root")
without_engine = pytest.mark.skipif(
    any(os.path.exists(f"/usr/sbin/{name}") for name in ("docker", "podman")), reason="this computer has an engine"
)


@as_root
@without_engine
def test_podman_is_installed_on_an_image_without_an_engine(bed: Bed) -> None:
    assert bed.engine("python:3.12") == "podman"
    update, install, *rest = bed.calls
    assert update.endswith(" update")
    assert install.endswith(" install --no-install-recommends podman")
    assert rest[-1] == "pull docker.io/library/python:3.12", "podman has no default registry"
    assert bed.reported[0] == "installing podman, because this image has no container engine"


@as_root
@without_engine
def test_a_mirror_that_stays_unreachable_ends_the_run_with_the_reason(bed: Bed) -> None:
    bed.broken.touch()
    with pytest.raises(ContainerUnavailable, match="cannot install podman: E: Unable to fetch") as problem:
        bed.engine("python:3.12")
    assert "[machine] image" in problem.value.hint
    assert sum(line.endswith("podman") for line in bed.calls) == 3


@without_engine
def test_an_image_without_apt_is_named(bed: Bed) -> None:
    (bed.folder / "bin" / "apt-get").unlink()
    with pytest.raises(ContainerUnavailable, match="neither `docker` nor `podman`"):
        bed.engine("python:3.12")


def test_a_private_registry_gets_the_machines_login_through_a_pipe(bed: Bed) -> None:
    bed.program("docker", PODMAN.format(log=bed.log))
    assert bed.engine("registry.example/team/train:1") == "docker"
    assert bed.calls[:2] == ["login --username robot --password-stdin registry.example", "pass word"]
    assert bed.calls[-1] == "pull registry.example/team/train:1"
    bed.log.write_text("")
    bed.engine("other.example/team/train:1")
    assert not any(line.startswith("login") for line in bed.calls)


without_toolkit = pytest.mark.skipif(os.path.exists("/etc/cdi/nvidia.yaml"), reason="this computer has the toolkit")


@without_toolkit
def test_a_container_without_the_nvidia_toolkit_does_not_train_on_the_processor(bed: Bed) -> None:
    (bed.folder / "bin" / "apt-get").unlink()
    for kind in ("podman", "docker"):
        bed.program(kind, PODMAN.format(log=bed.log))
        with pytest.raises(ContainerUnavailable, match=f"{kind} reaches GPUs through the NVIDIA Container Toolkit"):
            bed.engine("python:3.12", gpu="T4")


@as_root
@without_toolkit
@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_the_nvidia_toolkit_is_installed_where_it_is_missing(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    bed.program(kind, PODMAN.format(log=bed.log))
    for name in ("nvidia-ctk", "systemctl"):
        bed.program(f"{name}.deb", f'#!/bin/sh\necho "{name} $@" >> {bed.log}\n')
    bed.program("systemctl", (bed.folder / "bin/systemctl.deb").read_text())
    # apt brings the program of the toolkit.
    brings = f"cp {bed.folder}/bin/nvidia-ctk.deb {bed.folder}/bin/nvidia-ctk"
    bed.program("apt-get", f'#!/bin/sh\necho "apt $@" >> {bed.log}\ncase "$*" in *install*) {brings} ;; esac\n')
    (mirror := bed.folder / "mirror").mkdir()
    (mirror / "gpgkey").write_text("-----BEGIN PGP PUBLIC KEY BLOCK-----\n")
    monkeypatch.setattr("outlast.agent.apt._KEYS", str(bed.folder / "keys"))
    monkeypatch.setattr("outlast.agent.apt._SOURCES", str(bed.folder / "sources"))
    with served(mirror) as url:
        monkeypatch.setattr("outlast.agent.container_setup._NVIDIA", url)
        assert bed.engine("python:3.12", gpu="T4") == kind
    listed = (bed.folder / "sources/nvidia-container-toolkit.list").read_text()
    key = bed.folder / "keys/nvidia-container-toolkit.asc"
    assert listed == f"deb [signed-by={key}] {url}/stable/deb/$(ARCH) /\n"
    assert key.read_text().startswith("-----BEGIN PGP")
    assert any(call.endswith("install --no-install-recommends nvidia-container-toolkit") for call in bed.calls)
    then = "systemctl restart docker" if kind == "docker" else "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    assert then in bed.calls


@as_root
@without_toolkit
def test_a_toolkit_that_cannot_be_fetched_is_named(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.program("podman", PODMAN.format(log=bed.log))
    monkeypatch.setattr("outlast.agent.container_setup._NVIDIA", "http://127.0.0.1:1")
    with pytest.raises(ContainerUnavailable, match=r"cannot be installed: http://127\.0\.0\.1:1/gpgkey") as problem:
        bed.engine("python:3.12", gpu="T4")
    assert "nvidia-container-toolkit" in problem.value.hint


def test_a_machine_has_a_login_for_the_registries_of_one_cloud_only() -> None:
    for host in ("registry.example", "docker.io", "evil-pkg.dev", "1234.dkr.ecr.us-east-1.amazonaws.com.evil.example"):
        assert GceInstance("127.0.0.1:1").registry_login(host) is None
        assert Ec2Instance().registry_login(host) is None
    # These ask the metadata server for the machine's account, which this computer lacks.
    with pytest.raises(OSError, match="refused"):
        GceInstance("127.0.0.1:1").registry_login("europe-docker.pkg.dev")


@pytest.mark.parametrize(
    ("image", "full", "registry"),
    [
        ("python:3.12", "docker.io/library/python:3.12", ""),
        ("rayproject/ray:2.60", "docker.io/rayproject/ray:2.60", ""),
        ("localhost/mine", "localhost/mine", "localhost"),
        ("registry:5000/a/b", "registry:5000/a/b", "registry:5000"),
        ("us-docker.pkg.dev/p/r/i@sha256:0", "us-docker.pkg.dev/p/r/i@sha256:0", "us-docker.pkg.dev"),
    ],
)
def test_the_registry_of_an_image(image: str, full: str, registry: str) -> None:
    assert qualified(image) == full
    assert registry_of(image) == registry
