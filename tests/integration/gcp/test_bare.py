"""The first day on a real cloud: on bare machines, the first line of a program runs with its packages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from tests.integration.emulator.discovery import Watching
from tests.support.bare import bare_root
from tests.support.gcp import Rehearsal
from tests.support.home import Home

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
PROGRAM = "import sys, cowsay\nprint('executable', sys.executable)\nprint('cowsay', cowsay.__name__)\n"


class Bare:
    """A user's computer, and an emulated Google Cloud whose machines are bare."""

    def __init__(self, folder: Path, watching: Watching, *, names: bool) -> None:
        cloud = LocalCloud(str(folder / "cloud"), mode="root", base=bare_root(folder), base_names=names)
        self.rehearsal = Rehearsal(folder, watching, cloud)
        self.home = Home(folder / "user")
        self.home.environment |= self.rehearsal.variables
        self.home.environment["OUTLAST_WORKSPACE"] = "gs://bare-box/ws"
        before = dict(os.environ)
        os.environ.update(self.rehearsal.variables)
        self.rehearsal.cloud().client.call("storage", "POST", "b", query={"project": "p"}, body={"name": "bare-box"})
        os.environ.clear()
        os.environ.update(before)

    def run(self, *argv: str) -> str:
        """Run a command on a bare machine; return its output with the messages of outlast."""
        answer = self.home.outlast("run", "--cloud", "gcp", "--zone", "us-central1-a", *argv, timeout_s=300.0)
        self.code = answer.returncode
        return answer.stdout + answer.stderr


@pytest.fixture
def closed(tmp_path: Path, watching: Watching) -> Iterator[Bare]:
    """Machines that reach their metadata server and their bucket, and nothing else."""
    bare = Bare(tmp_path, watching, names=False)
    yield bare
    bare.rehearsal.close()


@pytest.fixture
def connected(tmp_path: Path, watching: Watching) -> Iterator[Bare]:
    """Machines that also reach the package index."""
    bare = Bare(tmp_path, watching, names=True)
    yield bare
    bare.rehearsal.close()


@pytest.mark.full
def test_a_project_without_packages_needs_the_bucket_alone(closed: Bare) -> None:
    closed.home.write("hello.py", "import sys\nprint('executable', sys.executable)\n")
    output = closed.run("--", "python", "hello.py")
    assert closed.code == 0, output
    assert "executable /opt/outlast/environments/" in output


@pytest.mark.full
def test_a_misspelled_command_is_tried_on_one_machine(closed: Bare) -> None:
    output = closed.run("--", "pyhton", "train.py")
    assert closed.code == 127, output
    assert "cannot run `pyhton`: No such file or directory" in output
    assert "attempt 2" not in output


@pytest.mark.full
def test_a_missing_module_is_tried_on_one_machine_and_named(closed: Bare) -> None:
    closed.home.write("train.py", "import torch\n")
    output = closed.run("--", "python", "train.py")
    assert closed.code == 1, output
    assert "the Python module `torch` is not installed" in output
    assert "attempt 2" not in output


@pytest.mark.full
def test_a_gpu_that_is_not_visible_fails_the_run_at_once(closed: Bare) -> None:
    output = closed.run("--gpu", "T4", "--", "python", "-c", "print(1)")
    assert closed.code != 0, output
    assert "this image has no NVIDIA driver, and the run needs 1 GPU" in output
    assert "attempt 2" not in output


@pytest.mark.full
def test_packages_are_built_once_and_then_come_from_the_workspace(connected: Bare) -> None:
    connected.home.write("requirements.txt", "cowsay\n")
    connected.home.write("train.py", PROGRAM)
    first = connected.run("--", "python", "train.py")
    assert connected.code == 0, first
    assert "cowsay cowsay" in first
    # The second machine reaches no package index.
    connected.rehearsal.local.base_names = False
    second = connected.run("--", "python", "train.py")
    assert connected.code == 0, second
    assert "cowsay cowsay" in second
