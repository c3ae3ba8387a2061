"""The checkpoint folder at one moment, as an immutable value: the files of a checkpoint, logs, databases and links.

Files with temporary names and folders that their framework has not completed (`frameworks.py`) are left out. Logs are
included as far as they are written, and open databases as their last transaction left them (`database.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import chain

import msgspec

from outlast.agent.checkpoint.database import with_sidecar_files
from outlast.agent.checkpoint.frameworks import incomplete_folders
from outlast.runs.folder_listing import FolderListing, Mark, has_same_names, survey
from outlast.runs.packs import is_small
from outlast.spec.checkpoint_patterns import insides

# With more files than this, a second comparison of all of them would take a fifth of a commit.
_MANY = 10_000

_TEMPORARY = re.compile(
    r"(^|/)[^/]*(\.tmp|\.temp|\.part|\.partial|\.incomplete|\.swp|~|\.orbax-checkpoint-tmp[^/]*|\.lock)(/|$)"
    # With a number behind it, `temp` is a temperature.
    r"|(^|/)(\.?tmp[-_.]|temp[-_.](?!\d))[^/]*(/|$)|(^|/)\.~"
)
# Every temporary path contains one of these: a much faster test where there are many files.
_TEMPORARY_HINTS = ("tmp", "temp", ".part", ".incomplete", ".swp", "~", ".lock")
# Folders of the trainer library.
_TRAINER_MARKER = re.compile(r"step-\d{9}/checkpoint(-\d+)?\.json")
_STEP = re.compile(
    r"(?:checkpoint|ckpt|step|model|iter|iteration|epoch|round|snapshot)[-_=]?(\d{1,18})(?!\d)", re.IGNORECASE
)
_STEP_FOLDER = re.compile(r"/(\d{1,9})(?=/)")
_STEP_HINTS = ("checkpoint", "ckpt", "step", "model", "iter", "epoch", "round", "snapshot")


class FolderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a folder at one moment: path → size, time of change and inode."""

    files: dict[str, Mark]
    # Logs are committed with the files, and may change meanwhile.
    logs: dict[str, Mark] = {}
    # Open databases, which change and are always consistent: path → their marks and those of their write-ahead logs.
    databases: dict[str, tuple[int, ...]] = {}
    # Links to places inside the folder, such as `latest`, and broken links: path → target.
    links: dict[str, str] = {}
    # Empty folders. They are committed with the files, and are not a reason for a commit while the program runs.
    folders: frozenset[str] = frozenset()
    changed_at: float = 0.0
    # Patterns of `[checkpoint] path`; empty: everything.
    names: tuple[str, ...] = ()
    # The only checkpoint is still being written: the rest of the folder is useless without it.
    only_incomplete: bool = False
    command_ended: bool = False
    is_part: bool = False
    # A folder that its framework has not completed, and a file with a temporary name, if there are any; both left out.
    incomplete: str = ""
    temporary: str = ""
    # Everything in the folder, including files that are left out.
    found: FolderListing | None = None

    @property
    def paths(self) -> list[str]:
        # Mostly in order already, which makes this fast.
        return sorted([*self.files, *(path for path in self.logs if path not in self.files)])

    @property
    def bytes(self) -> int:
        plain = sum(size for of in (self.files, self.logs) for size, _, _ in of.values())
        return plain + sum(sum(mark[::3]) for mark in self.databases.values())

    @property
    def empty(self) -> bool:
        return not self.files and not self.databases

    @property
    def from_trainer(self) -> bool:
        """Whether it consists of checkpoints of the trainer library, which renames complete folders: always complete,
        even if the program is killed."""
        folders = {path.partition("/")[0] for path in self.files}
        return bool(folders) and folders == self._complete

    @property
    def final(self) -> list[str]:
        """The files that are never written again: those of complete checkpoints of the trainer library."""
        complete = self._complete
        return [path for path in self.files if path.partition("/")[0] in complete] if complete else []

    @property
    def _complete(self) -> set[str]:
        return {path.partition("/")[0] for path in self.files if _TRAINER_MARKER.fullmatch(path)}

    def same(self, other: FolderSnapshot) -> bool:
        """Return whether nothing changed. Opening a database changes nothing."""
        return (self.files | self.databases, self.links) == (other.files | other.databases, other.links)

    def equals(self, other: FolderSnapshot) -> bool:
        """Return whether nothing changed, empty folders included."""
        return self.same(other) and self.folders == other.folders

    def holds(self, other: FolderSnapshot) -> bool:
        """Return whether the files and links, without logs and databases, are the same."""
        return (self.files, self.links) == (other.files, other.links)


def is_temporary(path: str, names: Collection[str] = ()) -> bool:
    """Return whether the path is left out because of its name. A pattern of the user overrides its own part of it."""
    return all(_TEMPORARY.search(inner) for inner in insides(path, names))


def take_snapshot(
    folder: str,
    *,
    names: tuple[str, ...] = (),
    logs: Collection[str] = (),
    databases: Collection[str] = (),
    command_ended: bool = False,
    is_part: bool = False,
) -> FolderSnapshot:
    """List the folder, limited to `names`, without files that are not part of a complete checkpoint.

    `is_part`: rank 0 of the program is on another machine.
    """
    found, options = survey(folder, names=names), {"command_ended": command_ended, "is_part": is_part}
    return _from_listing(folder, found, names=names, logs=logs, databases=databases, **options)


def _from_listing(
    folder: str,
    found: FolderListing,
    *,
    names: tuple[str, ...],
    logs: Collection[str],
    databases: Collection[str],
    command_ended: bool,
    is_part: bool,
) -> FolderSnapshot:
    by_folder = _by_folder(found.files)
    incomplete, only_incomplete = incomplete_folders(by_folder, command_ended=command_ended, is_part=is_part)
    hidden = tuple(f"{folder}/" if folder else "" for folder in incomplete)

    def taken(path: str) -> bool:
        return not is_temporary(path, names) and not path.startswith(hidden)

    # By folders and then by file names: with many files that is several times as fast as by full paths.
    left_out: list[str] = []
    for above, files in by_folder.items():
        joined = "/".join(files)
        if names or not taken(f"{above}/") or any(hint in joined for hint in _TEMPORARY_HINTS):
            left_out += [path for path in files.values() if not taken(path)]
    gone = set(left_out)
    marks = {path: mark for path, mark in found.files.items() if path not in gone} if gone else found.files
    always_changing = {*logs, *with_sidecar_files(databases)}
    files_only = (
        {path: mark for path, mark in marks.items() if path not in always_changing} if always_changing else marks
    )
    changed_s, changed_ns = divmod(max((changed_ns for _, changed_ns, _ in files_only.values()), default=0), 10**9)
    folders = frozenset(path for path in found.folders if taken(f"{path}/") and not _may_be_next(path))
    targets = {*marks, *folders} if found.links else set()
    return FolderSnapshot(
        files=files_only,
        logs={path: marks[path] for path in logs if path in marks},
        databases={path: marks[path] + _wal_mark(marks, path) for path in databases if path in marks},
        links={path: to for path, to in found.links.items() if taken(path) and _is_kept(folder, path, to, targets)},
        folders=folders,
        changed_at=changed_s + 1e-9 * changed_ns,
        names=names,
        only_incomplete=only_incomplete,
        command_ended=command_ended,
        is_part=is_part,
        incomplete=next((above or "." for above in incomplete), ""),
        temporary=left_out[0] if left_out else "",
        found=found,
    )


def _by_folder(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group the files: folder → name → path."""
    grouped: dict[str, dict[str, str]] = {}
    for path in paths:
        above, _, name = path.rpartition("/")
        try:
            grouped[above][name] = path
        except KeyError:
            grouped[above] = {name: path}
    return grouped


def _may_be_next(folder: str) -> bool:
    """Return whether this empty folder may be the next checkpoint: a framework would treat it as the newest one and
    fail to load it."""
    name = os.path.basename(folder)
    return name.isdecimal() or bool(_STEP.search(name))


def is_unchanged(folder: str, snapshot: FolderSnapshot, *, read: bool = False) -> bool:
    """Return whether the files of the snapshot, without logs and databases, are still the same.

    `read`: small files were compared with the snapshot when they were read. Where there are many of them, only names
    and large files are compared again.
    """
    if read and len(snapshot.files) > _MANY and snapshot.found and has_same_names(folder, snapshot.found):
        large = {path: mark for path, mark in snapshot.files.items() if not is_small(mark[0])}
        return all(_has_mark(f"{folder}/{path}", mark) for path, mark in large.items())
    found = survey(folder, names=snapshot.names)
    if found == snapshot.found:
        return True
    now = _from_listing(
        folder,
        found,
        names=snapshot.names,
        logs=snapshot.logs,
        databases=snapshot.databases,
        command_ended=snapshot.command_ended,
        is_part=snapshot.is_part,
    )
    return now.holds(snapshot)


def _has_mark(path: str, mark: Mark) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    return (info.st_size, info.st_mtime_ns, info.st_ino) == mark


def _wal_mark(marks: Mapping[str, Mark], database: str) -> tuple[int, ...]:
    """Return the mark of the write-ahead log; empty if there is none or it is empty."""
    mark = marks.get(f"{database}-wal", (0, 0, 0))
    return mark if mark[0] else ()


def _is_kept(folder: str, path: str, target: str, kept: Collection[str]) -> bool:
    """Return whether the link is broken or leads to a kept path. One to a path that is left out would be broken."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if place in kept or not os.path.exists(os.path.join(folder, path)):
        return True
    return any(other.startswith(f"{place}/") for other in kept)


def step_of(snapshot: FolderSnapshot) -> int | None:
    """Return the highest step in a file or folder name, for display."""
    return highest_step(snapshot.files)


def highest_step(paths: Iterable[str]) -> int | None:
    """Return the highest step in the names of checkpoint files."""
    joined = "/".join(paths)
    lowered = joined.lower()
    found = _STEP.findall(joined) if any(hint in lowered for hint in _STEP_HINTS) else []
    # Orbax names a folder by the step alone.
    return max(map(int, found or _STEP_FOLDER.findall(f"/{joined}")), default=None)


def undecodable_name(snapshot: FolderSnapshot) -> str:
    """Return the first name or link target that is not valid UTF-8; empty if all are."""
    names = (snapshot.paths, snapshot.databases, snapshot.links, snapshot.links.values(), snapshot.folders)
    return next((name for name in chain(*names) if not name.isascii() and not _is_text(name)), "")


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False
