"""The command's environment on this machine: finds the kit's `uv`, installs the recorded packages, stores them once."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tarfile
from collections.abc import Callable

import outlast
from outlast.agent import apt
from outlast.agent.paths import image_environment
from outlast.agent.retry import retry
from outlast.code.environment import EnvironmentRecord
from outlast.environments.archive import extract_trusted, prune
from outlast.environments.host import built_by_submitter
from outlast.environments.install import EnvironmentFailed, Installer, Tools
from outlast.errors import OutlastError
from outlast.store.bucket import Bucket
from outlast.workspace import RunRequest

Report = Callable[[str], None]
# Programs that call uv early wait as long (`environments/complete.py`).
_UV_S = 300.0


def machine_installer(
    bucket: Bucket, record: EnvironmentRecord, *, home: str, uv_url: str, report: Report, progress: Report
) -> Installer:
    """Return the installer for this machine. `uv_url` is the archive of uv in the workspace."""
    root = machine_root(home)
    settings = {"UV_CACHE_DIR": os.path.join(root, "uv-cache"), "UV_NO_CONFIG": "1"}
    tools = Tools(
        uv=lambda: _uv(bucket, uv_url, root),
        uv_path=lambda: shutil.which("uv") or _uv_path(uv_url, root),
        library=_library,
        git=lambda: apt.install_git(report),
        settings=settings,
    )
    return Installer(bucket, record, root=root, tools=tools, report=report, progress=progress)


def present_environment(request: RunRequest, *, built_here: bool, report: Report) -> str:
    """Return the packages that the machine has without an installation; empty if it has none.

    `built_here`: the machine shares the files of the submitter, who has built the environment.
    """
    record, wanted = request.code.environment, request.spec.environment.source
    if record is None:
        return ""
    image = image_environment(os.environ.get("HOME", ""))
    if image and wanted == "none":
        # No packages of the project: an empty environment before the image's on PATH would hide its packages.
        report(f"environment: none; packages of the image, in {image}")
        return image
    if built_here:
        path = built_by_submitter(request.path)
        if path:
            report(f"environment: {record.describe()}, built on this computer")
        return path
    if not image or wanted != "auto":
        return ""
    # The image was built for this run: an environment before it on PATH would hide its packages.
    report(f"environment: packages of the image, in {image}")
    return image


def _library(version: str) -> list[str]:
    """Return the folders of the kit with outlast and with its libraries for a Python (`kit/boot.sh`)."""
    sources = os.path.dirname(os.path.dirname(outlast.__file__))
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    own = next((path for path in sys.path if os.path.basename(path) == ours and "libraries" in path), "")
    folders = [sources, os.path.join(os.path.dirname(own), version) if own else ""]
    return [folder for folder in folders if folder and os.path.isdir(folder)]


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
    folder, program = os.path.join(root, digest), _uv_path(url, root)
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


def _uv_path(url: str, root: str) -> str:
    return os.path.join(root, url.split("/")[-2], "uv", "bin", "uv")


def fetch_uv(installer: Installer, report: Report) -> None:
    """Fetch uv while the command runs: most programs never call it."""
    try:
        retry(installer.tools.uv, for_s=_UV_S, report=report)
    except (OutlastError, OSError) as problem:
        report(f"uv could not be fetched from the workspace: {problem}")


def store_environment(installer: Installer, report: Report) -> None:
    """Store an environment for later machines, or record its use. A failure costs them time, and this attempt nothing.

    The machine that stores one deletes those that no machine has used for a while.
    """
    try:
        if installer.is_new:
            installer.store()
            for key in prune(installer.bucket):
                report(f"environment: deleted {key}, which no machine has used for 30 days")
        if installer.came_from_workspace:
            installer.mark_used()
    except (OutlastError, OSError) as problem:
        report(f"environment: could not be stored in the workspace: {problem}")
