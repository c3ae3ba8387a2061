"""Filestore and Cloud Source Repositories with the real gcloud and git."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import variables, write_files
from tests.support.emulator import Caller


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    endpoint = Endpoint(str(tmp_path_factory.mktemp("served")))
    endpoint.start()
    write_files(endpoint.root, endpoint.url)
    yield endpoint
    endpoint.stop()


def run(served: Endpoint, script: str, folder: Path) -> str:
    own = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "GIT_CONFIG_NOSYSTEM": "1"}
    names = {f"GIT_{who}_{what}": "tester" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**own, **names, **variables(served.root, served.url)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_pushed_commits_are_cloned(served: Endpoint, tmp_path: Path) -> None:
    call = Caller(served)
    repo = call.json(
        "POST", "/sourcerepo/v1/projects/outlast-local/repos", {"name": "projects/outlast-local/repos/code"}
    )
    output = run(
        served,
        f"""
        git init -q work && cd work && echo 'print(1)' > train.py && git add . && git commit -qm first
        git push -q {repo["url"]} HEAD:refs/heads/master
        cd .. && git clone -q -b master {repo["url"]} copy && cat copy/train.py
        """,
        tmp_path,
    )
    assert output == "print(1)\n"
    assert int(call.json("GET", "/sourcerepo/v1/projects/outlast-local/repos/code")["size"]) > 0
    assert call.refused("POST", "/sourcerepo/v1/projects/outlast-local/repos", {"name": "x/repos/code"})[0] == 409
    assert call.refused("POST", "/sourcerepo/v1/projects/outlast-local/repos", {"name": "x/repos/.."})[0] == 400
    assert call.refused("GET", "/git/outlast-local/nosuch/info/refs?service=git-upload-pack")[0] == 404


@pytest.mark.full
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_creates_lists_clones_and_deletes_repositories(served: Endpoint, tmp_path: Path) -> None:
    output = run(
        served,
        """
        gcloud source repos create trainer
        gcloud source repos list --format 'value(name)'
        gcloud source repos clone trainer
        test -d trainer/.git
        gcloud source repos delete trainer --quiet
        """,
        tmp_path,
    )
    assert "trainer" in output
    assert Caller(served).refused("GET", "/sourcerepo/v1/projects/outlast-local/repos/trainer")[0] == 404


@pytest.mark.full
@pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")
def test_gcloud_creates_lists_describes_and_deletes_shares(served: Endpoint, tmp_path: Path) -> None:
    output = run(
        served,
        """
        gcloud filestore instances create nfs --zone us-central1-a --tier BASIC_HDD --network name=default \\
            --file-share name=volume,capacity=1TB
        gcloud filestore instances list --format 'value(name.basename(),fileShares[0].name,state)'
        gcloud filestore instances describe nfs --zone us-central1-a --format 'value(statusMessage)'
        gcloud filestore instances delete nfs --zone us-central1-a --quiet
        """,
        tmp_path,
    )
    assert "nfs\tvolume\tREADY" in output
    assert "not served by NFS" in output
    assert Caller(served).json("GET", "/file/v1/projects/outlast-local/locations/-/instances") == {"instances": []}
