"""Shared resources on a machine: mounts volumes, writes databases' certificates, lists values to mask in logs."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import quote, unquote, urlsplit

from outlast.agent.data import fetch_data
from outlast.agent.instance import Instance
from outlast.agent.paths import AttemptPaths, full_disk
from outlast.errors import OutlastError
from outlast.records.mounts import ATTRIBUTE, Mount, decode, nfs_script, run_folder
from outlast.spec.spec import Spec
from outlast.store.bucket import Bucket, open_bucket
from outlast.store.counted import CountedBucket, Traffic
from outlast.workspace import RunRequest

_CA_PLACEHOLDER = "{ca}"
_MS_BIND = 0x1000
_MOUNT_S = 600.0
# Metadata at this address: the machine has its own file system, and does not share the host's.
_OWN_ROOT = "169.254.169.254"


def bring(
    request: RunRequest, paths: AttemptPaths, instance: Instance, progress: Callable[[str], None], traffic: Traffic
) -> None:
    """Fetch the data and mount the volumes. May be repeated. Raises OutlastError, OSError."""

    def opened(address: str) -> Bucket:
        return CountedBucket(open_bucket(address), traffic)

    fetch_data(request.spec.data, destination=paths.code, cache=paths.cache, progress=progress, opened=opened)
    found = mounts(request, instance)
    if missing := set(request.spec.volumes) - {mount.path for mount in found}:
        names = ", ".join(f"`{request.spec.volumes[path]}`" for path in sorted(missing))
        raise OutlastError(
            f"[volumes]: {names} does not exist any more", hint="was it deleted after the run was submitted?"
        )
    mount_all(found, code=paths.code, home=paths.home, owner=request.run, since=request.submitted_at)
    for mount in found:
        progress(f"[volumes] {mount.path}: {mount.volume}" + (f"/{mount.folder}" if mount.folder else ""))


def mounts(request: RunRequest, instance: Instance) -> list[Mount]:
    return decode(instance.attribute(ATTRIBUTE)) if request.spec.volumes else []


def mount_all(mounts: Sequence[Mount], *, code: str, home: str, owner: str, since: float) -> None:
    """Mount the volumes of a run or cluster that was submitted at `since`. May be repeated.

    Raises OutlastError, OSError.
    """
    for mount in mounts:
        _mount(mount, code=code, home=home, folder=run_folder(mount.folder, run=owner, submitted_at=since))


def _mount(mount: Mount, *, code: str, home: str, folder: str) -> None:
    target = os.path.join(code, mount.path)
    if mount.kind == "folder":
        if not os.path.isdir(mount.source):
            raise OutlastError(f"[volumes] {mount.path}: the volume `{mount.volume}` does not exist: {mount.source}")
        source = mount.source
    else:
        source = target if not folder else os.path.join(home, "volumes", mount.volume)
        _mount_nfs(mount, source)
    if folder:
        source = os.path.join(source, folder)
        os.makedirs(source, exist_ok=True)
    if source == target:
        return
    if mount.path.startswith("/") and mount.kind == "folder":
        _bind(mount, source, target)
    else:
        _link(mount, source, target)


def _mount_nfs(mount: Mount, target: str) -> None:
    script = nfs_script(mount.source, target, mount.options)
    done = subprocess.run(
        ["/bin/sh", "-c", script], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        error = done.stderr.strip().splitlines()[-1:] or ["mount printed nothing"]
        raise OutlastError(f"[volumes] {mount.path}: the volume `{mount.volume}` cannot be mounted: {error[0]}")


def _bind(mount: Mount, source: str, target: str) -> None:
    """Mount at an absolute path, if the machine has its own file system."""
    if os.environ.get("GCE_METADATA_HOST", "") != _OWN_ROOT:
        raise OutlastError(
            f"[volumes] {mount.path}: machines have no file system of their own in this mode of the local cloud",
            hint="use a path inside the code folder, without `/` at its beginning",
        )
    os.makedirs(target, exist_ok=True)
    if os.path.samestat(os.stat(source), os.stat(target)):
        return  # mounted by an earlier boot of the agent
    libc = ctypes.CDLL(None, use_errno=True)
    argv = [os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_MS_BIND), None]
    if libc.mount(*argv) != 0:
        number = ctypes.get_errno()
        why = f"[volumes] {mount.path}: `{mount.volume}` cannot be mounted: {os.strerror(number)}"
        raise OutlastError(why, hint="use a path inside the code folder, which is linked and not mounted")


def _link(mount: Mount, source: str, target: str) -> None:
    if os.path.islink(target):
        os.unlink(target)
    elif os.path.isdir(target) and not os.listdir(target):
        os.rmdir(target)
    elif os.path.lexists(target):
        raise OutlastError(
            f"[volumes] {mount.path}: the code has a file or folder at this path",
            hint="mount the volume at another path, or remove it from the code",
        )
    os.makedirs(os.path.dirname(target), exist_ok=True)
    os.symlink(source, target)


def failure_context(paths: AttemptPaths, mounted: Sequence[Mount]) -> str:
    """Return a state of the machine or its volumes that may have caused a failure, such as a full disk; else empty."""
    if full := full_disk(paths):
        return full
    try:
        for mount in mounted:
            if _is_full(os.path.join(paths.code, mount.path)) or (mount.kind == "folder" and _filled(mount)):
                name = mount.volume
                return f"; the volume `{name}` is full: delete files, or `outlast volume resize {name} --size …`"
    except OSError:
        pass
    return ""


def _is_full(folder: str) -> bool:
    usage = shutil.disk_usage(folder)
    return usage.free < max(16 << 20, usage.total // 1000)


def _filled(mount: Mount) -> bool:
    """Return whether the folder of a volume has reached the volume's size: the disk below has room for more."""
    total = 0
    for folder, _, names in os.walk(mount.source):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total >= mount.size_gb * 1e9


def with_certificates(values: Mapping[str, str], spec: Spec, folder: str) -> dict[str, str]:
    """Return the secrets with certificates replaced by paths: database drivers need files. Raises OSError."""
    found = dict(values)
    for variable in spec.databases:
        certificate = ca_variable(variable)
        if certificate not in found:
            continue
        path = os.path.join(folder, f"{certificate.lower()}.pem")
        os.makedirs(folder, exist_ok=True)
        with open(path, "w", encoding="ascii") as file:
            file.write(found[certificate])
        found[certificate] = path
        found[variable] = found[variable].replace(_CA_PLACEHOLDER, quote(path, safe="/"))
    return found


def hidden(values: Mapping[str, str], spec: Spec) -> list[str]:
    """Return the values to mask in logs: the secrets, and passwords in addresses, but not paths of certificates."""
    shown = {ca_variable(variable) for variable in spec.databases}
    found = [value for name, value in values.items() if name not in shown]
    for variable in spec.databases:
        if password := urlsplit(values.get(variable, "")).password:
            found.append(unquote(password))
    return found


def ca_variable(variable: str) -> str:
    return f"{variable.removesuffix('_URL')}_CA"
