"""Checkpoints: a manifest that names files and their parts, whole or not there, and the way back from it.

The order is the guarantee: parts first, the manifest after them, `Saved` in the story last. Refuses to know when a
folder is whole; that is the agent's to judge.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import msgspec

from outlast.errors import Damaged, Exists, Missing, WorkspaceError
from outlast.spec.names import is_meant, may_hold
from outlast.workspace import direct
from outlast.workspace.bucket import Bucket, check_key
from outlast.workspace.codec import decoded
from outlast.workspace.each import Each, in_parallel
from outlast.workspace.parts import PART_BYTES, File, Part, parts_prefix
from outlast.workspace.state import Checkpoint


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    checkpoint: str
    attempt: int
    files: tuple[File, ...]
    step: int | None = None

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(part.key for file in self.files for part in file.parts)


def manifest_key(run: str, checkpoint: str) -> str:
    return f"runs/{run}/checkpoints/{checkpoint}/manifest.json"


def write_manifest(bucket: Bucket, manifest: Manifest) -> None:
    """The commit of the bodies. Finding our own manifest there means that an answer was lost."""
    key = manifest_key(manifest.run, manifest.checkpoint)
    try:
        bucket.create(key, msgspec.json.encode(manifest))
    except Exists:
        if read_manifest(bucket, manifest.run, manifest.checkpoint) != manifest:
            raise WorkspaceError(f"{key} is there already and says something else") from None


def read_manifest(bucket: Bucket, run: str, checkpoint: str) -> Manifest:
    """Raises Missing, or Damaged if it lies about itself."""
    key = manifest_key(run, checkpoint)
    manifest = decoded(bucket.get(key), Manifest, key)
    if (manifest.run, manifest.checkpoint) != (run, checkpoint):
        raise Damaged(f"{key} belongs to checkpoint {manifest.checkpoint} of {manifest.run}")
    _check_parts(manifest, key)
    return manifest


def _check_parts(manifest: Manifest, key: str) -> None:
    """Only parts of its own run: what a manifest names is read, and deleted some day."""
    for part in (part for file in manifest.files for part in file.parts):
        try:
            mine = check_key(part.key).startswith(parts_prefix(manifest.run))
        except (WorkspaceError, ValueError):
            mine = False
        if not mine or part.bytes < 1:
            raise Damaged(f"{key} names `{part.key}`, which is no part of {manifest.run}")
    if len({file.path for file in manifest.files}) != len(manifest.files):
        raise Damaged(f"{key} names a file twice")


def restore(
    bucket: Bucket,
    run: str,
    checkpoints: Iterable[Checkpoint],
    folder: str,
    *,
    names: Collection[str] = (),
    each: Each = in_parallel,
) -> tuple[Manifest | None, list[str]]:
    """Put the newest checkpoint whose hashes hold into the folder; also says which ones did not hold, and why.

    The folder, or all in it that is called by `names`, is replaced: it never mixes two checkpoints. Raises
    StoreUnreachable: a store that does not answer says nothing about a checkpoint, and to fall back then would throw
    away committed progress.
    """
    problems: list[str] = []
    folder = os.path.abspath(folder)
    staged = f"{folder}.restoring"
    for checkpoint in checkpoints:
        shutil.rmtree(staged, ignore_errors=True)
        try:
            manifest = read_manifest(bucket, run, checkpoint.id)
            _fetch(bucket, manifest, staged, each)
            _exchange(folder, staged, manifest, names)
        except (Missing, Damaged) as problem:
            problems.append(f"checkpoint {checkpoint.id} does not hold: {problem.message}")
            continue
        return manifest, problems
    shutil.rmtree(staged, ignore_errors=True)
    return None, problems


def _exchange(folder: str, staged: str, manifest: Manifest, names: Collection[str]) -> None:
    """What was fetched takes the place of what is there. Raises Damaged if it is not what the names allow."""
    if names:
        _exchange_some(folder, staged, manifest, names)
        return
    if os.path.islink(folder):
        os.unlink(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    os.replace(staged, folder)


def _exchange_some(folder: str, staged: str, manifest: Manifest, names: Collection[str]) -> None:
    """Beside other files, which stay as they are."""
    for file in manifest.files:
        if not is_meant(file.path, names) or not _is_within(folder, os.path.dirname(file.path)):
            raise Damaged(f"`{file.path}` is none of the files that this run's checkpoints have")
    for name in names:
        for path in glob.glob(name, root_dir=folder, include_hidden=True):
            if _is_within(folder, os.path.dirname(path)):
                _remove(os.path.join(folder, path))
    for file in manifest.files:
        target = os.path.join(folder, file.path)
        with _room_for(file.path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(os.path.join(staged, file.path), target)
    shutil.rmtree(staged, ignore_errors=True)


def _is_within(folder: str, path: str) -> bool:
    """Does it lead to the folder or below, whatever links are on the way?"""
    real = os.path.realpath(os.path.join(folder, path))
    return os.path.join(real, "").startswith(os.path.join(os.path.realpath(folder), ""))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _fetch(bucket: Bucket, manifest: Manifest, folder: str, each: Each) -> None:
    os.makedirs(folder, exist_ok=True)
    pieces: list[tuple[_Target, int, Part]] = []
    for file in manifest.files:
        target = _inside(folder, file.path)
        with _room_for(file.path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if not file.link:
                _make(target, file)
        at, shared = 0, _Target(target)
        for part in file.parts:
            pieces.append((shared, at, part))
            at += part.bytes
    # As in `upload_files`; with room for one byte too many, which would be a lie.
    rooms: list[memoryview] = []
    each(lambda piece: _fetch_part(bucket, *piece, rooms), pieces)
    for file in manifest.files:
        if file.link:
            # Last, and to places inside only: nothing was written through one.
            _inside(folder, os.path.join(os.path.dirname(file.path), file.link))
            with _room_for(file.path):
                os.symlink(file.link, _inside(folder, file.path))
    # Asked when all of them are there: a link may lead out by way of another.
    for file in manifest.files:
        if file.link and not _leads_inside(folder, file.path):
            raise Damaged(f"`{file.path}` leads out of the checkpoint folder")


def _make(target: str, file: File) -> None:
    """The file in its full length, as one hole: its parts come in any order, and what is a hole may stay one."""
    with open(target, "xb") as made:
        made.truncate(file.bytes)
    if file.executable:
        os.chmod(target, 0o755)


class _Target:
    """A file that many threads write to. They take turns, as they must in the kernel, where whoever waits spins on a
    core that others could hash with."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.turn = threading.Lock()


def _fetch_part(bucket: Bucket, target: _Target, at: int, part: Part, rooms: list[memoryview]) -> None:
    if part.bytes == PART_BYTES and part.sha256 == _sha256_of_zeros():
        return
    if part.bytes > PART_BYTES:
        _put(target, at, part, memoryview(bucket.get(part.key)))
        return
    room = rooms.pop() if rooms else direct.room(PART_BYTES + 4096)
    try:
        _put(target, at, part, room[: bucket.fill(part.key, room)])
    finally:
        rooms.append(room)


def _put(target: _Target, at: int, part: Part, body: memoryview) -> None:
    # The very bytes that are written: there is no second look at the file.
    if len(body) != part.bytes or hashlib.sha256(body).hexdigest() != part.sha256:
        raise Damaged(f"`{os.path.basename(target.path)}` is damaged at byte {at}")
    with target.turn, open(target.path, "r+b", buffering=0) as file:
        file.seek(at)
        while body:
            body = body[file.write(body) :]


@cache
def _sha256_of_zeros() -> str:
    return hashlib.sha256(bytes(PART_BYTES)).hexdigest()


# What a file system says of names and sizes that it cannot hold; a full disk is not among them.
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EFBIG, errno.EINVAL, errno.EILSEQ}


@contextmanager
def _room_for(path: str) -> Iterator[None]:
    try:
        yield
    except (FileExistsError, NotADirectoryError, IsADirectoryError, ValueError, OverflowError) as problem:
        raise Damaged(f"`{path}` cannot be a file of a checkpoint: {problem}") from problem
    except OSError as problem:
        if problem.errno not in _IMPOSSIBLE:
            raise
        raise Damaged(f"`{path}` cannot be a file of a checkpoint: {problem.strerror}") from problem


def _leads_inside(folder: str, path: str) -> bool:
    return os.path.realpath(os.path.join(folder, path)).startswith(os.path.join(os.path.realpath(folder), ""))


def _inside(folder: str, path: str) -> str:
    target = os.path.normpath(os.path.join(folder, path))
    if not target.startswith(os.path.join(folder, "")):
        raise Damaged(f"`{path}` leaves the checkpoint folder")
    return target


def files_of(folder: str) -> Mapping[str, os.stat_result]:
    """Every regular file below the folder with its stat; see `survey`."""
    return survey(folder)[0]


def survey(folder: str, *, names: Collection[str] = ()) -> tuple[dict[str, os.stat_result], dict[str, str]]:
    """The regular files below a folder with their stats, and the links to places inside of it: path → relative target.

    Links to places outside are followed, since nothing else brings along what they lead to. With `names` only what is
    called by them counts, and what is not is outside.
    """
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    top = os.path.realpath(folder)

    def walk(below: str, ways: tuple[str, ...]) -> None:
        for entry in _entries(os.path.join(folder, below)):
            path = os.path.join(below, entry.name)
            meant = is_meant(path, names)
            if not meant and not may_hold(path, names):
                continue
            try:
                info = entry.stat()
                real = os.path.realpath(entry.path) if entry.is_symlink() else ""
            except OSError:
                continue  # went away while we looked, or a dangling link
            if meant and real.startswith(os.path.join(top, "")) and is_meant(os.path.relpath(real, top), names):
                links[path] = os.path.relpath(os.path.relpath(real, top), below or ".")
            elif stat.S_ISREG(info.st_mode) or (stat.S_ISDIR(info.st_mode) and not os.access(entry.path, os.R_OK)):
                # A folder that may not be read is named, so that whoever copies it fails: its files would be missing.
                if meant:
                    files[path] = info
            elif stat.S_ISDIR(info.st_mode) and real not in ways:
                walk(path, (*ways, real) if real else ways)

    walk("", (top,))
    return files, links


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
