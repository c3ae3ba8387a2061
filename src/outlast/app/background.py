"""Background supervisors and sweep drivers: detached processes that exit when no work is left."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from typing import IO

from outlast import private
from outlast.app.process_logs import rotate
from outlast.workspace import Workspace


def log_path() -> str:
    return os.path.expanduser("~/.outlast/supervisor.log")


def start_supervisor(workspace: Workspace) -> int:
    """Start a supervisor and return its process id. A surplus supervisor exits by itself."""
    return _start(["supervise", "--until-idle", "--background", "--workspace", workspace.url])


def start_driver(workspace: Workspace, sweep: str) -> int:
    """Start a driver of a sweep, which also supervises its runs, and return its process id."""
    return _start(["sweep", "resume", sweep, "--background", "--workspace", workspace.url])


def _start(command: list[str]) -> int:
    argv = [sys.executable, "-P", "-m", "outlast.cli", *command]
    with _open_log() as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    return process.pid


def _open_log() -> IO[bytes]:
    """Open the log; without write access to the home folder the supervisor runs without a log."""
    path = log_path()
    try:
        private.folder()
        log = private.open_log(path)
        with suppress(OSError):
            rotate(path)
        return log
    except OSError:
        return open(os.devnull, "ab")
