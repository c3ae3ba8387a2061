"""A home of its own for every test, and the real ssh that builds need."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import Home


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    (tmp_path / "home").mkdir()
    yield home
    home.clean()


@pytest.fixture
def shop(home: Home) -> Home:
    """A home where images can be built."""
    for program in ("ssh", "ssh-keygen"):
        if shutil.which(program) is None:
            pytest.skip("needs the Debian package openssh-client")
    if shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        pytest.skip("needs the Debian package openssh-server")
    return home
