"""Checkpoints: files as content-addressed parts, a manifest that names them, whole or not there.

The order is the guarantee: parts first, the manifest after them, `Saved` in the story last. Refuses to know when a
folder is whole; that is the agent's to judge.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from outlast.errors import Damaged, Exists, Missing, WorkspaceError
from outlast.workspace.bucket import Bucket
from outlast.workspace.codec import decoded
from outlast.workspace.each import Each, in_parallel
from outlast.workspace.state import Checkpoint

_CHUNK = 1 << 20


class Part(msgspec.Struct, frozen=True):
    """One file of a checkpoint: where it goes, and where its body is."""

    path: str
    key: str
    sha256: str
    bytes: int
    executable: bool = False
    # A link to another place of the same checkpoint; it has no body.
    link: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    checkpoint: str
    attempt: int
    parts: tuple[Part, ...]
    step: int | None = None

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


def manifest_key(run: str, checkpoint: str) -> str:
    return f"runs/{run}/checkpoints/{checkpoint}/manifest.json"


class Parts:
    """The parts that one attempt may name without uploading them again: its own, and those of what it restored.

    Not those of the whole bucket: another attempt may be about to delete them.
    """

    def __init__(self, bucket: Bucket, run: str, attempt: int) -> None:
        self.bucket = bucket
        self.run = run
        self.attempt = attempt
        self._known: dict[str, str] = {}
        self._fresh: set[str] = set()

    def learn(self, manifest: Manifest) -> None:
        self._known.update({part.sha256: part.key for part in manifest.parts})

    def upload(self, folder: str, path: str) -> Part:
        """One file's body into the bucket, once. Raises OSError if the file went away meanwhile."""
        source = os.path.join(folder, path)
        digest = _sha256(source)
        size = os.stat(source).st_size
        key = self._known.get(digest)
        if key is None:
            key = f"runs/{self.run}/parts/{self.attempt}/{digest}"
            # Before the upload: one that fails half way must not be trusted either.
            self._fresh.add(key)
            self.bucket.upload(key, source)
            self._known[digest] = key
        return Part(path, key, digest, size, os.access(source, os.X_OK))

    def trust(self) -> None:
        """What was uploaded is named by a manifest now: never to be written again."""
        self._fresh.clear()

    def distrust(self) -> None:
        """A file changed between its hash and its upload, perhaps: upload again what is new. Not what a committed
        manifest names: a second upload could put a wrong body in the place of a right one."""
        for key in self._fresh:
            self.forget(key)
        self._fresh.clear()

    def forget(self, key: str) -> None:
        """Upload this body again when it is needed next: it was deleted, or cannot be trusted."""
        self._known = {digest: known for digest, known in self._known.items() if known != key}


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def upload_parts(parts: Parts, folder: str, paths: Sequence[str], *, each: Each = in_parallel) -> tuple[Part, ...]:
    """Every file's body into the bucket."""
    return tuple(each(lambda path: parts.upload(folder, path), paths))


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
    return manifest


def restore(
    bucket: Bucket, run: str, checkpoints: Iterable[Checkpoint], folder: str, *, each: Each = in_parallel
) -> tuple[Manifest | None, list[str]]:
    """Put the newest checkpoint whose hashes hold into the folder; also says which ones did not hold, and why.

    The folder is replaced as a whole: it never mixes two checkpoints. Raises StoreUnreachable: a store that does not
    answer says nothing about a checkpoint, and to fall back then would throw away committed progress.
    """
    problems: list[str] = []
    folder = os.path.abspath(folder)
    staged = f"{folder}.restoring"
    for checkpoint in checkpoints:
        shutil.rmtree(staged, ignore_errors=True)
        try:
            manifest = read_manifest(bucket, run, checkpoint.id)
            _fetch(bucket, manifest, staged, each)
        except (Missing, Damaged) as problem:
            problems.append(f"checkpoint {checkpoint.id} does not hold: {problem.message}")
            continue
        if os.path.islink(folder):
            os.unlink(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        os.replace(staged, folder)
        return manifest, problems
    shutil.rmtree(staged, ignore_errors=True)
    return None, problems


def _fetch(bucket: Bucket, manifest: Manifest, folder: str, each: Each) -> None:
    os.makedirs(folder, exist_ok=True)

    def one(part: Part) -> None:
        target = _inside(folder, part.path)
        bucket.download(part.key, target)
        if os.stat(target).st_size != part.bytes or _sha256(target) != part.sha256:
            raise Damaged(f"`{part.path}` is damaged")
        if part.executable:
            os.chmod(target, 0o755)

    each(one, [part for part in manifest.parts if not part.link])
    for part in manifest.parts:
        if part.link:
            # Last, and to places inside only: nothing was written through one.
            target = _inside(folder, part.path)
            _inside(folder, os.path.join(os.path.dirname(part.path), part.link))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.symlink(part.link, target)


def _inside(folder: str, path: str) -> str:
    target = os.path.normpath(os.path.join(folder, path))
    if not target.startswith(os.path.join(folder, "")):
        raise Damaged(f"`{path}` leaves the checkpoint folder")
    return target


def prune(bucket: Bucket, run: str, checkpoints: Sequence[Checkpoint], *, keep: int, parts: Parts) -> int:
    """Delete what only checkpoints older than the newest `keep` need; how many objects went.

    Only for the attempt that just committed, which is the one writer. It touches parts of its own and of earlier,
    fenced attempts; a later attempt names an earlier one's parts only through what it restored, and that is among the
    newest two.
    """
    keep = max(2, keep)
    if len(checkpoints) <= keep:
        return 0
    needed: set[str] = set()
    for checkpoint in checkpoints[-keep:]:
        needed.update(part.key for part in read_manifest(bucket, run, checkpoint.id).parts)
    needed.add("")  # what a link has instead of a body
    gone = 0
    for old in _still_there(bucket, run, checkpoints[:-keep]):
        for key in {part.key for part in old.parts} - needed:
            bucket.delete(key)
            parts.forget(key)
            gone += 1
        # The manifest goes last: while it is there, a prune that was cut short is taken up again.
        bucket.delete(manifest_key(run, old.checkpoint))
        gone += 1
    return gone


def _still_there(bucket: Bucket, run: str, checkpoints: Sequence[Checkpoint]) -> list[Manifest]:
    """The manifests that no earlier prune has deleted, oldest first."""
    found: list[Manifest] = []
    for checkpoint in reversed(checkpoints):
        try:
            found.append(read_manifest(bucket, run, checkpoint.id))
        except Missing:
            break
        except Damaged:
            continue  # unreadable: nobody can restore it, and nobody knows what it named
    return found[::-1]


def files_of(folder: str) -> Mapping[str, os.stat_result]:
    """Every regular file below the folder with its stat; see `survey`."""
    return survey(folder)[0]


def survey(folder: str) -> tuple[dict[str, os.stat_result], dict[str, str]]:
    """The regular files below a folder with their stats, and the links to places inside of it: path → relative target.

    Links to places outside are followed, since nothing else brings along what they lead to.
    """
    files: dict[str, os.stat_result] = {}
    links: dict[str, str] = {}
    top = os.path.realpath(folder)

    def walk(below: str, ways: tuple[str, ...]) -> None:
        for entry in _entries(os.path.join(folder, below)):
            path = os.path.join(below, entry.name)
            try:
                info = entry.stat()
                real = os.path.realpath(entry.path) if entry.is_symlink() else ""
            except OSError:
                continue  # went away while we looked, or a dangling link
            if real.startswith(os.path.join(top, "")):
                links[path] = os.path.relpath(os.path.relpath(real, top), below or ".")
            elif stat.S_ISREG(info.st_mode) or (stat.S_ISDIR(info.st_mode) and not os.access(entry.path, os.R_OK)):
                # A folder that may not be read is named, so that whoever copies it fails: its files would be missing.
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
