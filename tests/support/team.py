"""A user's computer with a workspace and a cloud; no server, machine or mount of a test outlives it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.local.engines import SERVERS
from outlast.clouds.resources import Engine
from tests.support.home import Home

ENGINES: list[Engine] = ["mysql", "postgres"]


def needs_engine(engine: Engine) -> None:
    if missing := SERVERS[engine].missing():
        pytest.skip(f"`{missing}` is not installed: apt install {SERVERS[engine].package}")
    if not shutil.which("openssl"):
        pytest.skip("`openssl` is not installed")


class Team(Home):
    """A home in which commands are expected to work."""

    def done(self, *argv: str, timeout_s: float = 90.0, **environment: str) -> str:
        answer = self.outlast(*argv, timeout_s=timeout_s, **environment)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def refused(self, code: int, *argv: str) -> str:
        answer = self.outlast(*argv, timeout_s=90.0)
        assert answer.returncode == code, (answer.returncode, answer.stdout, answer.stderr)
        assert "Traceback" not in answer.stderr
        return answer.stdout + answer.stderr

    def clean(self) -> None:
        for mount in Path("/proc/self/mounts").read_text().splitlines():
            if (place := mount.split()[1]).startswith(str(self.root)):
                subprocess.run(["umount", "-l", place], check=False)
        for database in self.cloud.databases.list_all():
            self.cloud.databases.delete(database.name)
        super().clean()


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    team = Team(tmp_path)
    yield team
    team.clean()
