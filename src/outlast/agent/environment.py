"""The command's environment on this machine: finds the kit's `uv`, installs the recorded packages, stores them once."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable

from outlast.code.environment import EnvironmentRecord
from outlast.environments.install import EnvironmentFailed, Installer, extract_trusted
from outlast.errors import OutlastError
from outlast.store.bucket import Bucket


def machine_installer(
    bucket: Bucket, record: EnvironmentRecord, *, home: str, uv_url: str, report: Callable[[str], None]
) -> Installer:
    """Return the installer for this machine. `uv_url` is the archive of uv in the workspace."""
    root = machine_root(home)
    return Installer(bucket, record, root=root, uv=lambda: _uv(bucket, uv_url, root), report=report)


def machine_root(home: str) -> str:
    """Return the folder of outlast's files on this machine, the same as in `kit/boot.sh`."""
    # A machine of the local cloud without its own root file system must not write to the host's /opt.
    shared_root = "OUTLAST_MACHINE" in os.environ and home != "/root"
    place = "/opt/outlast"
    if shared_root or not os.access(place if os.path.isdir(place) else os.path.dirname(place), os.W_OK):
        return os.path.join(home, ".outlast", "agent")
    return place


def _uv(bucket: Bucket, url: str, root: str) -> str:
    """Return the path of uv: the machine's, else the kit's, fetched on first use. Raises EnvironmentFailed."""
    if found := shutil.which("uv"):
        return found
    digest, name = url.split("/")[-2:]
    folder = os.path.join(root, digest)
    program = os.path.join(folder, "uv", "bin", "uv")
    if not os.path.exists(program):
        archive = os.path.join(folder, name)
        os.makedirs(folder, exist_ok=True)
        bucket.download(f"kits/{digest}/{name}", archive)
        with open(archive, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise EnvironmentFailed(f"{url} is damaged: its content does not match its name", permanent=False)
        with tarfile.open(archive) as members:
            extract_trusted(members, os.path.join(folder, "uv.part"))
        shutil.rmtree(os.path.join(folder, "uv"), ignore_errors=True)
        os.rename(os.path.join(folder, "uv.part"), os.path.join(folder, "uv"))
    return program


def store_environment(installer: Installer, report: Callable[[str], None]) -> None:
    """Store an environment for later machines. A failure costs them time, and this attempt nothing."""
    try:
        installer.store()
    except (OutlastError, OSError) as problem:
        report(f"environment: could not be stored in the workspace: {problem}")
