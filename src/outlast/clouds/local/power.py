"""Creates machines and switches them on and off: their folders and their shims.

A shim inherits the machine's lock from its launcher. The lock is therefore held from creation to end, and two launchers
cannot start the same machine.
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
from outlast.clouds.local.init import EXIT_REBOOTED, marker
from outlast.clouds.local.probe import shim_environment
from outlast.clouds.local.processes import MARKER, kill_marked
from outlast.errors import BadRequest, CloudError

# A shim stops within milliseconds of a request. One that is stuck is killed, and its machine with it.
_PATIENCE_S = 10.0
_DYING_S = 2.0
_REPEAT = f'{{ while :; do {MARKER}="$0" "$@"; [ $? -eq {EXIT_REBOOTED} ] || break; done; }} &'


def create(folder: Folder, facts: dict[str, Any], attributes: dict[str, str]) -> int:
    """Create the folder of a new machine in one step; return its lock, held. The caller holds the cloud's lock."""
    draft = Folder(f"{os.path.dirname(folder.path)}/.new-{folder.name}")
    # A leftover of a killed launcher: no other process works here while the cloud's lock is held.
    remove_tree(draft.path)
    os.makedirs(draft.path)
    write_json(f"{draft.path}/machine.json", facts)
    write_json(draft.metadata_path, dict(attributes))
    draft.set_state(phase="created", why="", boots=0)
    for path in (draft.lock_path, draft.serial_path):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    lock = try_lock(draft.lock_path)
    assert lock is not None, "no other process can have opened this new file"
    # A process of a deleted machine of that name may have created a folder here after the deletion.
    if not folder.exists():
        remove_tree(folder.path)
    os.rename(draft.path, folder.path)
    return lock


def switch_on(folder: Folder, lock: int, *, mode: str) -> None:
    """Start the shim and pass it the lock. Raises CloudError if it cannot be started."""
    shim = [sys.executable, "-m", "outlast.clouds.local.shim", folder.path, str(lock), mode]
    # The shell starts the shim in the background and exits, so that init adopts it: it outlives this process and leaves
    # no zombie. Its subshell repeats the shim when the machine reboots, and holds the lock meanwhile. The subshell does
    # not carry the machine's marker, because the shim kills the processes that do.
    command = ["/bin/sh", "-c", _REPEAT, marker(folder), *shim]
    variables = shim_environment()
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
            raise CloudError(f"could not start the shim of machine `{folder.name}`: {error}") from error


def switch_off(folder: Folder) -> int | None:
    """End the machine and all its processes; return its lock, held. None if the machine no longer exists."""
    lock = _request_stop(folder)
    if lock is None and folder.exists():
        folder.signal_shim(signal.SIGKILL)
        lock = folder.take_lock(timeout_s=_PATIENCE_S)
        if lock is None and folder.exists():
            raise CloudError(f"machine `{folder.name}` does not end", hint="check whether its disk responds")
    if lock is None:
        return None
    if (folder.state() or {}).get("phase") != "stopped":
        _kill_leftovers(folder, lock)
    return lock


def _request_stop(folder: Folder) -> int | None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        # Repeat the request: a concurrent start may have cleared the first one.
        folder.request("stop")
        lock = folder.take_lock(timeout_s=min(0.25, _PATIENCE_S))
        if lock is not None or not folder.exists() or time.monotonic() > give_up_at:
            return lock


def _kill_leftovers(folder: Folder, lock: int) -> None:
    """Kill the processes and remove the network of a machine whose shim did not end in order."""
    if not kill_marked(marker(folder)):
        os.close(lock)
        why = f"could not kill all processes of machine `{folder.name}`"
        raise CloudError(why, hint="check whether they belong to another user")
    if str((folder.facts() or {}).get("mode")) == "root":
        from outlast.clouds.local import limits, network

        limits.remove(folder, timeout_s=_DYING_S)
        network.remove_nat(folder)
    with suppress(OSError):  # a full disk: then the machine is listed as broken, which is also true
        folder.set_state(phase="stopped", why="stopped", stopped_at=time.time())


def suspend(folder: Folder) -> None:
    """Stop the processes of a running machine. Their memory stays allocated."""
    folder.request("suspend")
    _wait_suspended(folder, suspended=True)


def resume(folder: Folder) -> None:
    """Continue a suspended machine."""
    folder.withdraw("suspend")
    folder.wake()
    _wait_suspended(folder, suspended=False)


def _wait_suspended(folder: Folder, *, suspended: bool) -> None:
    give_up_at = time.monotonic() + _PATIENCE_S
    while (found := folder.status()) is not None and found[0] == "running":
        if (found[1].get("why") == SUSPENDED) == suspended:
            return
        if time.monotonic() > give_up_at:
            why = f"the shim of machine `{folder.name}` does not respond"
            raise CloudError(why, hint="stop the machine and start it again")
        time.sleep(0.01)
    raise BadRequest(f"machine `{folder.name}` ended meanwhile")


def empty_trash(root: str, name: str) -> None:
    """Remove the remains of this machine, and those that killed processes left.

    Another process or thread may be removing the same remains. Wait for those of this machine, because a deletion
    returns only when the disk is gone; skip the others.
    """
    try:
        remains = os.listdir(f"{root}/trash")
    except FileNotFoundError:
        return
    for one in sorted(remains, key=lambda one: not one.startswith(f"{name}.")):
        _remove_remains(f"{root}/trash/{one}", wait=one.startswith(f"{name}."))


def _remove_remains(path: str, *, wait: bool) -> None:
    try:
        # Lock the folder itself, so that the lock disappears with it.
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
