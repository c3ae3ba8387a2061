"""Fixtures: a temporary home with its ssh keys, and one machine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.ssh import find_sshd
from tests.integration.sync.far import Far
from tests.support.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    for program in ("ssh", "rsync", "git"):
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not installed")
    if not find_sshd():
        pytest.skip("`sshd` is not installed")
    home = Home(tmp_path)
    keys = str(tmp_path / "home" / "ssh")
    home.environment["OUTLAST_SSH_DIR"] = keys
    monkeypatch.setenv("OUTLAST_SSH_DIR", keys)
    yield home
    home.clean()


@pytest.fixture
def far(home: Home) -> Far:
    return Far(home, "dev")
