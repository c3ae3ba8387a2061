"""Resolution of an environment at submit: one lock with versions and hashes, whatever file the project has.

This computer keeps a resolution for a day: a second submit needs no package index. If the index does not answer, an
older resolution of the same files is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import time
import tomllib
from collections.abc import Iterator, Sequence

import msgspec

from outlast import private
from outlast.environments.detect import Detected, project_table
from outlast.errors import SpecError
from outlast.kit.uv import NETWORK, UvFailed, run_uv

_HINT = 'repair the file, or run without it: environment = "none"'
_NETWORK_HINT = "check your network and the address of the package index; a `uv.lock` needs no index at submit"
# Of uv unless configured. In pieces: the check of this repository for addresses of indexes finds it otherwise.
_PYPI = "https://" + "pypi" + ".org/simple"
_CREDENTIALS = re.compile(r"(://)[^/@\s]+@")
_INDEX = re.compile(r"^\s*(-i|--index-url|--extra-index-url|-f|--find-links)\b|^\[\[tool\.uv\.index\]\]", re.MULTILINE)
# A file that a list of requirements includes.
_INCLUDED = re.compile(r"^\s*(?:-r|-c|--requirement|--constraint)[\s=]+(\S+)", re.MULTILINE)
# Machines have the outlast of the submitter.
_OUTLAST = re.compile(r"^\s*outlast\s*(?:\[([\w\s,.-]*)\])?\s*(?:[=<>!~;#].*)?$", re.IGNORECASE)
_EXTRA = re.compile(r"""\s*;.*\bextra\s*==\s*['"]([\w.-]+)['"].*$""")
_FRESH_S = 86400.0
# A requirement that is a path: the project itself, or a folder beside it.
_LOCAL = re.compile(r"^(-e\s+|--editable\s+)?(\./|\.\./|/|\.$|file:)|^[^#]*@\s*file:")


def resolve(folder: str, detected: Detected, *, extras: Sequence[str] = (), torch: str = "") -> tuple[str, list[str]]:
    """Return the lock of an environment, and remarks for the user. Raises SpecError with uv's reason.

    The lock is a list of requirements for Linux with hashes. A conda environment is returned as it is. `torch` is a
    backend of PyTorch, such as `cpu` or `cu128`.
    """
    if detected.kind == "empty":
        return "", []
    if detected.kind == "conda":
        with open(os.path.join(folder, detected.file), encoding="utf-8") as file:
            return file.read(), []
    kept = _kept_at(folder, detected, [*extras, torch])
    if (text := _read_fresh(kept)) is not None:
        return _without_local(text, detected.file)
    try:
        text = _export(folder, extras) if detected.kind == "uv" else _compile(folder, detected, extras, torch)
    except UvFailed as problem:
        silent = NETWORK.search(problem.output) is not None
        old = _read_fresh(kept, within_s=float("inf")) if silent else None
        if old is None:
            hint = _NETWORK_HINT if silent else _HINT
            raise SpecError([f"{detected.file}: {problem.message}"], hint=hint) from problem
        lock, remarks = _without_local(old, detected.file)
        return lock, [f"{detected.file}: the package index does not answer: using an earlier resolution", *remarks]
    _write(kept, text)
    return _without_local(text, detected.file)


def _export(folder: str, extras: Sequence[str]) -> str:
    """Export uv.lock as it is, with its package indexes. It fails if the lock does not match pyproject.toml."""
    options = [option for extra in extras for option in ("--extra", extra)]
    arguments = ("export", "--quiet", "--locked", "--no-dev", "--no-emit-project", "--no-header", "--no-annotate")
    exported = run_uv([*arguments, "--format", "requirements.txt", *options], what="uv export", cwd=folder)
    return "".join(f"{line}\n" for line in _indexes(folder)) + exported


def _indexes(folder: str) -> list[str]:
    """Return the options that name the package indexes of uv.lock; none if it uses the default one alone.

    The export names none, and older versions of uv have no option for it.
    """
    with open(os.path.join(folder, "uv.lock"), "rb") as file:
        packages = tomllib.load(file).get("package", [])
    used = dict.fromkeys(str(one.get("source", {}).get("registry", "")) for one in packages)
    urls = [url for url in used if url.startswith(("http://", "https://", "file:"))]
    others = [url for url in urls if url.rstrip("/") != _PYPI]
    # A lock that never uses PyPI comes from a mirror.
    default = others[:1] if len(others) == len(urls) else []
    return [f"--index-url {url}" for url in default] + [f"--extra-index-url {url}" for url in others[len(default) :]]


def _compile(folder: str, detected: Detected, extras: Sequence[str], torch: str) -> str:
    arguments = ("pip", "compile", "--quiet", "--universal", "--generate-hashes", "--no-header", "--no-annotate")
    python = ["--python-version", detected.python_min]
    with open(os.path.join(folder, detected.file), encoding="utf-8", errors="replace") as file:
        listed = file.read()
    # Machines use their default index unless the project names another.
    index = ["--emit-index-url"] if _INDEX.search(listed) else []
    source, text = detected.file, ""
    if detected.kind == "pyproject":
        table = project_table(folder)
        more = table.get("optional-dependencies", {})
        listed = "\n".join([*table.get("dependencies", []), *(one for extra in extras for one in more.get(extra, []))])
    if any(map(_OUTLAST.match, listed.splitlines())):
        source, text = "-", without_outlast(listed)
        if not text.strip():
            return ""
        extras = ()
    options = [option for extra in extras for option in ("--extra", extra)]
    options += ["--torch-backend", torch] if torch else []
    return run_uv([*arguments, *index, *python, source, *options], what="resolving", cwd=folder, input=text)


def without_outlast(listed: str) -> str:
    """Return requirements without outlast, which machines have, but with the packages of the extras that it names."""
    lines = []
    for line in listed.splitlines():
        found = _OUTLAST.match(line)
        if found is None:
            lines.append(line)
        elif found[1]:
            wanted = {extra.strip().lower() for extra in found[1].split(",")}
            lines += [
                _EXTRA.sub("", one) for one in _own_requirements() if (m := _EXTRA.search(one)) and m[1] in wanted
            ]
    return "".join(f"{line}\n" for line in lines)


def _own_requirements() -> list[str]:
    try:
        return importlib.metadata.requires("outlast") or []
    except importlib.metadata.PackageNotFoundError:
        return []  # outlast runs from its sources


# Resolutions that this computer keeps


def _kept_at(folder: str, detected: Detected, options: Sequence[str]) -> str:
    """Return the path of the kept resolution: it depends on all files that uv reads, and on uv's settings."""
    digest = hashlib.sha256()
    names = [detected.file, *(("pyproject.toml", "uv.toml") if detected.kind != "conda" else ())]
    for path, body in _read_all(folder, names):
        digest.update(f"{path}\0{len(body)}\0".encode() + body)
    settings = {name: value for name, value in os.environ.items() if name.startswith("UV_")}
    asked = [detected.kind, detected.python_min, list(options), sorted(settings.items())]
    digest.update(msgspec.json.encode(asked))
    return os.path.join(private.folder("cache", "resolutions"), digest.hexdigest())


def _read_all(folder: str, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files with these names, and those that they include, each once."""
    waiting, seen = [os.path.join(folder, name) for name in names], set[str]()
    while waiting:
        path = os.path.normpath(waiting.pop())
        if path in seen:
            continue
        seen.add(path)
        try:
            with open(path, "rb") as file:
                body = file.read()
        except OSError:
            continue  # uv reports it
        yield path, body
        included = _INCLUDED.findall(body.decode("utf-8", "replace"))
        waiting += [os.path.join(os.path.dirname(path), one) for one in included]


def _read_fresh(path: str, *, within_s: float = _FRESH_S) -> str | None:
    try:
        if time.time() - os.stat(path).st_mtime > within_s:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return None


def _write(path: str, text: str) -> None:
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(draft, path)


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
