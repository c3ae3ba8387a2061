"""Disks that are full and folders that are read-only: a clear error, and the checkpoint before it still good.

Real file systems in a private mount namespace, so that they also limit root.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

_WORDS = ["unshare", "--map-root-user", "--mount", "bash", "-ec"]


@cache
def _may_mount() -> bool:
    try:
        tried = subprocess.run([*_WORDS, "mount -t tmpfs none /mnt"], capture_output=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return tried.returncode == 0


def output_of(script: str, folder: Path) -> str:
    """What a Python script prints whose `folder` is a disk of 24 MB; `read_only()` makes it so."""
    if not _may_mount():
        pytest.skip("no mounts of our own here: it takes Linux with user namespaces, or root")
    folder.mkdir()
    begin = (
        "import os, subprocess, sys\n"
        f"folder = {str(folder)!r}\n"
        "def read_only(): subprocess.run(['mount', '-o', 'remount,bind,ro', folder], check=True)\n"
        "def writable(): subprocess.run(['mount', '-o', 'remount,bind,rw', folder], check=True)\n"
    )
    shell = 'mount -t tmpfs -o size=24m none "$1"; exec "$2" -c "$3"'
    argv = [*_WORDS, shell, "bash", str(folder), sys.executable, begin + script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


_TRAINING = """
import outlast
from outlast.trainer.background import SaveFailed
run = outlast.training(folder=folder)
def attempt(step, size):
    try:
        run.save(step, {"step": step, "big": bytes(size)}, wait=True)
        print("saved", step)
    except SaveFailed as problem:
        print(problem.message, "|", problem.hint)
attempt(1, 5_000_000)
"""


def test_a_trainer_on_a_full_disk_gets_a_clear_error_and_continues_when_space_is_free(tmp_path: Path) -> None:
    script = "attempt(2, 40_000_000); print(run.restore()['step']); attempt(3, 5_000_000); print(run.restore()['step'])"
    first, second, held, third, newest = output_of(_TRAINING + script, tmp_path / "disk").splitlines()
    assert first == "saved 1"
    assert "the last checkpoint was not saved: No space left on device: " in second
    assert second.endswith("| the previous one is still valid")
    assert (held, third, newest) == ("1", "saved 3", "3")


def test_a_trainer_in_a_read_only_folder_gets_a_clear_error(tmp_path: Path) -> None:
    script = "read_only(); attempt(2, 1000); print(run.restore()['step']); writable(); attempt(3, 1000)"
    first, second, held, third = output_of(_TRAINING + script, tmp_path / "disk").splitlines()
    assert "was not saved: Read-only file system: " in second
    assert (first, held, third) == ("saved 1", "1", "saved 3")


_WORKSPACE = """
from outlast.errors import OutlastError
from outlast.runs.checkpoints import restore
from outlast.runs.manifest import Manifest, write_manifest
from outlast.store.folder import FolderBucket
from outlast.runs.packs import upload_files
from outlast.store.parts import Parts
from outlast.runs.state import Checkpoint
bucket = FolderBucket(folder + "/workspace")
own = Parts(bucket, "r", 1)
home = os.path.dirname(folder)
def attempt(number, size):
    os.makedirs(home + "/checkpoints", exist_ok=True)
    with open(home + "/checkpoints/model", "wb") as file:
        file.write(os.urandom(size))
    try:
        found = upload_files(own, home + "/checkpoints", ["model"])
        write_manifest(bucket, Manifest(run="r", checkpoint=f"c{number}", attempt=1, files=found))
        print("saved", number)
    except OutlastError as problem:
        print(type(problem).__name__, problem.message, "|", problem.hint)
def back(*numbers):
    known = [Checkpoint(id=f"c{n}", attempt=1, step=None, at=0.0, bytes=0) for n in numbers]
    manifest, problems = restore(bucket, "r", known, home + "/back")
    print(manifest.checkpoint, len(problems))
attempt(1, 5_000_000)
"""


def test_a_workspace_on_a_full_disk_reports_it_and_leaves_no_partial_objects(tmp_path: Path) -> None:
    script = "attempt(2, 40_000_000); back(2, 1); print(os.listdir(folder + '/workspace/.staging'))"
    first, second, held, left = output_of(_WORKSPACE + script, tmp_path / "disk").splitlines()
    assert second.startswith("StoreUnreachable workspace: No space left on device: ")
    assert second.endswith("| make room on the disk of the workspace")
    assert (first, held, left) == ("saved 1", "c1 1", "[]")


def test_a_read_only_workspace_is_reported(tmp_path: Path) -> None:
    script = "read_only(); attempt(2, 5_000_000); back(2, 1); writable(); attempt(3, 5_000_000)"
    first, second, held, third = output_of(_WORKSPACE + script, tmp_path / "disk").splitlines()
    assert second.startswith("WorkspaceError workspace: Read-only file system: ")
    assert "that it can be written" in second
    assert (first, held, third) == ("saved 1", "c1 1", "saved 3")
