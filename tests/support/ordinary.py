"""An ordinary user of this computer: no rights, an empty home, and the core of outlast only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.core_only import core_only
from tests.support.home import kill_9, processes_mentioning
from tests.support.stranger import UID


class OrdinaryUser:
    """Runs bash scripts in the folder `project` of an empty home."""

    def __init__(self, root: Path, command: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.environment = {
            "PATH": f"{command.parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin",
            "HOME": str(root / "home"),
        }

    def write(self, name: str, text: str) -> None:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def bash(
        self, script: str, *, around: Sequence[str] = (), merged: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a script. `around` is a command of root that starts it; `merged` puts stderr into stdout."""
        subprocess.run(["chown", "-R", f"{UID}:{UID}", str(self.root)], check=True)
        as_user = ["setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups"]
        return subprocess.run(
            [*around, *as_user, "bash", "-c", script],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merged else subprocess.PIPE,
            text=True,
            timeout=280,
            check=False,
        )


@contextmanager
def ordinary_user() -> Iterator[OrdinaryUser]:
    """Make a user with an empty home; skip the test if this computer cannot."""
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    if not os.access(python, os.X_OK) or not shutil.which("setpriv"):
        pytest.skip(f"`{python}` and `setpriv` are needed to run outlast as another user")
    root = Path(tempfile.mkdtemp(prefix="outlast-ordinary-"))
    try:
        user = OrdinaryUser(root, core_only(root / "core", python=python))
        for folder in ("project", "home"):
            (root / folder).mkdir()
        if user.bash("outlast --version").returncode:
            pytest.skip("another user cannot read this clone")
        yield user
    finally:
        # Supervisors and servers in the background would write to the home again.
        for pid in processes_mentioning(str(root)):
            kill_9(pid)
        shutil.rmtree(root, ignore_errors=True)
