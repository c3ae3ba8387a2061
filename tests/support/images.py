"""Fixtures: a temporary home for every test, and the real ssh that builds need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from tests.support.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    yield home
    home.clean()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Home]:
    """A home where images can be built, on machines that share this computer's files: quick, and without root."""
    yield from _shop(tmp_path, "plain" if why_not("pidns", root=str(tmp_path / "cloud")) else "pidns")


@pytest.fixture
def rooted(tmp_path: Path) -> Iterator[Home]:
    """A home whose machines have a root file system of their own."""
    if why := why_not("root", root=str(tmp_path / "cloud")):
        pytest.skip(f"mode `root` does not work here: {why}")
    yield from _shop(tmp_path, "root")


def _shop(tmp_path: Path, mode: str) -> Iterator[Home]:
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip("needs the Debian package openssh-client")
    if shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        pytest.skip("needs the Debian package openssh-server")
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    home.environment["OUTLAST_LOCAL_MODE"] = mode
    home.cloud = LocalCloud(str(tmp_path / "cloud"), mode=mode)
    yield home
    home.clean()
