"""The real console script, with a separate home, workspace and cloud."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast.clouds.local.cloud import LocalCloud

OUTLAST = str(Path(sys.executable).parent / "outlast")


class Console:
    """A user's terminal. `answer` is the result of the last command."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "project"
        self.workspace = root / "workspace"
        self.cloud = root / "cloud"
        self.folder.mkdir()
        self.variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(root / "home"),
            "OUTLAST_WORKSPACE": str(self.workspace),
            "OUTLAST_LOCAL_CLOUD": str(self.cloud),
        }

    def run(self, *argv: str, says: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            [OUTLAST, *argv],
            cwd=self.folder,
            env={**self.variables, **variables},
            input=says,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in answer.stderr, answer.stderr
        return answer

    def well(self, *argv: str, **variables: str) -> str:
        """Return the output of a command that must succeed."""
        answer = self.run(*argv, **variables)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def json(self, *argv: str, **variables: str) -> Any:
        return json.loads(self.run(*argv, "--json", **variables).stdout)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Console]:
    """A console whose machines are deleted at the end of the test."""
    console = Console(tmp_path)
    yield console
    if console.cloud.exists():
        cloud = LocalCloud(str(console.cloud))
        for machine in cloud.machines():
            cloud.delete(machine.name)
