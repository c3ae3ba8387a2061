"""A bucket in a folder, as plain files that users can read.

Uses the operating system's calls instead of obstore, whose local store never calls fsync: a power cut must not shorten
a story. No call follows a symbolic link below the root (see `safe_paths`): readers and listings ignore links, writers
raise an error.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outlast import private
from outlast.errors import Exists, Missing, StoreUnreachable, WorkspaceError
from outlast.store import safe_paths
from outlast.store.bucket import Entry, check_key
from outlast.store.direct_io import read_large, write_large
from outlast.store.parallel import in_parallel

# Bodies are prepared in this folder, which listings skip, so that no listing shows a partial body.
_STAGING = ".staging"
# How often a writer recreates its folder when concurrent deleters remove it.
_TRIES = 100


@contextmanager
def _store_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as problem:
        raise Missing(f"`{key}` is not in the workspace") from problem
    except OSError as problem:
        if isinstance(problem, PermissionError) or problem.errno == errno.EROFS:
            raise WorkspaceError(
                f"workspace: {problem.strerror}: {problem.filename or key}",
                hint="check who owns the folder and that it can be written, or use --workspace",
            ) from problem
        hint = "make room on the disk of the workspace" if problem.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StoreUnreachable(f"workspace: {problem.strerror}: {problem.filename or key}", hint=hint) from problem


class FolderBucket:
    """See `Bucket` for the contract."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.url = self.root

    @contextmanager
    def _staged(self) -> Iterator[tuple[int, str]]:
        """Yield folder and name for a body in preparation; remove the file on exit."""
        try:
            staging = safe_paths.open_folder(self.root, [_STAGING])
        except (FileNotFoundError, NotADirectoryError, Missing):
            # Accessible to the owner and, by the umask, to the group only.
            os.makedirs(private.prepare(self.root), mode=0o770, exist_ok=True)
            staging = safe_paths.make_folder(self.root, [_STAGING], durable=False)
        staged = os.urandom(12).hex()
        try:
            yield staging, staged
        finally:
            try:
                _forget(staged, staging)
            finally:
                os.close(staging)

    def _move(self, staged: tuple[int, str], key: str, *, durable: bool, replace: bool = True) -> None:
        """Move a staged body to its key. Without `replace`, raises Exists if the key is taken."""
        *folders, name = key.split("/")
        for attempt in range(_TRIES):
            try:
                folder = safe_paths.make_folder(self.root, folders, durable=durable)
            except FileNotFoundError:
                # A concurrent deleter removed an empty folder on the path.
                if attempt == _TRIES - 1:
                    raise
                continue
            try:
                _place(staged, folder, name, key, replace=replace)
                if durable:
                    os.fsync(folder)
                return
            except FileNotFoundError:
                # A concurrent deleter removed the empty folder after it was created here.
                if attempt == _TRIES - 1:
                    raise
            finally:
                os.close(folder)

    def _open(self, key: str) -> int:
        """Return a descriptor of the object, for reading."""
        *folders, name = check_key(key).split("/")
        folder = safe_paths.open_folder(self.root, folders)
        try:
            return safe_paths.open_file(folder, name, key)
        finally:
            os.close(folder)

    def get(self, key: str) -> bytes:
        with _store_errors(key):
            handle = self._open(key)
            try:
                return _read(handle)
            finally:
                os.close(handle)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _store_errors(key), open(self._open(key), "rb", buffering=0) as file:
            file.seek(start)
            pieces = []
            while length > 0 and (piece := file.read(length)):
                pieces.append(piece)
                length -= len(piece)
            return b"".join(pieces)

    def read_into(self, key: str, room: memoryview) -> int:
        with _store_errors(key), open(self._open(key), "rb", buffering=0) as file:
            return read_large(file, room)

    def put(self, key: str, body: bytes, *, durable: bool = False) -> None:
        self._put(key, body, durable=durable)

    def now(self, key: str) -> float:
        return self._put(key, b"", durable=False)

    def _put(self, key: str, body: bytes, *, durable: bool) -> float:
        check_key(key)
        with _store_errors(key), self._staged() as staged:
            # Read the time before the move: afterwards another process may replace or delete the object.
            modified_at = _write(staged, body, durable=durable)
            self._move(staged, key, durable=durable)
            return modified_at

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        check_key(key)
        with _store_errors(key), self._staged() as staged:
            _write(staged, body, durable=durable)
            self._move(staged, key, durable=durable, replace=False)

    def write(self, key: str, body: bytes | memoryview) -> None:
        check_key(key)
        with _store_errors(key), self._staged() as staged:
            with open(safe_paths.create_file(*staged), "wb", buffering=0) as file:
                write_large(file, body)
            self._move(staged, key, durable=False)

    def make_durable(self, keys: Sequence[str]) -> None:
        # Bodies before names: a name must not survive a power cut without its body.
        in_parallel(self._fsync_body, keys)
        with _store_errors(keys[0] if keys else ""):
            # `write` may have created any of the folders up to the root.
            for parts in sorted({above for key in keys for above in _above(key)}, reverse=True):
                folder = safe_paths.open_folder(self.root, parts, how=safe_paths.LIST)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)

    def _fsync_body(self, key: str) -> None:
        with _store_errors(key), open(self._open(key), "rb", buffering=0) as file:
            os.fsync(file.fileno())

    def remove_stale_writes(self, *, older_s: float) -> int:
        if not os.path.isdir(os.path.join(self.root, _STAGING)):
            return 0
        with _store_errors(_STAGING), self._staged() as staged:
            now = _write(staged, b"", durable=False)
            _forget(staged[1], staged[0])
            folder = safe_paths.open_folder(self.root, [_STAGING], how=safe_paths.LIST)
            try:
                with os.scandir(folder) as entries:
                    left = [entry.name for entry in entries if _age_s(entry, now) > older_s]
                for name in left:
                    _forget(name, folder)
            finally:
                os.close(folder)
        return len(left)

    def upload(self, key: str, path: str) -> None:
        check_key(key)
        with _store_errors(key), self._staged() as staged:
            with open(path, "rb", opener=_open_plain) as source, open(safe_paths.create_file(*staged), "wb") as target:
                _copy(source.fileno(), target.fileno())
                os.fsync(target.fileno())
            self._move(staged, key, durable=True)

    def download(self, key: str, path: str) -> None:
        with _store_errors(key), open(self._open(key), "rb", buffering=0) as source:
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            staged = f"{path}.{os.urandom(4).hex()}.part"
            try:
                with open(staged, "wb") as target:
                    _copy(source.fileno(), target.fileno())
                os.replace(staged, path)
            finally:
                _forget(staged)

    def head(self, key: str) -> Entry:
        *folders, name = check_key(key).split("/")
        with _store_errors(key):
            folder = safe_paths.open_folder(self.root, folders)
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            finally:
                os.close(folder)
        if stat.S_ISLNK(info.st_mode):
            raise Missing(safe_paths.describe(key))
        if not stat.S_ISREG(info.st_mode):
            raise Missing(f"`{key}` is not in the workspace")
        return Entry(key, info.st_size, info.st_mtime)

    def list(self, prefix: str, *, after: str = "", limit: int = 0) -> Iterator[Entry]:
        with _store_errors(prefix):
            folder = self._listed(prefix)
            if folder is not None:
                yield from itertools.islice(self._walk(folder, prefix, after), limit or None)

    def _listed(self, prefix: str) -> int | None:
        """Return the folder of a prefix, open for a listing; None if it does not exist."""
        parts = [part for part in prefix.split("/") if part]
        if ".." in parts:
            raise WorkspaceError(f"invalid prefix `{prefix}`")
        try:
            return safe_paths.open_folder(self.root, parts, how=safe_paths.LIST)
        except Missing:
            safe_paths.report_link(self.root, prefix.rstrip("/"))
            return None
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _walk(self, folder: int, prefix: str, after: str) -> Iterator[Entry]:
        """Yield the objects below an open folder, and close it."""
        try:
            with os.scandir(folder) as entries:
                found = [entry for entry in entries if not (entry.is_symlink() and self._leave_out(entry, prefix))]
            # Sort as keys, where a folder's name is followed by `/`, so that all stores list in the same order.
            found.sort(key=lambda e: e.name + "/" if e.is_dir(follow_symlinks=False) else e.name)
            for entry in found:
                key = prefix + entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name != _STAGING and (key + "/" >= after or after.startswith(key + "/")):
                            below = safe_paths.enter(folder, entry.name, how=safe_paths.LIST)
                            yield from self._walk(below, key + "/", after)
                    elif key > after:
                        info = entry.stat(follow_symlinks=False)
                        yield Entry(key, info.st_size, info.st_mtime)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # deleted or replaced during the listing
        finally:
            os.close(folder)

    def _leave_out(self, link: os.DirEntry[str], prefix: str) -> bool:
        safe_paths.report_link(self.root, prefix + link.name)
        return True

    def children(self, prefix: str) -> Sequence[str]:
        with _store_errors(prefix):
            folder = self._listed(prefix)
            if folder is None:
                return []
            try:
                with os.scandir(folder) as entries:
                    found = [e.name for e in entries if not (e.is_symlink() and self._leave_out(e, prefix))]
            finally:
                os.close(folder)
        return sorted(name for name in found if name != _STAGING)

    def delete(self, key: str) -> None:
        parts = check_key(key).split("/")
        with _store_errors(key):
            try:
                handles = safe_paths.open_chain(self.root, parts[:-1])
            except (FileNotFoundError, NotADirectoryError):
                return
            try:
                _forget(parts[-1], handles[-1])
                _remove_empty(handles, parts)
            finally:
                for handle in handles:
                    os.close(handle)

    def delete_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self.delete(key)


def _above(key: str) -> Iterator[tuple[str, ...]]:
    """Return the folders on the path to an object; the root is the empty tuple."""
    parts = tuple(key.split("/"))
    return (parts[:length] for length in range(len(parts)))


def _remove_empty(handles: list[int], parts: Sequence[str]) -> None:
    """Remove empty folders from the last one upwards: a bucket has none, and `children` must not list them."""
    while len(handles) > 1:
        os.close(handles.pop())
        try:
            os.rmdir(parts[len(handles) - 1], dir_fd=handles[-1])
        except OSError:
            return  # not empty, or another process was first


def _place(staged: tuple[int, str], folder: int, name: str, key: str, *, replace: bool) -> None:
    staging, body = staged
    if replace:
        os.replace(body, name, src_dir_fd=staging, dst_dir_fd=folder)
        return
    try:
        # A hard link is the create-only operation of file systems: it is atomic and fails if the name is taken.
        os.link(body, name, src_dir_fd=staging, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        safe_paths.refuse_link(folder, name, key)
        raise Exists(f"`{key}` already exists") from None


def _read(handle: int) -> bytes:
    """Read an open file to its end."""
    size = os.fstat(handle).st_size
    body = os.read(handle, size + 1)
    if len(body) == size:
        return body
    # One read returns two gigabytes at most.
    pieces = [body]
    while piece := os.read(handle, 1 << 30):
        pieces.append(piece)
    return b"".join(pieces)


def _write(staged: tuple[int, str], body: bytes, *, durable: bool) -> float:
    """Write the file and return its modification time."""
    handle = safe_paths.create_file(*staged)
    try:
        view = memoryview(body)
        while view:
            view = view[os.write(handle, view) :]
        if durable:
            os.fsync(handle)
        return os.fstat(handle).st_mtime
    finally:
        os.close(handle)


def _age_s(entry: os.DirEntry[str], now: float) -> float:
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0  # its writer has finished


def _open_plain(path: str, flags: int) -> int:
    """Open a user's file, without blocking on a pipe."""
    handle = os.open(path, flags | os.O_NONBLOCK)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # `open` reports folders itself
        return handle
    os.close(handle)
    raise OSError(errno.EINVAL, "not a plain file", path)


def _copy(source: int, target: int) -> None:
    """Copy an open file, in the kernel if possible."""
    offset = 0
    try:
        while count := os.sendfile(target, source, offset, 1 << 30):
            offset += count
    except OSError as problem:
        if offset or problem.errno not in (errno.EINVAL, errno.ENOTSOCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    # Copy the rest here: everything if the kernel cannot do it.
    os.lseek(source, offset, os.SEEK_SET)
    while piece := os.read(source, 1 << 20):
        view = memoryview(piece)
        while view:
            view = view[os.write(target, view) :]


def _forget(name: str, folder: int | None = None) -> None:
    """Remove a file in an open folder, or at a path; it may be missing."""
    try:
        os.unlink(name, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
    except PermissionError:
        # macOS raises this for a folder.
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise
