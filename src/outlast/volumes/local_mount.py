"""A volume in a folder of this computer: by a bind mount, a link, or sshfs through a machine. Remembers what it did.

One record a mounted folder, in `~/.outlast/mounts`: what is to be undone, and which machine goes with it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from typing import Literal

import msgspec

from outlast import private
from outlast.errors import NoSuchStore, OutlastError, StoreTaken
from outlast.machines.ssh import Link
from outlast.records.resources import ResourceRecord
from outlast.store.codec import decoded, read_all
from outlast.volumes.gateway import close_gateway, open_gateway
from outlast.volumes.lifecycle import HasVolumes
from outlast.workspace import Workspace

How = Literal["bind", "link", "sshfs"]


class Mounted(msgspec.Struct, frozen=True, kw_only=True):
    """A volume that is seen at a path here."""

    path: str
    volume: str
    workspace: str
    cloud: str
    how: How
    machine: str = ""


def mount(
    cloud: HasVolumes,
    workspace: Workspace,
    record: ResourceRecord,
    path: str,
    *,
    by_machine: bool,
    report: Callable[[str], None],
) -> Mounted:
    """Raises StoreTaken for a folder that is not empty or mounted already."""
    full = os.path.abspath(os.path.expanduser(path))
    _check_place(full)
    if record.mount_kind == "folder" and not by_machine:
        return _near(record, workspace, full)
    return _far(cloud, workspace, record, full, report)


def _check_place(full: str) -> None:
    if (known := find(full)) is not None and _is_there(known):
        raise StoreTaken(f"{full} shows the volume `{known.volume}` already", hint=f"outlast volume unmount {full}")
    if os.path.lexists(full) and (not os.path.isdir(full) or os.listdir(full)):
        raise StoreTaken(f"{full} is there and is not an empty folder", hint="name another one, or a new one")


def _near(record: ResourceRecord, workspace: Workspace, full: str) -> Mounted:
    """A folder of this computer: seen as a mount where we may mount, else as a link."""
    made = Mounted(path=full, volume=record.name, workspace=workspace.url, cloud=record.cloud, how="bind")
    os.makedirs(full, exist_ok=True)
    mounting = shutil.which("mount") if os.geteuid() == 0 else None
    # The record first: what a killed command has mounted could not be undone by it otherwise.
    if mounting:
        _remember(made)
        done = subprocess.run([mounting, "--bind", record.source, full], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return made
    made = _remember(msgspec.structs.replace(made, how="link"))
    os.rmdir(full)
    os.symlink(record.source, full)
    return made


def _far(
    cloud: HasVolumes, workspace: Workspace, record: ResourceRecord, full: str, report: Callable[[str], None]
) -> Mounted:
    sshfs = shutil.which("sshfs")
    if not sshfs:
        raise OutlastError("there is no `sshfs` on this computer", hint="apt install sshfs, or brew install sshfs-mac")
    door = open_gateway(cloud, workspace, record, report=report)
    made = Mounted(
        path=full,
        volume=record.name,
        workspace=workspace.url,
        cloud=record.cloud,
        how="sshfs",
        machine=door.machine,
    )
    with ExitStack() as undo:
        undo.callback(_forget, full)
        undo.callback(close_gateway, cloud, workspace, door.machine)
        # The record first: whoever is killed now finds the machine by it.
        _remember(made)
        os.makedirs(full, exist_ok=True)
        link = Link(cloud, door.machine)
        options = ["reconnect", "ServerAliveInterval=5", "ServerAliveCountMax=3", f"ssh_command={link.rsync_shell()}"]
        argv = [sshfs, f"{link.host}:{door.path}", full]
        argv += [word for option in options for word in ("-o", option)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OutlastError(f"sshfs does not work here: {done.stderr.strip()[-300:]}", hint="may you use /dev/fuse?")
        undo.pop_all()
    return made


def unmount(cloud_of: Callable[[str], HasVolumes], workspace_of: Callable[[str], Workspace], path: str) -> Mounted:
    """Undo it; the machine that was started for it goes, too. Raises NoSuchStore."""
    full = os.path.abspath(os.path.expanduser(path))
    known = find(full)
    if known is None:
        shown = ", ".join(one.path for one in every()) or "nothing"
        raise NoSuchStore(f"no volume was mounted at {full} by outlast", hint=f"mounted are: {shown}")
    if known.how == "link":
        if os.path.islink(full):
            os.unlink(full)
    elif _is_mounted(full):
        _umount(known, full)
    if known.machine:
        close_gateway(cloud_of(known.cloud), workspace_of(known.workspace), known.machine)
    if os.path.isdir(full) and not os.path.islink(full) and not os.listdir(full):
        os.rmdir(full)
    _forget(full)
    return known


def _umount(known: Mounted, full: str) -> None:
    fuse = shutil.which("fusermount3") or shutil.which("fusermount")
    argv = [fuse, "-u", full] if known.how == "sshfs" and fuse else ["umount", full]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = f"{full} cannot be unmounted: {done.stderr.strip()[-300:]}"
        raise StoreTaken(why, hint=f"who uses it? `fuser -vm {shlex.quote(full)}`")


def every() -> list[Mounted]:
    """All that are remembered. A record that cannot be read hides none of the others."""
    try:
        names = sorted(name for name in os.listdir(_folder()) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    return read_all(names, _read, {})


def there(workspace: Workspace, volume: str) -> list[Mounted]:
    """Where a volume is seen on this computer."""
    known = [one for one in every() if (one.workspace, one.volume) == (workspace.url, volume)]
    return [one for one in known if _is_there(one)]


def _read(name: str) -> Mounted | None:
    path = f"{_folder()}/{name}"
    try:
        with open(path, "rb") as file:
            return decoded(file.read(), Mounted, path)
    except FileNotFoundError:
        return None  # unmounted meanwhile


def find(full: str) -> Mounted | None:
    return next((one for one in every() if one.path == full), None)


def _is_there(known: Mounted) -> bool:
    return os.path.islink(known.path) if known.how == "link" else _is_mounted(known.path)


def _is_mounted(full: str) -> bool:
    """By the kernel's own list: a bind mount within one file system looks like any other folder."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            places = [line.split(" ")[4] for line in file]
    except FileNotFoundError:
        return os.path.ismount(full)  # macOS has no bind mounts
    return full in (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place) for place in places)


def _folder() -> str:
    return os.path.expanduser("~/.outlast/mounts")


def _record(full: str) -> str:
    return f"{_folder()}/{hashlib.sha256(os.fsencode(full)).hexdigest()[:16]}.json"


def _remember(made: Mounted) -> Mounted:
    private.folder("mounts")
    draft = f"{_record(made.path)}.{os.getpid()}"
    with open(draft, "wb") as file:
        file.write(msgspec.json.encode(made))
    os.replace(draft, _record(made.path))
    return made


def _forget(full: str) -> None:
    try:
        os.unlink(_record(full))
    except FileNotFoundError:
        pass
