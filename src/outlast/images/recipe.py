"""A recipe with all that it names: the contents of its files and the identity of its base, and the digest of it all.

The same digest is the same image: it is built once, whoever asks. Refuses to build anything.
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

# Changed when the steps change, so that what an older outlast built is not taken for what this one would.
_FORMAT = 1
# Of 64 digits so many: the label of an image holds no more than 63 characters, and 128 bits never collide.
_DIGITS = 32
_SHOWN = 12


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into one image. `digest` stands for all of it."""

    spec: ImageSpec
    # Where the paths of the recipe begin.
    folder: str
    source: str
    base: str
    digest: str
    # The lines of the script, and what errors call it.
    script: str = ""
    script_name: str = ""
    # Names and contents, in the order in which they are installed.
    requirements: dict[str, str] = {}
    lock: str = ""

    @property
    def image(self) -> str:
        """Derived, never drawn: two who build the same make one image."""
        return f"{self.spec.name}-{self.digest[:_SHOWN]}"


def read_recipe(spec: ImageSpec, *, folder: str, base: Image, source: str) -> Recipe:
    """The recipe with its files read. Raises SpecError that names every one that cannot be."""
    problems: list[str] = []
    script_path = script_file(spec.script)
    script = _read(folder, script_path.strip(), "script", problems) if script_path else spec.script
    requirements = {path: _read(folder, path, "requirements", problems) for path in spec.requirements}
    lock = _read(folder, spec.lock, "lock", problems) if spec.lock else ""
    files: dict[str, str] = {}
    for place, path in spec.files.items():
        try:
            files[place] = tree_digest(os.path.join(folder, os.path.expanduser(path)))
        except OSError as problem:
            problems.append(f"[image] files: `{path}` cannot be read: {problem.strerror}")
    if script and not problems:
        problems += check_script(script, script_path or "script")
    if problems:
        raise SpecError(problems, source=source, hint=f"paths are relative to {folder}")
    content = {
        "format": _FORMAT,
        # What the builder is like, and how long it may take, does not change what comes out.
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
        problems.append(f"[image] {field}: `{path}` is no text in UTF-8")
    return ""


def check_script(script: str, name: str) -> list[str]:
    """What bash says against the script without running it; nothing where there is no bash to ask."""
    bash = shutil.which("bash")
    if bash is None:
        return []
    answer = subprocess.run([bash, "-n"], input=script, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return []
    said = (answer.stderr.strip().splitlines() or ["it is no script of bash"])[0]
    _, _, reason = said.partition("line ")
    return [f"[image] script: {name}, line {reason}" if reason else f"[image] script: {name}: {said}"]


def tree_digest(path: str) -> str:
    """The digest of a file or of a folder with everything in it: names, contents, links, and who may execute."""
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
    """The thing itself and everything below it, sorted. Only what is given is followed if it is a link."""
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
