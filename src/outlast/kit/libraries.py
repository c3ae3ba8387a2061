"""Archives of the agent kit: the agent's pinned libraries for every Python that images have, and the `uv` program.

Built on the submitter's computer from locks with hashes, stored once per workspace under the hash of their content. A
machine that boots needs no package index, no distribution mirror and no pip.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import platform
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from importlib import resources

import msgspec

from outlast import private
from outlast.errors import Exists, Missing, OutlastError
from outlast.kit.uv import run_uv
from outlast.store.bucket import Bucket

# Pythons of current images: Debian 12 has 3.11, Ubuntu 24.04 has 3.12, Debian 13 has 3.13.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
_PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "aarch64": "aarch64-manylinux_2_28"}
# A change of the archives' layout changes their names.
_LAYOUT = "1"
# A folder that several computers or tests share; without it, the cache of this user.
CACHE_VARIABLE = "OUTLAST_KIT_CACHE"

_stored: dict[tuple[str, str], str] = {}


def store_libraries(bucket: Bucket, *, extra: str = "", architecture: str = "x86_64") -> str:
    """Return the key of the libraries' archive in the workspace; build and upload it if it is not there.

    `extra` adds the client of a cloud's API; `db` has the drivers of databases alone. Raises OutlastError if uv
    is missing or cannot download.
    """
    name = f"libraries-{extra or 'core'}-{architecture}"
    return _store(bucket, name, _lock(extra or "core"), lambda lock: _libraries(lock, architecture))


def store_uv(bucket: Bucket, *, architecture: str = "x86_64") -> str:
    """Return the key of the archive with the `uv` program; build and upload it if it is not there."""
    return _store(bucket, f"uv-{architecture}", _lock("uv"), lambda lock: _uv(lock, architecture))


def fetch_libraries(bucket: Bucket, extra: str, *, folder: str) -> str:
    """Fetch the libraries of `extra`, which the submitter stored, on a machine; return their folder for this Python.

    Raises OutlastError if they are not in the workspace, or not for this Python.
    """
    name = f"libraries-{extra}-{platform.machine()}"
    try:
        key = msgspec.json.decode(bucket.get(f"kits/{_named(name, _lock(extra))}.json"), type=str)
        body = bucket.get(key)
    except Missing as problem:
        raise OutlastError(f"{name} is not in the workspace", hint="submit the run again") from problem
    digest = key.split("/")[1]
    if hashlib.sha256(body).hexdigest() != digest:
        raise OutlastError(f"{key} is damaged: its content does not match its name", hint="delete it, and submit again")
    target = os.path.join(folder, digest)
    found = os.path.join(target, f"{sys.version_info.major}.{sys.version_info.minor}")
    if not os.path.isdir(found):
        os.makedirs(target, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(body)) as members:
            members.extractall(target, filter="data")
    if not os.path.isdir(found):
        raise OutlastError(f"{name} has no libraries for Python {os.path.basename(found)}")
    return found


def uv_archive(*, architecture: str = "x86_64") -> bytes:
    """Return the archive with `bin/uv`, for a machine that gets it over ssh. Raises OutlastError."""
    if architecture not in _PLATFORMS:
        raise OutlastError(f"no `uv` for processor `{architecture}`", hint=f"use one of {', '.join(_PLATFORMS)}")
    lock = _lock("uv")
    name = _named(f"uv-{architecture}", lock)
    return _cached(f"{name}.tar.gz", lock, lambda path: _uv(path, architecture))


def _named(name: str, lock: bytes) -> str:
    return f"{name}-{hashlib.sha256(lock + _LAYOUT.encode()).hexdigest()[:24]}"


def _store(bucket: Bucket, name: str, lock: bytes, build: Callable[[str], bytes]) -> str:
    full = _named(name, lock)
    known = (bucket.url, full)
    if known not in _stored:
        # The index maps a lock, which is known here, to an archive, whose name is the hash that machines verify.
        index = f"kits/{full}.json"
        try:
            _stored[known] = msgspec.json.decode(bucket.get(index), type=str)
        except Missing:
            body = _cached(f"{full}.tar.gz", lock, build)
            key = f"kits/{hashlib.sha256(body).hexdigest()}/{name}.tar.gz"
            bucket.put(key, body, durable=True)
            try:
                bucket.create(index, msgspec.json.encode(key))
            except Exists:
                pass  # another process stored the same archive
            _stored[known] = key
    return _stored[known]


def _cached(name: str, lock: bytes, build: Callable[[str], bytes]) -> bytes:
    """Return an archive of the local cache, built on first use."""
    folder = os.environ.get(CACHE_VARIABLE) or private.folder("cache", "kits")
    path = os.path.join(folder, name)
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        pass
    os.makedirs(folder, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".txt") as requirements:
        requirements.write(lock)
        requirements.flush()
        body = build(requirements.name)
    handle, draft = tempfile.mkstemp(dir=folder)
    with open(handle, "wb") as file:
        file.write(body)
    os.replace(draft, path)
    return body


def _lock(name: str) -> bytes:
    return resources.files("outlast.kit").joinpath("locks", f"{name}.lock").read_bytes()


def _libraries(lock: str, architecture: str) -> bytes:
    """Install the locked libraries once per Python, each in its own folder: `3.12/msgspec/…`."""
    with tempfile.TemporaryDirectory() as folder:
        for python in PYTHONS:
            _install(lock, os.path.join(folder, python), python=python, architecture=architecture)
            # Scripts name the Python of this computer, and none is called.
            shutil.rmtree(os.path.join(folder, python, "bin"), ignore_errors=True)
        return _archive(folder)


def _uv(lock: str, architecture: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        _install(lock, os.path.join(folder, "package"), python=PYTHONS[0], architecture=architecture)
        os.makedirs(os.path.join(folder, "kept", "bin"))
        shutil.move(os.path.join(folder, "package", "bin", "uv"), os.path.join(folder, "kept", "bin", "uv"))
        return _archive(os.path.join(folder, "kept"))


def _install(lock: str, target: str, *, python: str, architecture: str) -> None:
    target_options = (
        "--python-platform",
        _PLATFORMS[architecture],
        "--python-version",
        python,
        "--only-binary",
        ":all:",
    )
    arguments = ("pip", "install", "--quiet", "--require-hashes", "--no-deps", "--requirement", lock)
    run_uv([*arguments, "--target", target, *target_options], what="building the agent kit")


def _archive(folder: str) -> bytes:
    """Pack a folder: the same bytes for the same content. Equal files are stored once, as hard links."""
    packed = io.BytesIO()
    first: dict[bytes, str] = {}
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, compresslevel=6) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for path in _files(folder):
            entry = tarfile.TarInfo(os.path.relpath(path, folder))
            with open(path, "rb") as file:
                body = file.read()
            entry.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            digest = hashlib.sha256(body + bytes([entry.mode & 0o100])).digest()
            if body and digest in first:
                entry.type, entry.linkname = tarfile.LNKTYPE, first[digest]
                archive.addfile(entry)
                continue
            first[digest] = entry.name
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return packed.getvalue()


def _files(folder: str) -> Iterator[str]:
    for above, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if name != "__pycache__")
        for name in sorted(names):
            if name != ".lock":
                yield os.path.join(above, name)
