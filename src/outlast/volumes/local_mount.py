"""Mounts of volumes on this computer: a bind mount, a link, or sshfs through a gateway.

Each mount has a record in `~/.outlast/mounts`, from which `unmount` finds the steps to undo and the gateway to delete.
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
    """A volume mounted at a local path."""

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
    """Mount a volume. Raises StoreTaken if the folder is in use or not empty."""
    full = os.path.abspath(os.path.expanduser(path))
    _check_target(full)
    if record.mount_kind == "folder" and not by_machine:
        return _mount_folder(record, workspace, full)
    return _mount_through_gateway(cloud, workspace, record, full, report)


def _check_target(full: str) -> None:
    if (known := find(full)) is not None and _is_active(known):
        raise StoreTaken(f"volume `{known.volume}` is already mounted at {full}", hint=f"outlast volume unmount {full}")
    if os.path.lexists(full) and (not os.path.isdir(full) or os.listdir(full)):
        raise StoreTaken(f"{full} is not an empty folder", hint="use an empty or a new folder")


def _mount_folder(record: ResourceRecord, workspace: Workspace, full: str) -> Mounted:
    """Mount a volume that is a folder of this computer: as root with a bind mount, else as a link."""
    mounted = Mounted(path=full, volume=record.name, workspace=workspace.url, cloud=record.cloud, how="bind")
    os.makedirs(full, exist_ok=True)
    mounting = shutil.which("mount") if os.geteuid() == 0 else None
    # Write the record first, so that `unmount` can undo the mount of a killed command.
    if mounting:
        _write_record(mounted)
        done = subprocess.run([mounting, "--bind", record.source, full], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return mounted
    mounted = _write_record(msgspec.structs.replace(mounted, how="link"))
    os.rmdir(full)
    os.symlink(record.source, full)
    return mounted


def _mount_through_gateway(
    cloud: HasVolumes, workspace: Workspace, record: ResourceRecord, full: str, report: Callable[[str], None]
) -> Mounted:
    sshfs = shutil.which("sshfs")
    if not sshfs:
        raise OutlastError(
            "`sshfs` is not installed on this computer", hint="`apt install sshfs`, `brew install sshfs-mac`"
        )
    opened = open_gateway(cloud, workspace, record, report=report)
    mounted = Mounted(
        path=full,
        volume=record.name,
        workspace=workspace.url,
        cloud=record.cloud,
        how="sshfs",
        machine=opened.machine,
    )
    with ExitStack() as undo:
        undo.callback(_remove_record, full)
        undo.callback(close_gateway, cloud, workspace, opened.machine)
        # Write the record first, so that `unmount` finds the gateway of a killed command.
        _write_record(mounted)
        os.makedirs(full, exist_ok=True)
        link = Link(cloud, opened.machine)
        options = ["reconnect", "ServerAliveInterval=5", "ServerAliveCountMax=3", f"ssh_command={link.rsync_shell()}"]
        argv = [sshfs, f"{link.host}:{opened.path}", full]
        argv += [word for option in options for word in ("-o", option)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OutlastError(f"sshfs failed: {done.stderr.strip()[-300:]}", hint="check that you may use /dev/fuse")
        undo.pop_all()
    return mounted


def unmount(cloud_of: Callable[[str], HasVolumes], workspace_of: Callable[[str], Workspace], path: str) -> Mounted:
    """Unmount a volume and delete its gateway. Raises NoSuchStore."""
    full = os.path.abspath(os.path.expanduser(path))
    known = find(full)
    if known is None:
        shown = ", ".join(one.path for one in all_mounts()) or "none"
        raise NoSuchStore(f"no volume is mounted at {full}", hint=f"mounted volumes: {shown}")
    if known.how == "link":
        if os.path.islink(full):
            os.unlink(full)
    elif _is_mounted(full):
        _umount(known, full)
    if known.machine:
        close_gateway(cloud_of(known.cloud), workspace_of(known.workspace), known.machine)
    if os.path.isdir(full) and not os.path.islink(full) and not os.listdir(full):
        os.rmdir(full)
    _remove_record(full)
    return known


def _umount(known: Mounted, full: str) -> None:
    fuse = shutil.which("fusermount3") or shutil.which("fusermount")
    argv = [fuse, "-u", full] if known.how == "sshfs" and fuse else ["umount", full]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = f"could not unmount {full}: {done.stderr.strip()[-300:]}"
        raise StoreTaken(why, hint=f"find the processes that use it: `fuser -vm {shlex.quote(full)}`")


def all_mounts() -> list[Mounted]:
    """Return all recorded mounts, without unreadable records."""
    try:
        names = sorted(name for name in os.listdir(_folder()) if name.endswith(".json"))
    except FileNotFoundError:
        return []
    return read_all(names, _read, {})


def mounts_of(workspace: Workspace, volume: str) -> list[Mounted]:
    """Return the current mounts of a volume on this computer."""
    known = [one for one in all_mounts() if (one.workspace, one.volume) == (workspace.url, volume)]
    return [one for one in known if _is_active(one)]


def _read(name: str) -> Mounted | None:
    path = f"{_folder()}/{name}"
    try:
        with open(path, "rb") as file:
            return decoded(file.read(), Mounted, path)
    except FileNotFoundError:
        return None  # unmounted in the meantime


def find(full: str) -> Mounted | None:
    return next((one for one in all_mounts() if one.path == full), None)


def _is_active(known: Mounted) -> bool:
    return os.path.islink(known.path) if known.how == "link" else _is_mounted(known.path)


def _is_mounted(full: str) -> bool:
    """Return whether a path is a mount point, by the kernel's list: `ismount` misses bind mounts of the same disk."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            places = [line.split(" ")[4] for line in file]
    except FileNotFoundError:
        return os.path.ismount(full)  # macOS has no bind mounts
    return full in (re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), place) for place in places)


def _folder() -> str:
    return os.path.expanduser("~/.outlast/mounts")


def _record_path(full: str) -> str:
    return f"{_folder()}/{hashlib.sha256(os.fsencode(full)).hexdigest()[:16]}.json"


def _write_record(mounted: Mounted) -> Mounted:
    private.folder("mounts")
    draft = f"{_record_path(mounted.path)}.{os.getpid()}"
    with open(draft, "wb") as file:
        file.write(msgspec.json.encode(mounted))
    os.replace(draft, _record_path(mounted.path))
    return mounted


def _remove_record(full: str) -> None:
    try:
        os.unlink(_record_path(full))
    except FileNotFoundError:
        pass
