"""Code bundles: a folder as one object, the same bytes for the same content on any machine. Refuses secrets.

A bundle is named by the sha256 of its tar, not of what zstd made of it: two versions of zstd write different bytes
for the same content. Owners, times and modes beyond `executable` are left out for the same reason.
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
from outlast.code.source_files import OUTLASTIGNORE, SkippedFile, SourceFiles, SourceTree, link_escapes, unreadable
from outlast.errors import Exists, SpecError, WorkspaceError
from outlast.store.blobs import forget, put_blob
from outlast.store.bucket import Bucket

BYTES_MAX = 100_000_000
_TRIES = 3
_BLOCK, _RECORD = 512, 10240
# Where nothing says how many there are.
_FILES_MAX = 100_000
# Around a file in the tar: its header, those of a name and a link as long as Linux has them, and what fills the block.
_AROUND = 10 * 1024
_PRIVATE_KEY = re.compile(rb"\s*(-----BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File-)")


# Plain files and symbolic links: what `pack` writes. No sparse files either, whose holes a tar need not hold.
_TAKEN = (b"0", b"\0", b"2")

# Beside a field called `bytes` the type needs another name.
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


def code_key(sha256: str) -> str:
    return f"code/{sha256}.tar.zst"


def pack(folder: str, *, exclude: Sequence[str] = (), bytes_max: int = BYTES_MAX) -> Bundle:
    """Pack what git does not ignore, nor `.outlastignore`, nor `exclude` (same syntax), nor is a secret.

    Raises SpecError if the folder is not there, holds what cannot be read, or is larger than `bytes_max`.
    """
    tree = SourceTree(folder, exclude=exclude)
    _check_size(tree.files, bytes_max)
    sink = _Sink()
    packed, left_out = _write_tar(tree, sink, bytes_max)
    names = {found.path for found in packed}

    def shown(path: str) -> bool:
        return path in names or not (os.path.lexists(os.path.join(tree.root, path)) or tree.lacks(path))

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
    """Upload the bundle, and its diff as a blob, unless they are there. May be repeated."""
    try:
        bucket.create(code_key(bundle.sha256), bundle.body)
    except Exists:
        pass  # the same content, by its name
    return CodeRecord(
        kind="bundle",
        sha256=bundle.sha256,
        bytes=bundle.bytes,
        files=bundle.files,
        commit=bundle.commit,
        dirty=bundle.dirty,
        diff=put_blob(bucket, bundle.diff.encode()) if bundle.diff else "",
    )


def git_record(url: str, ref: str) -> CodeRecord:
    """The record of code that the machine fetches by itself, at the commit that the ref stands for now.

    Credentials in the URL help to look it up, and are not kept. Raises SpecError if there is no such ref.
    """
    return CodeRecord(kind="git", url=public_url(url), ref=ref, commit=resolve(url, ref))


def unpack(bucket: Bucket, code: CodeRecord | str, destination: str) -> None:
    """Unpack a bundle, by its record or sha256, into a folder that is not there or empty: whole, or not at all.

    Raises Missing, and WorkspaceError if the bundle is corrupt, holds what could escape, or the folder is not empty.
    """
    sha256 = code if isinstance(code, str) else code.sha256
    tar_max = _tar_bytes(BYTES_MAX, _FILES_MAX) if isinstance(code, str) else _tar_bytes(code.bytes, code.files)
    if os.path.isdir(destination) and os.listdir(destination):
        raise WorkspaceError(f"`{destination}` is not empty: code is unpacked into a folder of its own")
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
    """The zstd of the standard library, or its backport before Python 3.14."""
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


class _Sink:
    """Takes the tar piece by piece: hashes it as it is, keeps it compressed."""

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


def _write_tar(tree: SourceTree, sink: _Sink, bytes_max: int) -> tuple[list[SourceFiles], list[SkippedFile]]:
    packed: list[SourceFiles] = []
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
        packed.append(SourceFiles(found.path, len(body), found.executable, found.link))
        room -= len(body)
        if room < 0:
            _check_size([*packed, *tree.files[len(packed) + len(left_out) :]], bytes_max)
        sink.write(_header(packed[-1]) + body + bytes(-len(body) % _BLOCK))
    # The end of a tar: two empty blocks, and then up to a whole record.
    sink.write(bytes(2 * _BLOCK))
    sink.write(bytes(-sink.size % _RECORD))
    return packed, left_out


def _header(found: SourceFiles) -> bytes:
    import tarfile

    header = tarfile.TarInfo(found.path)
    header.size = found.bytes
    header.mode = 0o755 if found.executable else 0o644
    if found.link:
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, found.link, 0o777
    return header.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _read(root: str, path: str, room: int) -> bytes | None:
    """The content of a file; None if it is gone. Read again while it changes, so that it is not half old, half new."""
    body = b""
    try:
        for _ in range(_TRIES):
            with open(os.path.join(root, path), "rb") as file:
                before = os.fstat(file.fileno())
                # One byte more than there should be shows a file that has grown.
                body = file.read(min(before.st_size, room) + 1)
                after = os.fstat(file.fileno())
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                break
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise unreadable(path, problem) from problem
    return body


def _check_size(files: Sequence[SourceFiles], bytes_max: int) -> None:
    total = sum(found.bytes for found in files)
    if total <= bytes_max:
        return
    largest = sorted(files, key=lambda found: found.bytes, reverse=True)[:10]
    listing = "".join(f"\n      {_megabytes(found.bytes):>12}  {found.path}" for found in largest)
    raise SpecError(
        [f"[code] path: {_megabytes(total)} of code, at most {_megabytes(bytes_max)}; the largest files:{listing}"],
        hint=f"leave files out with `{OUTLASTIGNORE}`, or bring them to the machine with `[data]`",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


class _Source:
    """Gives the tar out of the compressed file, and hashes what it gives; no more than there should be: a few bytes may
    be compressed from more than any disk holds."""

    def __init__(self, file: IO[bytes], bytes_max: int) -> None:
        self.digest = hashlib.sha256()
        self._file = file
        self._left = bytes_max

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(min(size, 1 << 20) if size >= 0 else 1 << 20)
        self._left -= len(piece)
        if self._left < 0:
            raise EOFError("it is larger than what was packed")
        self.digest.update(piece)
        return piece


def _tar_bytes(size: int, files: int) -> int:
    return size + _AROUND * (files + 2)


def _extract(archive: str, staged: str, sha256: str, tar_max: int) -> None:
    """Unpack and compare at once. What was unpacked from a corrupt file is thrown away by the caller."""
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
    if source.digest.hexdigest() != sha256:
        raise WorkspaceError(f"code {sha256} is corrupt: its content has the sha256 {source.digest.hexdigest()}")
    # Links come last, when nothing is written any more that could go through them.
    _make_links(links, staged)


def _make_links(links: list[tuple[str, str]], staged: str) -> None:
    for path, link in links:
        try:
            os.makedirs(os.path.dirname(os.path.join(staged, path)), exist_ok=True)
            os.symlink(link, os.path.join(staged, path))
        except (FileExistsError, NotADirectoryError) as problem:
            raise WorkspaceError(f"code is refused: it holds `{path}` twice") from problem
    # Asked when all of them are there: where a link leads depends on the others on its way.
    for path, link in links:
        if link_escapes(staged, path, link):
            raise WorkspaceError(f"code is refused: `{path}` leads out of its folder")


def _extract_files(tar: Any, staged: str) -> list[tuple[str, str]]:
    """Write the files; the links, which are not yet made. Only what `pack` writes is taken."""
    links, made = [], {""}
    for member in tar:
        path: str = member.name
        if any(part in ("", ".", "..") for part in path.split("/")) or member.type not in _TAKEN:
            raise WorkspaceError(f"code is refused: it holds `{path}`, which is no file of a bundle")
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
