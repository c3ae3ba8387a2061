"""A bucket in a folder: plain files, so that people can look.

Written with the operating system's calls and not through obstore, whose local store never calls fsync: a story that
a power cut can shorten is no story.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from outlast.errors import Exists, Missing, StoreUnreachable, WorkspaceError
from outlast.workspace.bucket import Entry, check_key
from outlast.workspace.direct import read_large, write_large
from outlast.workspace.each import in_parallel

# Bodies are prepared here, beside the objects and never among them: a listing cannot meet half of one.
_STAGING = ".staging"
# How often a writer makes its folder again when deleters take it away under its hands.
_TRIES = 100


@contextmanager
def _told(key: str) -> Iterator[None]:
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


def _sync(path: str) -> None:
    """A file's content, or a folder's names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(path: str) -> None:
    try:
        _sync(path)
    except FileNotFoundError:
        pass  # emptied and removed by a deleter since: there is nothing left to keep


class FolderBucket:
    """See `Bucket` for the contract."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.url = self.root
        self._staging = os.path.join(self.root, _STAGING)

    def _path(self, key: str) -> str:
        return os.path.join(self.root, check_key(key))

    def _make_folders(self, path: str, *, durable: bool) -> None:
        """Make the folder of a file. A new folder is itself an entry that a power cut can lose."""
        folder = os.path.dirname(path)
        if os.path.isdir(folder):
            return
        missing, above = [folder], os.path.dirname(folder)
        while not os.path.isdir(above):
            missing.append(above)
            above = os.path.dirname(above)
        try:
            os.makedirs(folder, exist_ok=True)
        except FileExistsError as problem:
            if not os.path.isfile(problem.filename):
                # It was there, and a deleter had emptied and removed it before we saw what it was.
                raise FileNotFoundError(folder) from problem
            raise WorkspaceError(
                f"workspace: `{problem.filename}` is an object and cannot be a folder too"
            ) from problem
        if durable:
            for made in missing:
                _sync_folder(os.path.dirname(made))

    @contextmanager
    def _staged(self) -> Iterator[str]:
        """The name of a body that is being prepared; whatever happens, nothing is left under it."""
        if not os.path.isdir(self._staging):
            # For its owner and the group, as their umask says, and for nobody else of this computer.
            os.makedirs(self.root, mode=0o770, exist_ok=True)
            os.makedirs(self._staging, exist_ok=True)
        staged = os.path.join(self._staging, os.urandom(12).hex())
        try:
            yield staged
        finally:
            _forget(staged)

    def _move(self, act: Callable[[str, str], None], staged: str, path: str, *, durable: bool) -> None:
        """Put a staged body into its place, by `os.link` or `os.replace`."""
        for attempt in range(_TRIES):
            try:
                self._make_folders(path, durable=durable)
                act(staged, path)
                break
            except FileNotFoundError:
                # A deleter removed the folder that it had emptied, after we had made sure of it.
                if attempt == _TRIES - 1:
                    raise
        if durable:
            _sync_folder(os.path.dirname(path))

    def get(self, key: str) -> bytes:
        with _told(key), open(self._path(key), "rb") as file:
            return file.read()

    def fill(self, key: str, room: memoryview) -> int:
        with _told(key), open(self._path(key), "rb", buffering=0) as file:
            return read_large(file, room)

    def put(self, key: str, body: bytes, *, durable: bool = False) -> Entry:
        path = self._path(key)
        with _told(key):
            with self._staged() as staged:
                # Asked before it is in its place, where others may replace or delete it at once.
                modified_at = _write(staged, body, durable=durable)
                self._move(os.replace, staged, path, durable=durable)
            return Entry(key, len(body), modified_at)

    def create(self, key: str, body: bytes, *, durable: bool = True) -> None:
        path = self._path(key)
        with _told(key), self._staged() as staged:
            _write(staged, body, durable=durable)
            try:
                # A hard link is the create-only of file systems: it fails if the name is taken, and shows no half body.
                self._move(os.link, staged, path, durable=durable)
            except FileExistsError:
                raise Exists(f"`{key}` is there already") from None

    def write(self, key: str, body: bytes | memoryview) -> None:
        path = self._path(key)
        with _told(key), self._staged() as staged:
            with open(staged, "wb", buffering=0) as file:
                write_large(file, body)
            self._move(os.replace, staged, path, durable=False)

    def settle(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        with _told(keys[0] if keys else ""):
            # The bodies before their names: a name that leads to half a body must not survive alone.
            in_parallel(_sync, paths)
            for folder in sorted({above for path in paths for above in self._above(path)}, reverse=True):
                _sync(folder)

    def _above(self, path: str) -> Iterator[str]:
        """The folders that lead to a file, up to the root: `write` may have made each of them."""
        while path != self.root:
            path = os.path.dirname(path)
            yield path

    def sweep(self, *, older_s: float) -> int:
        if not os.path.isdir(self._staging):
            return 0
        with _told(_STAGING):
            with self._staged() as staged:
                now = _write(staged, b"", durable=False)
            left = [entry.path for entry in os.scandir(self._staging) if _age_s(entry, now) > older_s]
            for path in left:
                _forget(path)
        return len(left)

    def upload(self, key: str, path: str) -> None:
        target = self._path(key)
        with _told(key), self._staged() as staged:
            _copy_file(path, staged)
            with open(staged, "rb") as file:
                os.fsync(file.fileno())
            self._move(os.replace, staged, target, durable=True)

    def download(self, key: str, path: str) -> None:
        source = self._path(key)
        with _told(key):
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
            staged = f"{path}.{os.urandom(4).hex()}.part"
            try:
                _copy_file(source, staged)
                os.replace(staged, path)
            finally:
                _forget(staged)

    def head(self, key: str) -> Entry:
        with _told(key):
            path = self._path(key)
            info = os.stat(path)
            if os.path.isdir(path):
                raise Missing(f"`{key}` is not in the workspace")
            return Entry(key, info.st_size, info.st_mtime)

    def list(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        folder = os.path.join(self.root, prefix) if prefix else self.root
        with _told(prefix):
            yield from self._walk(folder.rstrip("/"), prefix, after)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[Entry]:
        try:
            found = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        # Sorted as keys, in which a folder's name goes on with `/`, so that every store lists in one order.
        for entry in sorted(found, key=lambda e: e.name + "/" if e.is_dir() else e.name):
            key = prefix + entry.name
            if entry.is_dir():
                if entry.name != _STAGING and (key + "/" >= after or after.startswith(key + "/")):
                    yield from self._walk(entry.path, key + "/", after)
            elif key > after:
                try:
                    info = entry.stat()
                except FileNotFoundError:
                    continue  # deleted while we looked: a listing is of a moment that is over
                yield Entry(key, info.st_size, info.st_mtime)

    def children(self, prefix: str) -> Sequence[str]:
        with _told(prefix):
            try:
                return sorted(name for name in os.listdir(os.path.join(self.root, prefix)) if name != _STAGING)
            except (FileNotFoundError, NotADirectoryError):
                return []

    def delete(self, key: str) -> None:
        with _told(key):
            path = self._path(key)
            _forget(path)
            # A folder without objects is nothing in a bucket: `children` must not show it.
            while (path := os.path.dirname(path)) != self.root:
                try:
                    os.rmdir(path)
                except OSError:
                    break  # not empty, or somebody else was first


def _write(path: str, body: bytes, *, durable: bool) -> float:
    """Write the file; the time of it."""
    with open(path, "wb") as file:
        file.write(body)
        file.flush()
        if durable:
            os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_mtime


def _age_s(entry: os.DirEntry[str], now: float) -> float:
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:
        return 0.0  # its writer is done with it


def _copy_file(source: str, target: str) -> None:
    # Loaded for the copy alone: with its archive formats it would be a tenth of the start of every command.
    import shutil

    shutil.copyfile(source, target)


def _forget(path: str) -> None:
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
    except PermissionError:
        # This is what macOS says of a folder.
        if not os.path.isdir(path):
            raise
