"""Detection of a project's environment: the file that lists its packages, and its Python. Runs nothing."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tomllib
from typing import Any

import msgspec

from outlast.code.environment import Kind
from outlast.errors import SpecError

# In this order, the first that the code folder has.
FILES: tuple[tuple[str, Kind], ...] = (
    ("uv.lock", "uv"),
    ("requirements.txt", "requirements"),
    ("environment.yml", "conda"),
    ("environment.yaml", "conda"),
    ("pyproject.toml", "pyproject"),
)
# The agent needs Python 3.11, and images have at least that.
OLDEST = (3, 11)
_NEWEST = (3, 14)
# The oldest that uv installs for a command.
_OLDEST_BUILT = (3, 8)
_VERSION = re.compile(r"(\d+)\.(\d+)")
_CLAUSE = re.compile(r"(>=|<=|==|!=|~=|>|<)\s*(\d+)(?:\.(\d+))?(?:\.(\d+|\*))?(?:\.\*)?$")


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """The file that defines an environment, and the Pythons that it allows."""

    kind: Kind
    file: str = ""
    python: str = ""
    python_min: str = ""


def detect(folder: str, *, wanted: str = "auto", python: str = "") -> Detected:
    """Return the environment of a code folder. `wanted` names a file, or is `auto` or `none`. Raises SpecError."""
    kind, file = _file(folder, wanted)
    exact = python or _python_version_file(folder)
    if exact and not _OLDEST_BUILT <= _number(exact) <= _NEWEST:
        file = "[environment] python" if python else ".python-version"
        known = f"{_text(_OLDEST_BUILT)} to {_text(_NEWEST)}"
        raise SpecError([f"{file}: machines cannot get Python {exact}"], hint=f"use a version from {known}")
    allowed = _allowed(project_table(folder).get("requires-python", ""))
    if exact:
        return Detected(kind=kind, file=file, python=exact, python_min=exact)
    ours = (sys.version_info.major, sys.version_info.minor)
    chosen = ours if ours in allowed else max(allowed)
    return Detected(kind=kind, file=file, python=_text(chosen), python_min=_text(min(allowed)))


def _file(folder: str, wanted: str) -> tuple[Kind, str]:
    if wanted == "none":
        return "empty", ""
    if wanted != "auto":
        if not os.path.isfile(os.path.join(folder, wanted)):
            raise SpecError([f"[environment] from = {wanted!r}: no such file in {os.path.abspath(folder)}"])
        return _kind_of(wanted), wanted
    for name, kind in FILES:
        if os.path.isfile(os.path.join(folder, name)) and (
            kind != "pyproject" or project_table(folder).get("dependencies")
        ):
            return kind, name
    return "empty", ""


def _kind_of(file: str) -> Kind:
    """Return the kind of a file that the user named: by its name, else a list of requirements."""
    name = os.path.basename(file)
    if name.endswith((".yml", ".yaml")):
        return "conda"
    return dict(FILES).get(name, "requirements")


def project_table(folder: str) -> dict[str, Any]:
    """Return the `[project]` table of pyproject.toml; empty if there is none. Raises SpecError."""
    try:
        with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file).get("project", {})
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SpecError([f"pyproject.toml: {problem}"], hint="repair the file, or set [environment] from") from None
    return project if isinstance(project, dict) else {}


def _python_version_file(folder: str) -> str:
    """Return the version in `.python-version`, such as `3.12`; empty if there is none that names CPython."""
    try:
        with open(os.path.join(folder, ".python-version"), encoding="utf-8") as file:
            found = _VERSION.match(file.readline().strip().removeprefix("cpython-"))
    except (OSError, UnicodeDecodeError):
        return ""
    return f"{found[1]}.{found[2]}" if found else ""


def _number(version: str) -> tuple[int, int]:
    """Return `3.12` as numbers; zeros for a version that is not CPython's, which is refused."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _allowed(requires: object) -> list[tuple[int, int]]:
    """Return the minor versions of Python that `requires-python` allows. Raises SpecError if none is."""
    versions = [(OLDEST[0], minor) for minor in range(OLDEST[1], _NEWEST[1] + 1)]
    if not isinstance(requires, str) or not requires.strip():
        return versions
    clauses = [clause.strip() for clause in requires.split(",") if clause.strip()]
    found = [version for version in versions if all(_satisfies(version, clause) for clause in clauses)]
    if not found:
        raise SpecError(
            [f"pyproject.toml: requires-python = {requires!r} allows no Python from 3.11 to 3.14"],
            hint="outlast's machines need Python 3.11 or newer",
        )
    return found


def _satisfies(version: tuple[int, int], clause: str) -> bool:
    """Return whether some patch release of a minor version satisfies one clause. An unknown clause allows all."""
    match = _CLAUSE.match(clause)
    if not match:
        return True
    bound = (int(match[2]), int(match[3] or 0))
    patched = bool(match[4] and match[4] not in ("*", "0"))
    operator = match[1]
    if operator == "~=" and match[4] is None:
        return version >= bound and version[0] == bound[0]
    return {
        ">=": version >= bound,
        ">": version > bound or (version == bound and bool(match[3])),
        "<=": version <= bound,
        "<": version < bound or (version == bound and patched),
        "==": version == bound or (match[3] is None and version[0] == bound[0]),
        "!=": version != bound or bool(match[4] and match[4] != "*"),
        "~=": version == bound,
    }[operator]


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def conda_program() -> str | None:
    """Return the path of the program that builds conda environments; None if there is none."""
    return next((found for name in ("micromamba", "mamba", "conda") if (found := shutil.which(name))), None)
