"""Code bundles: a folder as one reproducible object, without secrets.

A bundle is named by the sha256 of its uncompressed tar, since versions of zstd differ in their output. Owners, times,
and modes other than `executable` are omitted.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
from collections.abc import Sequence
from typing import IO, Any

import msgspec

from outlast.code.git import public_url, resolve, work_tree
from outlast.code.record import CodeRecord as CodeRecord
from outlast.code.record import code_key as code_key
from outlast.code.source_files import OUTLASTIGNORE, SkippedFile, SourceFile, SourceTree, link_escapes, unreadable
from outlast.errors import SpecError, WorkspaceError
from outlast.store.blobs import forget, put_blob
from outlast.store.bucket import Bucket
from outlast.store.shared import content_of, store_shared

BYTES_MAX = 100_000_000
_TRIES = 3
_BLOCK, _RECORD = 512, 10240
# Assumed where the number of files is unknown.
_FILES_MAX = 100_000
# The overhead of a file in the tar: headers, a name and a link of maximum length, and padding.
_OVERHEAD = 10 * 1024
_PRIVATE_KEY = re.compile(rb"\s*(-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-)")


# The member types that `pack` writes: plain files and symbolic links. Sparse files are rejected: they can expand
# hugely.
_MEMBER_TYPES = (b"0", b"\0", b"2")

# An alias, because the field `bytes` hides the type.
Body = bytes


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A packed folder. `bytes` is the size of its files, `body` the compressed tar."""

    sha256: str
    bytes: int
    files: int
    body: Body
    left_out: tuple[SkippedFile, ...] = ()
    commit: str = ""
    dirty: bool = False
    diff: str = ""


def pack(folder: str, *, exclude: Sequence[str] = (), bytes_max: int = BYTES_MAX) -> Bundle:
    """Pack a folder without secrets and without files that git, `.outlastignore` or `exclude` (same syntax) ignores.

    Raises SpecError if the folder does not exist, has unreadable files, or is larger than `bytes_max`.
    """
    tree = SourceTree(folder, exclude=exclude)
    _check_size(tree.files, bytes_max)
    sink = _Sink()
    packed, left_out = _write_tar(tree, sink, bytes_max)
    names = {found.path for found in packed}

    def shown(path: str) -> bool:
        return path in names or not (os.path.lexists(os.path.join(tree.root, path)) or tree.excludes(path))

    state = work_tree(tree.root, shown=shown)
    return Bundle(
        sha256=sink.digest.hexdigest(),
        bytes=sum(found.bytes for found in packed),
        files=len(packed),
        body=sink.finish(),
        left_out=tuple(sorted([*tree.left_out, *left_out])),
        commit=state.commit,
        dirty=state.dirty,
        diff=state.diff,
    )


def store(bucket: Bucket, bundle: Bundle) -> CodeRecord:
    """Upload the bundle, and its diff as a blob, unless they exist. May be repeated."""
    return CodeRecord(
        kind="bundle",
        sha256=store_shared(bucket, code_key, bundle.sha256, bundle.body),
        bytes=bundle.bytes,
        files=bundle.files,
        commit=bundle.commit,
        dirty=bundle.dirty,
        diff=put_blob(bucket, bundle.diff.encode()) if bundle.diff else "",
    )


def git_record(url: str, ref: str) -> CodeRecord:
    """Return the record of code that the machine fetches from git, at the current commit of the ref.

    Credentials in the URL are used for the lookup and not stored. Raises SpecError if the ref does not exist.
    """
    return CodeRecord(kind="git", url=public_url(url), ref=ref, commit=resolve(url, ref))


def unpack(bucket: Bucket, code: CodeRecord | str, destination: str) -> None:
    """Unpack a bundle, by record or sha256, into a missing or empty folder: completely or not at all.

    Raises Missing, and WorkspaceError if the bundle is corrupt or unsafe, or the folder is not empty.
    """
    sha256 = code if isinstance(code, str) else code.sha256
    tar_max = _tar_bytes(BYTES_MAX, _FILES_MAX) if isinstance(code, str) else _tar_bytes(code.bytes, code.files)
    if os.path.isdir(destination) and os.listdir(destination):
        raise WorkspaceError(f"`{destination}` is not empty: code is unpacked into an empty folder")
    destination = os.path.abspath(destination)
    staged = destination + ".part"
    archive = destination + ".tar.zst"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        bucket.download(code_key(sha256), archive)
        os.makedirs(staged)
        _extract(archive, staged, sha256, tar_max)
        os.rename(staged, destination)
    finally:
        forget(archive)
        shutil.rmtree(staged, ignore_errors=True)


def zstd_module() -> Any:
    """Return the zstd module of the standard library, or its backport before Python 3.14."""
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class _Sink:
    """Hashes the pieces of a tar and collects them compressed."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self._compressor = zstd_module().ZstdCompressor()
        self._kept = io.BytesIO()

    def write(self, piece: bytes) -> None:
        self.digest.update(piece)
        self.size += len(piece)
        self._kept.write(self._compressor.compress(piece))

    def finish(self) -> bytes:
        self._kept.write(self._compressor.flush())
        return self._kept.getvalue()


def _write_tar(tree: SourceTree, sink: _Sink, bytes_max: int) -> tuple[list[SourceFile], list[SkippedFile]]:
    packed: list[SourceFile] = []
    left_out: list[SkippedFile] = []
    room = bytes_max
    for found in tree.files:
        body: Body | None = b""
        if not found.link:
            body = _read(tree.root, found.path, room)
        if body is None or _PRIVATE_KEY.match(body[:200]):
            why = "vanished while it was packed" if body is None else "is a private key"
            left_out.append(SkippedFile(found.path, why))
            continue
        packed.append(SourceFile(found.path, len(body), found.executable, found.link))
        room -= len(body)
        if room < 0:
            _check_size([*packed, *tree.files[len(packed) + len(left_out) :]], bytes_max)
        sink.write(_header(packed[-1]) + body + bytes(-len(body) % _BLOCK))
    # A tar ends with two empty blocks, padded to a whole record.
    sink.write(bytes(2 * _BLOCK))
    sink.write(bytes(-sink.size % _RECORD))
    return packed, left_out


def _header(found: SourceFile) -> bytes:
    import tarfile

    header = tarfile.TarInfo(found.path)
    header.size = found.bytes
    header.mode = 0o755 if found.executable else 0o644
    if found.link:
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, found.link, 0o777
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _read(root: str, path: str, room: int) -> bytes | None:
    """Return the content of a file; None if it is gone. Reads again if it changes meanwhile."""
    body = b""
    try:
        for _ in range(_TRIES):
            with open(os.path.join(root, path), "rb") as file:
                before = os.fstat(file.fileno())
                # One more byte detects a file that has grown.
                body = file.read(min(before.st_size, room) + 1)
                after = os.fstat(file.fileno())
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                break
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise unreadable(path, problem) from problem
    return body


def _check_size(files: Sequence[SourceFile], bytes_max: int) -> None:
    total = sum(found.bytes for found in files)
    if total <= bytes_max:
        return
    largest = sorted(files, key=lambda found: found.bytes, reverse=True)[:10]
    listing = "".join(f"\n      {_megabytes(found.bytes):>12}  {found.path}" for found in largest)
    raise SpecError(
        [f"[code] path: {_megabytes(total)} of code, at most {_megabytes(bytes_max)}; the largest files:{listing}"],
        hint=f"exclude files with `{OUTLASTIGNORE}`, or provide them with `[data]`",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _Source:
    """Reads and hashes a compressed tar, up to its expected size: a small file can expand beyond any disk."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._left = bytes_max

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(piece)
        if self._left < 0:
            raise EOFError("it is larger than recorded")
        self.digest.update(piece)
        return piece


def _tar_bytes(size: int, files: int) -> int:
    return size + _OVERHEAD * (files + 2)


def _extract(archive: str, staged: str, sha256: str, tar_max: int) -> None:
    """Unpack and verify in one pass. The caller deletes the files of a corrupt bundle."""
    import tarfile

    zstd = zstd_module()
    try:
        with zstd.open(archive, "rb") as file:
            source = _Source(file, tar_max)
            with tarfile.open(
                fileobj=source,  # type: ignore[call-overload]
                mode="r|",
                encoding="utf-8",
                errors="surrogateescape",
            ) as tar:
                links = _extract_files(tar, staged)
            while source.read(1 << 20):
                pass
    except (zstd.ZstdError, tarfile.TarError, EOFError, FileExistsError, NotADirectoryError) as problem:
        raise WorkspaceError(f"code {sha256} is corrupt: {problem}") from problem
    if source.digest.hexdigest() != content_of(sha256):
        raise WorkspaceError(f"code {sha256} is corrupt: its content has the sha256 {source.digest.hexdigest()}")
    # Create links last, so that no write follows one.
    _make_links(links, staged)


def _make_links(links: list[tuple[str, str]], staged: str) -> None:
    for path, link in links:
        try:
            os.makedirs(os.path.dirname(os.path.join(staged, path)), exist_ok=True)
            os.symlink(link, os.path.join(staged, path))
        except (FileExistsError, NotADirectoryError) as problem:
            raise WorkspaceError(f"the code bundle is invalid: it contains `{path}` twice") from problem
    # Check after all are created: the target of a link may depend on other links.
    for path, link in links:
        if link_escapes(staged, path, link):
            raise WorkspaceError(f"the code bundle is invalid: link `{path}` points outside its folder")


def _extract_files(tar: Any, staged: str) -> list[tuple[str, str]]:
    """Write the files; return the links, not yet created. Only members that `pack` writes are accepted."""
    links, made = [], {""}
    for member in tar:
        path: str = member.name
        if any(part in ("", ".", "..") for part in path.split("/")) or member.type not in _MEMBER_TYPES:
            raise WorkspaceError(f"the code bundle is invalid: unexpected member `{path}`")
        if member.issym():
            links.append((path, member.linkname))
            continue
        folder = os.path.dirname(path)
        if folder not in made:
            os.makedirs(os.path.join(staged, folder), exist_ok=True)
            made.add(folder)
        handle = os.open(os.path.join(staged, path), os.O_WRONLY | os.O_CREAT | os.O_EXCL, member.mode & 0o755)
        with open(handle, "wb") as file:
            shutil.copyfileobj(tar.extractfile(member), file)
    return links
