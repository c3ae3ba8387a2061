"""Recipes of images: the spec, the contents of its files, the identity of its base, and the digest of them all.

The same digest means the same image, which is built only once.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator

import msgspec

from outlast.clouds.cloud import Image
from outlast.errors import SpecError
from outlast.spec.image import script_file
from outlast.spec.spec import ImageSpec, MachineSpec

# Increased when the steps change, so that images of an older outlast are not reused.
_FORMAT = 1
# A label has at most 63 characters, and 128 bits do not collide.
_DIGITS = 32
_SHOWN = 12


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """The content of one image, identified by `digest`."""

    spec: ImageSpec
    # Relative paths of the recipe start here.
    folder: str
    source: str
    base: str
    digest: str
    # The text of the script, and its name in messages.
    script: str = ""
    script_name: str = ""
    # File name → content, in order of installation.
    requirements: dict[str, str] = {}
    lock: str = ""
    # The name that the user chose for the image, and the machine whose disk it is made from.
    image_name: str = ""
    origin: str = ""

    @property
    def image(self) -> str:
        """The image's name, derived from the digest, so that the same recipe has the same image."""
        return self.image_name or f"{self.spec.name}-{self.digest[:_SHOWN]}"

    @property
    def made_from(self) -> str:
        return self.origin or self.base


def read_recipe(spec: ImageSpec, *, folder: str, base: Image, source: str) -> Recipe:
    """Read the files of a recipe. Raises SpecError with every unreadable file."""
    problems: list[str] = []
    script_path = script_file(spec.script)
    script = _read(folder, script_path.strip(), "script", problems) if script_path else spec.script
    requirements = {path: _read(folder, path, "requirements", problems) for path in spec.requirements}
    lock = _read(folder, spec.lock, "lock", problems) if spec.lock else ""
    files: dict[str, str] = {}
    for target, path in spec.files.items():
        try:
            files[target] = tree_digest(os.path.join(folder, os.path.expanduser(path)))
        except OSError as problem:
            problems.append(f"[image] files: `{path}` cannot be read: {problem.strerror}")
    if script and not problems:
        problems += check_script(script, script_path or "script")
    if problems:
        raise SpecError(problems, source=source, hint=f"paths are relative to {folder}")
    content = {
        "format": _FORMAT,
        # The builder's type and timeout do not change the image.
        "spec": msgspec.structs.replace(spec, machine=MachineSpec(cloud=spec.machine.cloud), timeout_s=0.0),
        "base": [base.cloud, base.name, base.created_at],
        "script": script,
        "requirements": requirements,
        "lock": lock,
        "files": files,
    }
    digest = hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()[:_DIGITS]
    return Recipe(
        spec=spec,
        folder=folder,
        source=source,
        base=base.name,
        digest=digest,
        script=script,
        script_name=script_path or "script",
        requirements=requirements,
        lock=lock,
    )


def _read(folder: str, path: str, field: str, problems: list[str]) -> str:
    try:
        with open(os.path.join(folder, os.path.expanduser(path)), encoding="utf-8") as file:
            return file.read()
    except OSError as problem:
        problems.append(f"[image] {field}: `{path}` cannot be read: {problem.strerror}")
    except UnicodeDecodeError:
        problems.append(f"[image] {field}: `{path}` is not UTF-8 text")
    return ""


def check_script(script: str, name: str) -> list[str]:
    """Return bash's syntax errors in the script; none if bash is not installed."""
    bash = shutil.which("bash")
    if bash is None:
        return []
    answer = subprocess.run([bash, "-n"], input=script, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return []
    error = (answer.stderr.strip().splitlines() or ["not a bash script"])[0]
    _, _, reason = error.partition("line ")
    return [f"[image] script: {name}, line {reason}" if reason else f"[image] script: {name}: {error}"]


def tree_digest(path: str) -> str:
    """Return the digest of a file or folder: names, contents, links and executable bits."""
    total = hashlib.sha256()
    for name, full in _walk(path):
        info = os.lstat(full)
        total.update(
            f"{name}\0{stat.S_IFMT(info.st_mode)}\0{bool(info.st_mode & 0o100)}\0".encode("utf-8", "surrogateescape")
        )
        if stat.S_ISLNK(info.st_mode):
            total.update(os.fsencode(os.readlink(full)))
        elif stat.S_ISREG(info.st_mode):
            with open(full, "rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def _walk(path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and everything below it, sorted. Follow only the given path if it is a link."""
    path = os.path.realpath(path)
    yield "", path
    if not os.path.isdir(path):
        return
    for folder, folders, names in os.walk(path, onerror=_raise):
        folders.sort()
        for name in sorted([*folders, *names]):
            full = os.path.join(folder, name)
            yield os.path.relpath(full, path), full


def _raise(problem: OSError) -> None:
    raise problem
