"""Restore of checkpoints: the newest one whose hashes are correct, complete or not at all.

A commit stores parts, then the manifest, then `Saved`. A restore creates links last, so that no write follows a link.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial

import msgspec

from outlast.errors import Damaged, Missing
from outlast.runs.manifest import Manifest, read_manifest
from outlast.runs.state import Checkpoint
from outlast.spec.checkpoint_patterns import is_meant
from outlast.store import direct_io
from outlast.store.bucket import Bucket
from outlast.store.hashing import sha256_of
from outlast.store.parallel import ParallelMap, in_parallel
from outlast.store.parts import PART_BYTES, Part, StoredFile

# A time beyond the year 2200 is a damaged one.
_NS_MAX = 7_258_118_400 * 10**9


def restore(
    bucket: Bucket,
    run: str,
    checkpoints: Iterable[Checkpoint],
    folder: str,
    *,
    names: Collection[str] = (),
    node: int = 0,
    each: ParallelMap = in_parallel,
) -> tuple[Manifest | None, list[str]]:
    """Restore the newest intact checkpoint into the folder; also return remarks on damaged ones and omitted links.

    The folder, or everything in it that matches `names`, is replaced: it never mixes two checkpoints. Raises
    StoreUnreachable rather than fall back: an unreachable store must not cost committed progress.
    """
    problems: list[str] = []
    folder = os.path.abspath(folder)
    staged = f"{folder}.restoring"
    for checkpoint in checkpoints:
        shutil.rmtree(staged, ignore_errors=True)
        try:
            # Every node receives the files of all: frameworks such as DCP read shards that other ranks wrote.
            manifest = read_manifest(bucket, run, checkpoint.id).seen_by(node)
            manifest = msgspec.structs.replace(manifest, digests=_fetch(bucket, manifest, staged, each))
            _restore_times(staged, manifest)
            left_out = _make_links(manifest, staged)
            _exchange(folder, staged, manifest, names)
        except (Missing, Damaged) as problem:
            problems.append(f"checkpoint {checkpoint.id} is damaged: {problem.message}")
            continue
        return manifest, problems + left_out
    shutil.rmtree(staged, ignore_errors=True)
    return None, problems


def _exchange(folder: str, staged: str, manifest: Manifest, names: Collection[str]) -> None:
    """Replace the folder by the staged files. Raises Damaged if a file does not match the names."""
    if names:
        _exchange_some(folder, staged, manifest, names)
        return
    if os.path.islink(folder):
        os.unlink(folder)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    os.replace(staged, folder)


def _restore_times(folder: str, manifest: Manifest) -> None:
    """Restore the times of files and of their folders, the oldest first: programs resume from the newest one."""
    times: dict[str, int] = {}
    for file in manifest.files:
        changed_ns = manifest.changed_ns.get(file.path, 0)
        if file.link or not 0 < changed_ns < _NS_MAX:
            continue
        path = file.path
        while path:
            times[path] = max(times.get(path, 0), changed_ns)
            path = os.path.dirname(path)
    for path, changed_ns in sorted(times.items(), key=lambda item: (item[1], -item[0].count("/"))):
        with suppress(OSError):
            os.utime(os.path.join(folder, path), ns=(changed_ns, changed_ns), follow_symlinks=False)


def _exchange_some(folder: str, staged: str, manifest: Manifest, names: Collection[str]) -> None:
    """Replace only the files that match the names."""
    paths = [*manifest.folders, *(file.path for file in manifest.files)]
    for path in paths:
        if not is_meant(path, names) or not _is_within(folder, os.path.dirname(path)):
            raise Damaged(f"`{path}` does not match the checkpoint files of this run")
    for name in names:
        for path in glob.glob(name, root_dir=folder, include_hidden=True):
            if _is_within(folder, os.path.dirname(path)):
                _remove(os.path.join(folder, path))
    for path in paths:
        source, target = os.path.join(staged, path), os.path.join(folder, path)
        if not os.path.lexists(source):
            continue  # an omitted link
        with _room_for(path):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(source, target)
    shutil.rmtree(staged, ignore_errors=True)


def _is_within(folder: str, path: str) -> bool:
    """Return whether the path, with all links resolved, is the folder or below it."""
    real = os.path.realpath(os.path.join(folder, path))
    return os.path.join(real, "").startswith(os.path.join(os.path.realpath(folder), ""))


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _fetch(bucket: Bucket, manifest: Manifest, folder: str, each: ParallelMap) -> dict[str, bytes]:
    """Fetch all files and folders, but no links. Return the sha256 of each small file."""
    targets = {file.path: _inside(folder, file.path) for file in manifest.files}
    above = {os.path.dirname(path) for path in targets}
    for path in {*above, *manifest.folders}:
        with _room_for(path):
            os.makedirs(_inside(folder, path) if path else folder, exist_ok=True)
    # Reused buffers, as in `packs.py`; larger than a part, to detect a body that is too long.
    rooms: list[memoryview] = []
    digests: dict[str, bytes] = {}
    packs: dict[str, list[StoredFile]] = {}
    jobs: list[Callable[[], None]] = []
    for file in manifest.files:
        if file.link:
            continue
        if file.size is not None:
            packs.setdefault(file.parts[0].key, []).append(file)
            continue
        with _room_for(file.path):
            _make(targets[file.path], file)
        at, shared = 0, _Target(targets[file.path])
        for part in file.parts:
            jobs.append(partial(_fetch_part, bucket, shared, at, part, rooms))
            at += part.bytes
    unpacker = _Unpacker(bucket, targets, digests, rooms)
    jobs += [partial(unpacker.fetch, files) for files in packs.values()]
    each(lambda job: job(), jobs)
    return digests


class _Unpacker:
    """Fetches packs in several threads and writes their files in one: more writers would only wait for each other."""

    def __init__(
        self, bucket: Bucket, targets: dict[str, str], digests: dict[str, bytes], rooms: list[memoryview]
    ) -> None:
        self._bucket = bucket
        self._targets = targets
        self._digests = digests
        self._rooms = rooms
        self._turn = threading.Lock()

    def fetch(self, files: list[StoredFile]) -> None:
        """Fetch and write the files of one pack."""
        part = files[0].parts[0]
        with _fetched(self._bucket, part, self._rooms) as body:
            if not _is_intact(body, part):
                raise Damaged(f"`{files[0].path}` and the {len(files) - 1} files beside it are damaged")
            with self._turn:
                for file in files:
                    self._write(file, body[file.at : file.at + file.bytes])

    def _write(self, file: StoredFile, body: memoryview) -> None:
        self._digests[file.path] = hashlib.sha256(body).digest()
        with _room_for(file.path):
            handle = os.open(self._targets[file.path], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            while body:
                body = body[os.write(handle, body) :]
            if file.executable:
                os.fchmod(handle, 0o755)
        finally:
            os.close(handle)


def _make_links(manifest: Manifest, folder: str) -> list[str]:
    """Create the links. Return a remark for each that is omitted because it points outside the folder.

    A dangling link is harmless and kept. All links are created before the check, since one may lead outside through
    another, and they are checked again after each removal.
    """
    links = {file.path: file.link for file in manifest.files if file.link}
    for path, target in links.items():
        with _room_for(path):
            os.symlink(target, _inside(folder, path))
    remarks: list[str] = []
    while out := [path for path in links if not _is_within(folder, path) and os.path.exists(f"{folder}/{path}")]:
        for path in out:
            os.unlink(f"{folder}/{path}")
            remarks.append(f"link `{path}` was omitted: it points to `{links.pop(path)}`, outside the checkpoint")
    return remarks


def _make(target: str, file: StoredFile) -> None:
    """Create the file as one hole of its full length: parts arrive in any order, and holes may stay."""
    with open(target, "xb") as made:
        made.truncate(file.bytes)
    if file.executable:
        os.chmod(target, 0o755)


class _Target:
    """A file that several threads write.

    The lock avoids spinning in the kernel, which would take cores from hashing.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.turn = threading.Lock()


def _fetch_part(bucket: Bucket, target: _Target, at: int, part: Part, rooms: list[memoryview]) -> None:
    if part.bytes == PART_BYTES and part.sha256 == _sha256_of_zeros():
        return
    with _fetched(bucket, part, rooms) as body:
        _put(target, at, part, body)


@contextmanager
def _fetched(bucket: Bucket, part: Part, rooms: list[memoryview]) -> Iterator[memoryview]:
    """Yield the stored body of a part."""
    if part.bytes > PART_BYTES:
        yield memoryview(bucket.get(part.key))
        return
    room = rooms.pop() if rooms else direct_io.room(PART_BYTES + 4096)
    try:
        yield room[: bucket.read_into(part.key, room)]
    finally:
        rooms.append(room)


def _is_intact(body: memoryview, part: Part) -> bool:
    return len(body) == part.bytes and sha256_of(body) == part.sha256


def _put(target: _Target, at: int, part: Part, body: memoryview) -> None:
    # The check covers the very bytes that are written.
    if not _is_intact(body, part):
        raise Damaged(f"`{os.path.basename(target.path)}` is damaged at byte {at}")
    with target.turn, open(target.path, "r+b", buffering=0) as file:
        file.seek(at)
        while body:
            body = body[file.write(body) :]


@cache
def _sha256_of_zeros() -> str:
    return hashlib.sha256(bytes(PART_BYTES)).hexdigest()


# Errors of a file system for impossible names and sizes; a full disk is not among them.
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


def _inside(folder: str, path: str) -> str:
    """Return the path below the folder. Raises Damaged unless it is relative and without `.` and `..`."""
    if any(name in ("", ".", "..") for name in path.split("/")):
        raise Damaged(f"`{path}` leaves the checkpoint folder")
    return f"{folder}/{path}"
