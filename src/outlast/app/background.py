"""Background supervisors and sweep drivers: detached processes that exit when no work is left."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

from outlast import private
from outlast.app.process_logs import rotate
from outlast.errors import Damaged, OutlastError
from outlast.workspace import Workspace

# A supervisor that has no lease after this time does not get one: it failed, or another one is in charge.
_STARTING_S = 60.0


def log_path() -> str:
    return os.path.expanduser("~/.outlast/supervisor.log")


# One background supervisor that works and one that stands by. A third would exit, after it has loaded everything.
_SLOTS = 2


class Slot:
    """A file lock that counts the background supervisors of a workspace on this computer.

    The process that starts a supervisor takes it, and the supervisor inherits it: twenty submits at once start two.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def take(cls, url: str) -> Slot | None:
        """Return a free slot; None if all are taken. Raises OSError."""
        name = hashlib.sha256(url.encode()).hexdigest()[:24]
        folder = private.folder("supervisors")
        for number in range(_SLOTS):
            slot = cls(os.open(f"{folder}/{name}-{number}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            if slot.lock():
                return slot
            os.close(slot.handle)
        return None

    def lock(self) -> bool:
        """Take it, if it is free or ours; return whether that worked."""
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.handle, fcntl.LOCK_UN)


def start_supervisor(workspace: Workspace) -> int:
    """Start a supervisor, unless two of this workspace run in the background; return its process id, 0 for none.

    Called after a run was submitted: a supervisor that is about to exit gives up its slot, and then looks for new runs.
    """
    command = ["supervise", "--until-idle", "--background", "--workspace", workspace.url]
    try:
        slot = Slot.take(workspace.url)
    except OSError:
        return _start(command)  # without write access to the home folder
    if slot is None:
        return 0
    try:
        pid = _start([*command, "--slot", str(slot.handle)], keep=(slot.handle,))
    finally:
        os.close(slot.handle)  # the lock belongs to the supervisor now
    with suppress(OSError):  # only a hint for `starting_supervisor`
        path = _started_path(workspace)
        with open(f"{path}.{pid}", "w", encoding="ascii") as file:
            file.write(str(pid))
        os.replace(f"{path}.{pid}", path)
    return pid


def has_new_work(workspace: Workspace) -> bool:
    """Return whether a run has a wakeup that no supervisor has handled."""
    for run in workspace.wakeups():
        # No supervisor handles a damaged story, or a wakeup without a story.
        with suppress(Damaged):
            if workspace.story(run).refresh().exists:
                return True
    return False


def starting_supervisor(workspace: Workspace) -> int:
    """Return the process id of a supervisor that was started here moments ago and is still alive; else 0.

    It takes its lease after a second or more, and until then the workspace does not name it.
    """
    try:
        path = _started_path(workspace)
        if abs(time.time() - os.stat(path).st_mtime) > _STARTING_S:
            return 0
        with open(path, encoding="ascii") as file:
            pid = int(file.read())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return 0
    return pid


def _started_path(workspace: Workspace) -> str:
    digest = hashlib.sha256(workspace.url.encode()).hexdigest()[:16]
    return os.path.join(private.folder("starting"), digest)


def start_driver(workspace: Workspace, sweep: str) -> int:
    """Start a driver of a sweep, which also supervises its runs, and return its process id."""
    return _start(["sweep", "resume", sweep, "--background", "--workspace", workspace.url])


def _start(command: list[str], *, keep: tuple[int, ...] = ()) -> int:
    argv = [sys.executable, "-P", "-m", "outlast.cli", *command]
    with _open_log() as log:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True, pass_fds=keep
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


def supervise_live_runs(workspace: Workspace) -> None:
    """Start a background supervisor if the workspace has live runs. A surplus supervisor exits by itself."""
    if workspace.heartbeats() or workspace.wakeups():
        start_supervisor(workspace)


@contextmanager
def ensure_supervised(workspace: Workspace) -> Iterator[None]:
    """Start a background supervisor if Ctrl-C interrupts the submission in the block: a submitted run continues."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OutlastError):
            supervise_live_runs(workspace)
        raise
