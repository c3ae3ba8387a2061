"""Starts supervisors and drivers that outlive this command: detached, quiet, gone when nothing is left to do."""

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
    """The process id of the new supervisor. One too many leaves by itself."""
    return _start(["supervise", "--until-idle", "--background", "--workspace", workspace.url])


def start_driver(workspace: Workspace, sweep: str) -> int:
    """The process id of a driver of a sweep, which supervises its runs, too."""
    return _start(["sweep", "resume", sweep, "--background", "--workspace", workspace.url])


def _start(command: list[str]) -> int:
    argv = [sys.executable, "-P", "-m", "outlast.cli", *command]
    with _open_log() as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
        )
    return process.pid


def _open_log() -> IO[bytes]:
    """A home that cannot be written to costs the supervisor its log, and no run its supervisor."""
    path = log_path()
    try:
        private.folder()
        log = private.open_log(path)
        with suppress(OSError):
            rotate(path)
        return log
    except OSError:
        return open(os.devnull, "ab")
