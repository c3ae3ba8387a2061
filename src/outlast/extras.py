"""The command that adds an optional part of outlast to this installation: by pip, pipx or `uv tool`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable
from importlib.metadata import PackageNotFoundError, distribution, requires

_NEEDS = re.compile(r"^([A-Za-z0-9._-]+).*; extra == ['\"]([a-z]+)['\"]")
# For contributors, and named by no message.
_INTERNAL = {"dev", "docs", "testing"}
# The purpose of each extra; those of clouds have the name of their cloud.
PURPOSES = {
    "db": "`outlast db`, and locks in databases",
    "plot": "`outlast plot`",
    "ray": "Ray clusters",
    "sweep": "`outlast sweep`",
    "sync": "`outlast sync --watch` without polling",
    "ui": "the dashboard, `outlast ui`",
    "yaml": "files of Ray and SkyPilot",
}


def missing_extras() -> list[str]:
    """Return the extras that this installation lacks."""
    try:
        lines = requires("outlast") or []
    except PackageNotFoundError:
        return []  # a source tree on the import path
    present = extras_present(lines, {name for name in _packages(lines) if _installed(name)})
    known = {match[2] for line in lines if (match := _NEEDS.match(line))} - _INTERNAL
    return sorted(known.difference(present))


def install_hint(requirement: str) -> str:
    """Return the command that installs `outlast[EXTRA]` in the environment of this process."""
    try:
        lines = requires("outlast") or []
    except PackageNotFoundError:
        lines = []  # a source tree on the import path
    present = extras_present(lines, {name for name in _packages(lines) if _installed(name)})
    return install_command(requirement, present=present, files=_files(sys.prefix))


def install_command(requirement: str, *, present: Collection[str], files: Collection[str]) -> str:
    """Return the command for an environment with these extras and these files at its root.

    pipx and `uv tool` replace the whole installation, so their commands name the extras that are there already.
    """
    extra = requirement.partition("[")[2].rstrip("]")
    together = f"'outlast[{','.join(sorted({*present, extra}))}]'"
    if "uv-receipt.toml" in files:
        return f"uv tool install {together}"
    if "pipx_metadata.json" in files:
        return f"pipx install --force {together}"
    return f"pip install '{requirement}'"


def extras_present(lines: Iterable[str], installed: Collection[str]) -> list[str]:
    """Return the extras whose packages are all installed, from the lines of the package's metadata."""
    needs: dict[str, set[str]] = {}
    for line in lines:
        if match := _NEEDS.match(line):
            needs.setdefault(match[2], set()).add(match[1])
    return sorted(extra for extra, names in needs.items() if names <= set(installed) and extra not in _INTERNAL)


def _packages(lines: Iterable[str]) -> set[str]:
    return {match[1] for line in lines if (match := _NEEDS.match(line))}


def _installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _files(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
