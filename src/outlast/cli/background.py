"""Starts a supervisor that outlives this command: detached, quiet, gone when nothing is left to do."""

from __future__ import annotations

import os
import subprocess
import sys

from outlast.workspace.workspace import Workspace


def log_path() -> str:
    return os.path.expanduser("~/.outlast/supervisor.log")


def start_supervisor(workspace: Workspace) -> int:
    """The process id of the new supervisor. One too many leaves by itself."""
    path = log_path()
    os.makedirs(os.path.dirname(path), exist_ok=True)
    words = [sys.executable, "-P", "-m", "outlast.cli", "supervise", "--until-idle", "--background"]
    words += ["--workspace", workspace.url]
    with open(path, "ab") as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    return process.pid
