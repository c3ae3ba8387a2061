"""Resolution of an environment at submit: one lock with versions and hashes, whatever file the project has."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from outlast.environments.detect import Detected
from outlast.errors import SpecError
from outlast.kit.uv import UvFailed, run_uv

_HINT = 'repair the file, or run without it: environment = "none"'
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
_INDEX = re.compile(r"^\s*(-i|--index-url|--extra-index-url|-f|--find-links)\b|^\[\[tool\.uv\.index\]\]", re.MULTILINE)
# A requirement that is a path: the project itself, or a folder beside it.
_LOCAL = re.compile(r"^(-e\s+|--editable\s+)?(\./|\.\./|/|\.$|file:)|^[^#]*@\s*file:")


def resolve(folder: str, detected: Detected, *, extras: Sequence[str] = ()) -> tuple[str, list[str]]:
    """Return the lock of an environment, and remarks for the user. Raises SpecError with uv's reason.

    The lock is a list of requirements for Linux with hashes. A conda environment is returned as it is.
    """
    path = os.path.join(folder, detected.file)
    if detected.kind == "empty":
        return "", []
    if detected.kind == "conda":
        with open(path, encoding="utf-8") as file:
            return file.read(), []
    try:
        text = _export(folder, extras) if detected.kind == "uv" else _compile(folder, detected, extras)
    except UvFailed as problem:
        raise SpecError([f"{detected.file}: {problem.message}"], hint=_HINT) from problem
    return _without_local(text, detected.file)


def _export(folder: str, extras: Sequence[str]) -> str:
    """Export uv.lock as it is: it fails if the lock does not match pyproject.toml."""
    options = [option for extra in extras for option in ("--extra", extra)]
    arguments = ("export", "--quiet", "--locked", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate")
    return run_uv([*arguments, "--format", "requirements.txt", *options], what="uv export", cwd=folder)


def _compile(folder: str, detected: Detected, extras: Sequence[str]) -> str:
    options = [option for extra in extras for option in ("--extra", extra)]
    arguments = ("pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate")
    python = ["--python-version", detected.python_min]
    with open(os.path.join(folder, detected.file), encoding="utf-8", errors="replace") as file:
        # Machines use their default index unless the project names another.
        index = ["--emit-index-url"] if _INDEX.search(file.read()) else []
    return run_uv([*arguments, *index, *python, detected.file, *options], what="resolving", cwd=folder)


def _without_local(text: str, file: str) -> tuple[str, list[str]]:
    """Drop requirements that are paths, which machines import from the code folder, and credentials in URLs."""
    kept: list[str] = []
    remarks: list[str] = []
    for line in text.splitlines():
        if _LOCAL.match(line):
            remarks.append(f"{file}: `{line.strip()}` is not installed; it is imported from the code folder")
            continue
        plain = _CREDENTIALS.sub(r"\1", line)
        if plain != line:
            remarks.append(f"{file}: credentials in `{plain.strip()}` are not stored; machines use it without them")
        kept.append(plain)
    return "\n".join(kept).strip() + "\n" if kept else "", remarks
