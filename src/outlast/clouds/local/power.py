"""Making machines and switching them on and off, from outside: creates folders, starts shims, ends them.

The shim inherits the machine's lock from whoever starts it, so that a machine is never seen without one between
its creation and its end, and so that two launchers cannot both start one.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from outlast.clouds.local.files import remove_tree, try_lock, write_json
from outlast.clouds.local.folder import SUSPENDED, Folder
from outlast.clouds.local.init import marker
from outlast.clouds.local.probe import shim_environment
from outlast.clouds.local.processes import MARKER, kill_marked
from outlast.errors import BadRequest, CloudError

# A shim that is asked to stop does so in milliseconds; one that is stuck is killed, and its machine with it.
_PATIENCE_S = 10.0
_DYING_S = 2.0


def create(folder: Folder, facts: dict[str, Any], attributes: dict[str, str]) -> int:
    """Make the folder of a new machine in one step; answers with its lock, held. Only under the cloud's lock."""
    draft = Folder(f"{os.path.dirname(folder.path)}/.new-{folder.name}")
    # Left over from a launcher that was killed: under the cloud's lock nobody else is at work here.
    remove_tree(draft.path)
    os.makedirs(draft.path)
    write_json(f"{draft.path}/machine.json", facts)
    write_json(draft.metadata_path, dict(attributes))
    draft.set_state(phase="created", why="", boots=0)
    for path in (draft.lock_path, draft.serial_path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    lock = try_lock(draft.lock_path)
    assert lock is not None, "nobody knows this file yet"
    os.rename(draft.path, folder.path)
    return lock


def switch_on(folder: Folder, lock: int, *, mode: str) -> None:
    """Start the shim and hand it the lock. Raises CloudError when the shim cannot be started."""
    shim = [sys.executable, "-m", "outlast.clouds.local.shim", folder.path, str(lock), mode]
    # The shell starts the shim in the background and ends, so that the shim is nobody's child: it outlives us, and
    # leaves us no zombie.
    command = ["/bin/sh", "-c", '"$@" &', "sh", *shim]
    variables = {**shim_environment(), MARKER: marker(folder)}
    with open(folder.serial_path, "ab") as serial:
        try:
            subprocess.run(
                command,
                env=variables,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=serial,
                stderr=serial,
                pass_fds=[lock],
                start_new_session=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise CloudError(f"could not start the shim of `{folder.name}`: {error}") from error


def switch_off(folder: Folder) -> int | None:
    """End the machine and all its processes; answers with its lock, held. None when it is gone altogether."""
    lock = _request_stop(folder)
    if lock is None and folder.exists():
        folder.signal_shim(signal.SIGKILL)
        lock = folder.take_lock(timeout_s=_PATIENCE_S)
        if lock is None and folder.exists():
            raise CloudError(f"machine `{folder.name}` does not end", hint="is its disk hanging?")
    if lock is None:
        return None
    if (folder.state() or {}).get("phase") != "stopped":
        _kill_leftovers(folder, lock)
    return lock


def _request_stop(folder: Folder) -> int | None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        # Again and again, because a start at the same time may have swept the first request away.
        folder.request("stop")
        lock = folder.take_lock(timeout_s=min(0.25, _PATIENCE_S))
        if lock is not None or not folder.exists() or time.monotonic() > give_up_at:
            return lock


def _kill_leftovers(folder: Folder, lock: int) -> None:
    """The shim did not end in peace, so what it kept may still run."""
    if not kill_marked(marker(folder)):
        os.close(lock)
        raise CloudError(f"machine `{folder.name}` has processes that cannot be killed", hint="do they belong to you?")
    if str((folder.facts() or {}).get("mode")) == "root":
        from outlast.clouds.local import limits, network

        limits.remove(folder, timeout_s=_DYING_S)
        network.remove_nat(folder)
    with suppress(OSError):  # a full disk: then it is shown as broken, which is true as well
        folder.set_state(phase="stopped", why="stopped", stopped_at=time.time())


def suspend(folder: Folder) -> None:
    """Let a running machine stand still with all that is in its memory, which stays this computer's."""
    folder.request("suspend")
    _wait_suspended(folder, suspended=True)


def resume(folder: Folder) -> None:
    """Let it go on from where it stood."""
    folder.withdraw("suspend")
    folder.wake()
    _wait_suspended(folder, suspended=False)


def _wait_suspended(folder: Folder, *, suspended: bool) -> None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while (looked := folder.status()) is not None and looked[0] == "running":
        if (looked[1].get("why") == SUSPENDED) == suspended:
            return
        if time.monotonic() > give_up_at:
            raise CloudError(f"the shim of `{folder.name}` does not answer", hint="stop the machine, and start it")
        time.sleep(0.01)
    raise BadRequest(f"machine `{folder.name}` ended meanwhile")


def empty_trash(root: str, name: str) -> None:
    """Remove the remains of this machine, and those that killed deleters left behind.

    Another process or thread may be removing the same remains: those of this machine are waited for, because its disk
    is gone when a deletion returns; the others are left to it.
    """
    try:
        remains = os.listdir(f"{root}/trash")
    except FileNotFoundError:
        return
    for one in sorted(remains, key=lambda one: not one.startswith(f"{name}.")):
        _remove_remains(f"{root}/trash/{one}", wait=one.startswith(f"{name}."))


def _remove_remains(path: str, *, wait: bool) -> None:
    try:
        # On the folder itself, so that the lock goes with what it guards.
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a stray file
        remove_tree(path)
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_tree(path)
    except BlockingIOError:
        return
    finally:
        os.close(lock)
