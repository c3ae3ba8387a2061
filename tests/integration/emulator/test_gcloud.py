"""The real gcloud and gsutil with buckets, in unchanged scripts. Skipped if gcloud is not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import variables

pytestmark = [
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


class Shell:
    def __init__(self, endpoint: Endpoint, folder: Path) -> None:
        self.folder = folder
        self._url = endpoint.url
        self._variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            **variables(endpoint.root, endpoint.url),
        }

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-euc", script],
            cwd=self.folder,
            env=self._variables,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def put(self, path: str) -> None:
        """Create a bucket or an empty object without gcloud, which takes seconds."""
        request = urllib.request.Request(f"{self._url}/{path}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def well(self, script: str) -> str:
        """Run a script that must succeed, and return its output."""
        done = self.run(script)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def shell(served: Endpoint, tmp_path: Path) -> Shell:
    return Shell(served, tmp_path)


def make_tree(folder: Path) -> dict[str, bytes]:
    files = {
        "one.txt": b"one\n",
        "empty": b"",
        "sub/two ü.txt": b"two\r",
        "sub/deep/big.bin": os.urandom(1 << 20) * 9,
        "sub/deep/#odd %2F+name": b"odd",
    }
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return files


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.full
def test_folders_are_uploaded_downloaded_and_synchronized(shell: Shell) -> None:
    files = make_tree(shell.folder / "tree")
    shell.well(
        """
        gcloud storage buckets create gs://trees --location=us-central1
        gcloud storage cp -r tree gs://trees/
        mkdir down && gcloud storage cp -r gs://trees/tree down/
        """
    )
    assert read_tree(shell.folder / "down" / "tree") == files
    (shell.folder / "tree" / "one.txt").unlink()
    (shell.folder / "tree" / "new").write_bytes(b"new")
    listed = shell.well(
        """
        gcloud storage rsync -r --delete-unmatched-destination-objects tree gs://trees/tree
        mkdir again && gcloud storage rsync -r gs://trees/tree again
        gcloud storage ls 'gs://trees/tree/**'
        """
    )
    files = {name: body for name, body in files.items() if name != "one.txt"} | {"new": b"new"}
    assert read_tree(shell.folder / "again") == files
    assert sorted(listed.split("\n")[:-1]) == sorted(f"gs://trees/tree/{name}" for name in files)


@pytest.mark.full
def test_a_bucket_is_created_described_and_deleted(shell: Shell) -> None:
    shell.put("staying")  # gcloud reports an empty list as an error
    output = shell.well(
        """
        gcloud storage buckets create gs://described --location=europe-west4 --default-storage-class=nearline
        gcloud storage buckets update gs://described --update-labels=team=one
        gcloud storage buckets describe gs://described --format='value(location,default_storage_class,labels.team)'
        echo hello > file
        gcloud storage cp file gs://described/a/b
        gcloud storage cat gs://described/a/b
        gcloud storage mv gs://described/a/b gs://described/c
        gcloud storage objects update gs://described/c --custom-metadata=key=value
        gcloud storage objects describe gs://described/c --format='value(custom_fields.key,size)'
        gcloud storage du -s gs://described
        gcloud storage rm gs://described/c
        gcloud storage buckets delete gs://described
        gcloud storage ls
        """
    )
    lines = [line.split() for line in output.splitlines()]
    assert lines[:4] == [["EUROPE-WEST4", "NEARLINE", "one"], ["hello"], ["value", "6"], ["6", "gs://described"]]
    assert ["gs://staying/"] in lines
    assert ["gs://described/"] not in lines


@pytest.mark.full
def test_errors_read_as_googles_do(shell: Shell) -> None:
    (shell.folder / "file").write_bytes(b"x")
    shell.put("refusing")
    shell.put("refusing/f")
    taken = shell.run("gcloud storage cp --if-generation-match=0 file gs://refusing/f")
    assert taken.returncode == 1
    assert "pre-conditions you specified did not hold" in taken.stderr
    missing = shell.run("gcloud storage cat gs://refusing/nothing")
    assert missing.returncode == 1
    assert "matched no objects" in missing.stderr
    full = shell.run("gcloud storage buckets delete gs://refusing")
    assert full.returncode == 1
    assert "not empty" in full.stderr


@pytest.mark.soak
def test_gsutil_copies_folders(shell: Shell) -> None:
    if shutil.which("gsutil") is None:
        pytest.skip("gsutil is not installed")
    files = make_tree(shell.folder / "tree")
    shell.put("by-gsutil")
    listed = shell.well(
        """
        gsutil -m cp -r tree gs://by-gsutil/
        mkdir down && gsutil -m rsync -r gs://by-gsutil/tree down
        gsutil ls gs://by-gsutil/tree/
        """
    )
    assert read_tree(shell.folder / "down") == files
    assert "gs://by-gsutil/tree/sub/" in listed.split("\n")
