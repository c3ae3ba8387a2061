"""Starts a supervisor that outlives this command: detached, quiet, gone when nothing is left to do."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

from outlast.workspace.workspace import Workspace


def log_path() -> str:
    return os.path.expanduser("~/.outlast/supervisor.log")


def start_supervisor(workspace: Workspace) -> int:
    """The process id of the new supervisor. One too many leaves by itself."""
    words = [sys.executable, "-P", "-m", "outlast.cli", "supervise", "--until-idle", "--background"]
    words += ["--workspace", workspace.url]
    with _open_log() as log:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    return process.pid


def _open_log() -> IO[bytes]:
    """A home that cannot be written to costs the supervisor its log, and no run its supervisor."""
    path = log_path()
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "ab")
    except OSError:
        return open(os.devnull, "ab")
