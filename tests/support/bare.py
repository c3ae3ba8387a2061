"""Bare machines: a minimal Debian 12 root, as bare as the images of Google and Amazon, for machines of mode `root`.

It has `python3` and no `python`, no pip, no ensurepip, no compiler, no git and no docker; a variant has no Python. The
suite is the first day of a user: every cloud passes it on such machines.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.kit.uv import run_uv
from outlast.workspace import open_workspace
from tests.support.home import Home
from tests.support.wheels import host_address, served

# libexpat1: for a Python that a test brings.
PACKAGES = ("ca-certificates", "curl", "openssl", "libexpat1")
FOLDER = Path(__file__).resolve().parents[2] / ".venv"
# Names the modules that it loads; its first attempt waits until its machine is preempted.
PROGRAM = """
import importlib, os, sys, time
print("loaded", *(importlib.import_module(name).__name__ for name in sys.argv[1:]), flush=True)
while os.environ["OUTLAST_ATTEMPT"] == "1" and os.environ["OUTLAST_RUN"].startswith("preempted"):
    time.sleep(0.1)
"""
LOCKED = """
[project]
name = "study"
version = "1"
requires-python = ">=3.11"
dependencies = ["numpy", "scikit-learn"]
"""


def bare_root(folder: Path, *, python: bool = True) -> str:
    """Return the path of the bare root, built on first use. Skips the test where it cannot be had."""
    if os.geteuid() != 0:
        pytest.skip("a bare root needs root")
    if reason := why_not("root", root=str(folder)):
        pytest.skip(f"machines of mode root do not work here: {reason}")
    if shutil.which("debootstrap") is None:
        pytest.skip("debootstrap is not installed")
    root = FOLDER / ("bare-debian-12" if python else "bare-debian-12-without-python")
    FOLDER.mkdir(exist_ok=True)
    with open(f"{root}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            _build(Path(f"{root}.part"), ("python3", *PACKAGES) if python else PACKAGES)
            os.rename(f"{root}.part", root)
    assert (root / "usr/bin/python3").exists() == python
    return str(root)


def _build(folder: Path, packages: tuple[str, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    argv = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}", "bookworm", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"debootstrap failed: {done.stdout.strip().splitlines()[-1:]}")
    # Certificates of this computer: the package index may be behind a proxy with its own.
    target = folder / "etc/ssl/certs/ca-certificates.crt"
    target.write_bytes(Path("/etc/ssl/certs/ca-certificates.crt").read_bytes())
    assert not (folder / "usr/bin/python").exists()
    assert not (folder / "usr/bin/pip").exists()


class Bed:
    """A user's computer, and a cloud whose machines are bare. `boot_from` sets the root of its next machines.

    With `names` machines reach the package index; without, their metadata server and their bucket alone.
    """

    def __init__(
        self,
        home: Home,
        *,
        cloud: tuple[str, ...],
        local: LocalCloud,
        boot_from: Callable[[str, bool], None],
        # New projects and accounts have no quota for GPUs.
        allow_gpus: Callable[[], None],
    ) -> None:
        self.home, self.local, self._boot_from = home, local, boot_from
        self._run = ("run", "--cloud", *cloud)
        self.allow_gpus = allow_gpus
        self.root = bare_root(home.root)
        home.workspace = open_workspace(home.environment["OUTLAST_WORKSPACE"])
        for zone in local.zone_settings():
            local.set_zone(zone, grace_s=2.0)
        self.boot(names=False)

    def boot(self, *, names: bool, root: str = "") -> None:
        self._boot_from(root or self.root, names)

    def run(self, *argv: str) -> str:
        """Run a command on a bare machine; return its output with the messages of outlast."""
        answer = self.home.outlast(*self._run, *argv, timeout_s=300.0)
        self.code = answer.returncode
        return answer.stdout + answer.stderr

    def start(self, *argv: str) -> subprocess.Popen[str]:
        return self.home.start(*self._run, *argv)

    def is_stored(self) -> bool:
        """Return whether the workspace has a packed environment."""
        return any(entry.key.endswith(".json") for entry in self.home.workspace.bucket.list("environments/"))


def write_mirror(folder: Path, root: str, url: str) -> str:
    """Write a list of downloads with one Python, packed from a root that has it; return the list's name."""
    files = {"python/bin/python3.11": "usr/bin/python3.11", "python/lib/python3.11": "usr/lib/python3.11"}
    with tarfile.open(folder / "python.tar.gz", "w:gz", compresslevel=1) as archive:
        for name, source in files.items():
            archive.add(os.path.join(root, source), name, filter=lambda one: None if one.issym() else one)
    one = {
        "name": "cpython",
        "arch": {"family": platform.machine(), "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": 3,
        "minor": 11,
        "patch": 2,
        "prerelease": "",
        "url": f"{url}/python.tar.gz",
        "sha256": None,
        "variant": None,
        "build": "20260101",
    }
    (folder / "pythons.json").write_text(json.dumps({f"cpython-3.11.2-linux-{platform.machine()}-gnu": one}))
    return "pythons.json"


class BareSuite:
    """The first line of a program runs with its packages. A subclass provides the fixture `bed`."""

    def test_a_project_without_packages_needs_the_bucket_alone(self, bed: Bed) -> None:
        bed.home.write("hello.py", "import sys\nprint('executable', sys.executable)\n")
        output = bed.run("--", "python", "hello.py")
        assert bed.code == 0, output
        assert "executable /opt/outlast/environments/" in output

    def test_a_misspelled_command_is_tried_on_one_machine(self, bed: Bed) -> None:
        output = bed.run("--", "pyhton", "train.py")
        assert bed.code == 127, output
        assert "cannot run `pyhton`: No such file or directory" in output
        assert "attempt 2" not in output

    def test_a_missing_module_is_tried_on_one_machine_and_named(self, bed: Bed) -> None:
        bed.home.write("train.py", "import torch\n")
        output = bed.run("--", "python", "train.py")
        assert bed.code == 1, output
        assert "the Python module `torch` is not installed" in output
        assert "attempt 2" not in output

    def test_a_gpu_that_is_not_visible_fails_the_run_at_once(self, bed: Bed) -> None:
        bed.allow_gpus()
        output = bed.run("--gpu", "T4", "--", "python", "-c", "print(1)")
        assert bed.code != 0, output
        assert "this image has no NVIDIA driver, and the run needs 1 GPU" in output
        assert "attempt 2" not in output

    def test_requirements_are_built_once_and_then_come_from_the_workspace(self, bed: Bed) -> None:
        bed.home.write("requirements.txt", "cowsay\n")
        bed.home.write("train.py", PROGRAM)
        bed.boot(names=True)
        first = bed.run("--", "python", "train.py", "cowsay")
        assert bed.code == 0, first
        assert "loaded cowsay" in first
        assert "environment: requirements.txt" in first
        # The second machine reaches no package index.
        bed.boot(names=False)
        second = bed.run("--", "python", "train.py", "cowsay")
        assert bed.code == 0, second
        assert "loaded cowsay" in second
        assert "cached in the workspace" in second
        # Nor does an installation in a run, which says so.
        late = bed.run("--", "bash", "-c", "pip install six")
        assert bed.code != 0, late
        assert "this machine reaches no package index" in late

    def test_an_image_without_python_gets_one_from_a_mirror(self, bed: Bed, tmp_path: Path) -> None:
        bed.home.write("hello.py", "import sys, outlast\nprint('version', sys.version_info[:2], sys.prefix)\n")
        (folder := tmp_path / "mirror").mkdir()
        bed.boot(names=False, root=bare_root(bed.home.root, python=False))
        with served(folder, host=host_address()) as url:
            listed = f"{url}/{write_mirror(folder, bed.root, url)}"
            output = bed.run("--set", f"environment.python_mirror={listed}", "--", "python", "hello.py")
        assert bed.code == 0, output
        assert "version (3, 11) /opt/outlast/environments/" in output

    def test_an_example_runs_unchanged(self, bed: Bed) -> None:
        shutil.copytree(FOLDER.parent / "examples" / "survival", bed.home.project, dirs_exist_ok=True)
        output = bed.run("-p", "train_steps=200", "-p", "pause=0")
        assert bed.code == 0, output

    def test_a_lock_survives_a_preemption_and_then_an_index_that_does_not_answer(self, bed: Bed) -> None:
        bed.home.write("pyproject.toml", LOCKED)
        bed.home.write("train.py", PROGRAM)
        run_uv(["lock"], what="locking the project", cwd=str(bed.home.project))
        bed.boot(names=True)
        command = ("--", "python", "train.py", "numpy", "sklearn")
        runner = bed.start("--name", "preempted", *command)
        bed.home.until(bed.is_stored, "the packed environment", within_s=240.0)
        # From here on no machine reaches the package index: the environment can only come from the workspace.
        bed.boot(names=False)
        assert bed.home.outlast("preempt", "preempted-1").returncode == 0
        output, _ = runner.communicate(timeout=600)
        assert runner.returncode == 0, output
        assert output.count("loaded numpy sklearn") == 2, output
        assert "uv.lock" in output
        assert [one.outcome for one in bed.home.state("preempted-1").attempts] == ["preempted", "finished"]
        again = bed.run("--name", "again", *command)
        assert bed.code == 0, again
        assert "loaded numpy sklearn" in again
