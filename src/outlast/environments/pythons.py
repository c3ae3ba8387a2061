"""Pythons that a machine downloaded, packed in the workspace: later machines need no download for the same version.

They are stored as environments are, under a name instead of a digest: `environments/python-3.13/PLATFORM.json`.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Callable
from contextlib import suppress

from outlast.code.environment import EnvironmentRecord
from outlast.environments import archive
from outlast.errors import Missing
from outlast.store.bucket import Bucket

# Where uv installs Pythons, below the folder of outlast's files on a machine.
FOLDER = "python"
_PATCH = re.compile(r"^(\w+-\d+\.\d+)\.\w+")


def fetch_python(bucket: Bucket, version: str, root: str, report: Callable[[str], None]) -> bool:
    """Unpack a packed Python where uv finds it; False if the workspace has none of that version."""
    record, folder = _record(version), os.path.join(root, FOLDER)
    found = archive.find_archive(bucket, record, _platform())
    if found is None or not found.name or os.path.basename(found.name) != found.name:
        return False
    draft = os.path.join(folder, f".{found.name}.part")
    shutil.rmtree(draft, ignore_errors=True)
    os.makedirs(draft)
    report(f"environment: Python {version}: cached in the workspace, {found.bytes / 1e6:,.0f} MB")
    try:
        archive.unpack(bucket, found, draft)
        os.rename(draft, os.path.join(folder, found.name))
        # Environments refer to the link, which uv makes beside it: cpython-3.13-… → cpython-3.13.1-….
        with suppress(FileExistsError):
            os.symlink(os.path.join(folder, found.name), os.path.join(folder, _PATCH.sub(r"\1", found.name)))
    except (Missing, archive.DamagedArchive, OSError) as problem:
        report(f"environment: the Python in the workspace cannot be used: {problem}")
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True


def store_python(bucket: Bucket, version: str, program: str, root: str) -> bool:
    """Pack and store the Python of a program that uv installed, unless the workspace has it. Return whether it did."""
    name = os.path.relpath(os.path.realpath(program), os.path.realpath(os.path.join(root, FOLDER))).split(os.sep)[0]
    folder = os.path.join(root, FOLDER, name)
    return name != os.pardir and archive.store(bucket, _record(version), _platform(), folder, name=name)


def mark_python_used(bucket: Bucket, version: str) -> None:
    archive.mark_used(bucket, _record(version), _platform())


def _record(version: str) -> EnvironmentRecord:
    return EnvironmentRecord(kind="empty", digest=f"python-{version}", python=version)


def _platform() -> str:
    return f"linux-{platform.machine()}"
