"""Environments on this computer, for machines that share its files: built once per digest, below `~/.outlast/cache`.

Such machines need no package index, which machines of an ordinary user cannot reach.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from contextlib import suppress

from outlast import private
from outlast.code.environment import EnvironmentRecord
from outlast.environments.install import COMPLETE, Installer, Report, Tools
from outlast.kit.uv import find_uv
from outlast.store.bucket import Bucket

_UNUSED_S = 90 * 86400.0
# Packages with which `import outlast` works for job folders in buckets, too.
_LIBRARY = ("outlast", "msgspec", "obstore")
_LINKS = "outlast-library"


def host_environment(bucket: Bucket, record: EnvironmentRecord, report: Report) -> str:
    """Return the path of an environment on this computer, built on first use. Raises OutlastError."""
    root = private.folder("cache")
    place: list[str] = []
    tools = Tools(uv=find_uv, uv_path=find_uv, library=lambda version: _library(place[0], version))
    installer = Installer(bucket, record, root=root, tools=tools, report=report, progress=report)
    place.append(installer.path)
    path = installer.install()
    if installer.built:
        _prune(os.path.dirname(path), keep=os.path.basename(path))
    return path


def built_by_submitter(path: str) -> str:
    """Return the environment that comes first on a submitter's PATH; empty if outlast has not built it."""
    folder = os.path.dirname(path.partition(os.pathsep)[0])
    return folder if folder and os.path.exists(os.path.join(folder, COMPLETE)) else ""


def _library(environment: str, version: str) -> list[str]:
    """Return a folder in the environment with links to the running outlast, and to nothing else of its Python."""
    folder = os.path.join(environment, _LINKS)
    os.makedirs(folder, exist_ok=True)
    same = version == f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in _LIBRARY if same else _LIBRARY[:1]:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        target, link = spec.submodule_search_locations[0], os.path.join(folder, name)
        if not os.path.islink(link) or os.readlink(link) != target:
            draft = f"{link}.{os.getpid()}"
            os.symlink(target, draft)
            os.replace(draft, link)
    return [folder]


def _prune(folder: str, *, keep: str) -> None:
    """Delete environments that no submit has used for a while."""
    for name in os.listdir(folder):
        marker = os.path.join(folder, name, COMPLETE)
        with suppress(OSError):
            if name != keep and time.time() - os.stat(marker).st_mtime > _UNUSED_S:
                os.unlink(marker)
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
