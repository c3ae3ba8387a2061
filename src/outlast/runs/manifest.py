"""The manifest of a checkpoint: its files, and the parts that contain their bodies. Parts of other runs are rejected.

It is a small JSON object. A long list of files is a compressed table of columns, stored in parts like the files
themselves. The manifest names these parts and the packs, so deleting old checkpoints does not read the list.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable

import msgspec

from outlast.errors import Damaged, Exists, WorkspaceError
from outlast.store import parts
from outlast.store.bucket import Bucket, check_key
from outlast.store.codec import decoded, sealed, unsealed
from outlast.store.parts import Part, Parts, StoredFile, parts_prefix

# Up to this many files, links and folders are listed in the manifest itself, where users can read them.
_INLINE_MAX = 500
# The maximum size of a table: about ten million files.
_TABLE_BYTES_MAX = 1 << 30
# The gzip format, so that `zcat` shows the table. Level 1 is five times as fast as the default, and 10 % larger.
_GZIP, _LEVEL = 31, 1


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    checkpoint: str
    attempt: int
    files: tuple[StoredFile, ...]
    # Empty folders; the others follow from the paths of files.
    folders: tuple[str, ...] = ()
    step: int | None = None
    # The number of machines that saved it.
    nodes: int = 1
    # The parts of the list of files, if it is not in the manifest.
    table: tuple[Part, ...] = ()
    # Path → time of change in nanoseconds. In a long list of files, only the large ones have it.
    changed_ns: dict[str, int] = {}
    # Path → sha256 of small files. Known to the process that restored them; not stored.
    digests: dict[str, bytes] = {}
    # The ranks that wrote files, where `seen_by` has left some out; not stored.
    writers: frozenset[int] = frozenset()

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def seen_by(self, node: int) -> Manifest:
        """Return the manifest with one file for each path: a node's own, else that of the lowest rank."""
        if not any(file.node for file in self.files):
            return self
        chosen: dict[str, StoredFile] = {}
        for file in sorted(self.files, key=lambda file: (file.node != node, file.node)):
            chosen.setdefault(file.path, file)
        writers = frozenset(file.node for file in self.files)
        return msgspec.structs.replace(self, files=tuple(chosen.values()), writers=writers)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(part.key for part in _all_parts(self.files)) | {part.key for part in self.table}


class _Stored(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest as it is stored."""

    run: str
    checkpoint: str
    attempt: int
    files: tuple[StoredFile, ...]
    folders: tuple[str, ...] = ()
    step: int | None = None
    nodes: int = 1
    changed_ns: dict[str, int] = {}
    # The parts that contain the files of the table, and the parts of the table.
    packs: tuple[Part, ...] = ()
    table: tuple[Part, ...] = ()


class _Table(msgspec.Struct, frozen=True, kw_only=True):
    """Small files, links and empty folders, in columns: value number n of each column belongs to path number n."""

    paths: list[str]
    # The index of the pack in the manifest; -1 for an empty file.
    packs: list[int]
    # Bytes between this file and the previous one in the same pack: mostly 0.
    gaps: list[int]
    sizes: list[int]
    # The indexes of executable files.
    executable: list[int]
    links: dict[str, str]
    folders: list[str]


def manifest_key(run: str, checkpoint: str) -> str:
    return f"runs/{run}/checkpoints/{checkpoint}/manifest.json"


def write_manifest(bucket: Bucket, manifest: Manifest, own: Parts | None = None) -> None:
    """Write the manifest. An identical one means that an earlier response was lost.

    A long list of files is stored as a table if `own` is given.
    """
    key = manifest_key(manifest.run, manifest.checkpoint)
    many = len(manifest.files) + len(manifest.folders) > _INLINE_MAX
    stored = _with_table(manifest, own) if many and own is not None else _inline(manifest)
    try:
        bucket.create(key, sealed(msgspec.json.encode(stored)))
    except Exists:
        if decoded(unsealed(bucket.get(key), key), _Stored, key) != stored:
            raise WorkspaceError(f"{key} already exists with other content") from None


def read_manifest(bucket: Bucket, run: str, checkpoint: str) -> Manifest:
    """Return the manifest of a checkpoint. Raises Missing, and Damaged if it is inconsistent."""
    stored = _read(bucket, run, checkpoint)
    key = manifest_key(run, checkpoint)
    files, folders = stored.files, stored.folders
    if stored.table:
        table = _read_table(bucket, stored, key)
        files += _table_files(table, stored.packs, key)
        files += tuple(StoredFile(path=path, link=target) for path, target in table.links.items())
        folders += tuple(table.folders)
    if len({*((0, path) for path in folders), *((file.node, file.path) for file in files)}) != len(files) + len(
        folders
    ):
        raise Damaged(f"{key} names a file twice")
    return Manifest(
        run=run,
        checkpoint=checkpoint,
        attempt=stored.attempt,
        files=files,
        folders=folders,
        step=stored.step,
        nodes=stored.nodes,
        changed_ns=stored.changed_ns,
        table=stored.table,
    )


def read_keys(bucket: Bucket, run: str, checkpoint: str) -> frozenset[str]:
    """Return the keys of the parts of a checkpoint, without reading its list of files. Raises like `read_manifest`."""
    stored = _read(bucket, run, checkpoint)
    return frozenset(part.key for part in (*_all_parts(stored.files), *stored.packs, *stored.table))


def _read(bucket: Bucket, run: str, checkpoint: str) -> _Stored:
    key = manifest_key(run, checkpoint)
    stored = decoded(unsealed(bucket.get(key), key), _Stored, key)
    if (stored.run, stored.checkpoint) != (run, checkpoint):
        raise Damaged(f"{key} belongs to checkpoint {stored.checkpoint} of {stored.run}")
    # Accept only parts of the same run: named parts are read, and deleted later.
    for part in {*_all_parts(stored.files), *stored.packs, *stored.table}:
        try:
            mine = check_key(part.key).startswith(parts_prefix(run))
        except (WorkspaceError, ValueError):
            mine = False
        if not mine or part.bytes < 1:
            raise Damaged(f"{key} names `{part.key}`, which is not a part of {run}")
    for file in stored.files:
        if file.size is not None and (len(file.parts) != 1 or not _fits(file.at, file.size, file.parts[0])):
            raise Damaged(f"{key} gives an offset outside its pack for `{file.path}`")
    return stored


def _fits(at: int, size: int, part: Part) -> bool:
    return at >= 0 and size > 0 and at + size <= part.bytes


def _all_parts(files: Iterable[StoredFile]) -> Iterable[Part]:
    return (part for file in files for part in file.parts)


def _inline(manifest: Manifest) -> _Stored:
    return _Stored(
        run=manifest.run,
        checkpoint=manifest.checkpoint,
        attempt=manifest.attempt,
        files=manifest.files,
        folders=manifest.folders,
        step=manifest.step,
        nodes=manifest.nodes,
        changed_ns=manifest.changed_ns,
    )


def _with_table(manifest: Manifest, own: Parts) -> _Stored:
    """Store the table durably; return the manifest without the files in it."""
    # The table has no ranks: files of other nodes stay in the manifest.
    alone = [file for file in manifest.files if not file.node]
    listed = [file for file in alone if not file.link and (file.size is not None or not file.parts)]
    # Sorted by pack and offset, most gaps are 0 and compress well.
    listed.sort(key=lambda file: (file.parts[0].key if file.parts else "", file.at))
    packs = list({file.parts[0].key: file.parts[0] for file in listed if file.parts}.values())
    rest = tuple(file for file in manifest.files if file.node or (file.parts and file.size is None))
    body = msgspec.json.encode(_table_of(manifest, listed, packs))
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    body = compressor.compress(body) + compressor.flush()
    size = parts.PART_BYTES
    table = tuple(own.store(body[at : at + size]) for at in range(0, len(body), size))
    own.make_durable()
    changed_ns = {file.path: manifest.changed_ns[file.path] for file in rest if file.path in manifest.changed_ns}
    return msgspec.structs.replace(
        _inline(manifest), files=rest, folders=(), packs=tuple(packs), table=table, changed_ns=changed_ns
    )


def _table_of(manifest: Manifest, listed: list[StoredFile], packs: list[Part]) -> _Table:
    numbers = {pack.key: number for number, pack in enumerate(packs)}
    where: list[int] = []
    gaps: list[int] = []
    last, end = -1, 0
    for file in listed:
        pack = numbers[file.parts[0].key] if file.parts else -1
        where.append(pack)
        gaps.append(file.at - (end if pack == last else 0))
        last, end = pack, file.at + file.bytes
    return _Table(
        paths=[file.path for file in listed],
        packs=where,
        gaps=gaps,
        sizes=[file.bytes for file in listed],
        executable=[number for number, file in enumerate(listed) if file.executable],
        links={file.path: file.link for file in manifest.files if file.link and not file.node},
        folders=list(manifest.folders),
    )


def _read_table(bucket: Bucket, stored: _Stored, key: str) -> _Table:
    compressed = bytearray()
    for part in stored.table:
        body = bucket.get(part.key)
        if len(body) != part.bytes or hashlib.sha256(body).hexdigest() != part.sha256:
            raise Damaged(f"the list of files of {key} is damaged")
        compressed += body
    try:
        decompressor = zlib.decompressobj(_GZIP)
        body = decompressor.decompress(bytes(compressed), _TABLE_BYTES_MAX)
    except zlib.error as problem:
        raise Damaged(f"could not decompress the list of files of {key}: {problem}") from problem
    if not decompressor.eof:
        raise Damaged(f"the list of files of {key} is truncated or larger than {_TABLE_BYTES_MAX >> 20} MiB")
    return decoded(body, _Table, f"the list of files of {key}")


def _table_files(table: _Table, packs: tuple[Part, ...], key: str) -> tuple[StoredFile, ...]:
    if not len(table.paths) == len(table.packs) == len(table.gaps) == len(table.sizes):
        raise Damaged(f"the columns of the list of files of {key} differ in length")
    executable = set(table.executable)
    files: list[StoredFile] = []
    alone = [(pack,) for pack in packs]
    last, end = -1, 0
    for number, (path, pack, gap, size) in enumerate(
        zip(table.paths, table.packs, table.gaps, table.sizes, strict=True)
    ):
        runs = number in executable
        if pack == -1:
            files.append(StoredFile(path=path, executable=runs))
            continue
        at = gap + (end if pack == last else 0)
        if not 0 <= pack < len(packs) or not _fits(at, size, packs[pack]):
            raise Damaged(f"{key} gives an offset outside its pack for `{path}`")
        last, end = pack, at + size
        files.append(StoredFile(path=path, parts=alone[pack], executable=runs, at=at, size=size))
    return tuple(files)
