"""When is a checkpoint folder whole? Rules for programs that know nothing of outlast.

Known frameworks say it themselves by marker files. For all others: nobody has one of the files open for writing
(`writing.py`), and nothing changed for a moment; logs, which are always open, come along as far as they are written,
and databases that are open as their last transaction left them (`database.py`).
One file that was just written and closed is whole by itself; of several, the last may be still to come, so they must
settle; a program that never pauses is at last taken at a still instant between two writes, but never with a file that
was emptied to be written anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain

import msgspec

from outlast.agent.attempt import Ending
from outlast.agent.checkpoint.database import with_sides
from outlast.runs.folder_listing import FolderListing, Mark, has_same_names, survey
from outlast.runs.packs import is_small
from outlast.spec.checkpoint_patterns import insides

# Unchanged for this long: settled.
SETTLED_S = 0.5
RESTLESS_S = 10.0
_STILL_S = 0.02
# With more files than this, a second look at all of them would take a fifth of a commit.
_MANY = 10_000

_UNFINISHED = re.compile(
    r"(^|/)[^/]*(\.tmp|\.temp|\.part|\.partial|\.incomplete|\.swp|~|\.orbax-checkpoint-tmp[^/]*|\.lock)(/|$)"
    # With a number behind it it is a temperature.
    r"|(^|/)(\.?tmp[-_.]|temp[-_.](?!\d))[^/]*(/|$)|(^|/)\.~"
)
# Without one of these in it no path is unfinished by its name: a much faster question where there are many files.
_UNFINISHED_HINTS = ("tmp", "temp", ".part", ".incomplete", ".swp", "~", ".lock")
# What Hugging Face writes before the weights.
_DESCRIBES = re.compile(r"(generation_|adapter_|tokenizer_|preprocessor_|processor_)?config\.json|README\.md|.*\.jinja")
# What it writes next. `model.pt` and `optimizer.pt` alone are a loop of somebody's own.
_WEIGHTS = re.compile(r"(pytorch_|adapter_)?model.*\.(safetensors|bin)|.*\.index\.json|training_args\.bin")
_NUMBERED = re.compile(r"checkpoint-(\d{1,18})")
_NAMED = re.compile(r"step-\d{9}")
_STEP = re.compile(
    r"(?:checkpoint|ckpt|step|model|iter|iteration|epoch|round|snapshot)[-_=]?(\d{1,18})(?!\d)", re.IGNORECASE
)
_STEP_HINTS = ("checkpoint", "ckpt", "step", "model", "iter", "epoch", "round", "snapshot")


class FolderSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a folder at one moment: path → size, time of change and inode."""

    files: dict[str, Mark]
    # Those among the files that are no part of what must be whole.
    logs: dict[str, Mark] = {}
    # Databases that are open, which change and are never half: path → the marks of them and of their write-ahead logs.
    databases: dict[str, tuple[int, ...]] = {}
    # Links inside of the folder, such as `latest`, and links to nothing: path → target.
    links: dict[str, str] = {}
    # Empty folders. They come along with a commit, and are no reason for one while the program runs.
    folders: frozenset[str] = frozenset()
    changed_at: float = 0.0
    # What was looked for; empty: everything.
    names: tuple[str, ...] = ()
    # The only checkpoint is one that is in the making: without it the rest is none.
    waits: bool = False
    over: bool = False
    # A folder that its framework has not completed, and a file with a temporary name, if there are any; both left out.
    incomplete: str = ""
    temporary: str = ""
    # Everything in the folder, also what is left out.
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
    def named_whole(self) -> bool:
        """Only checkpoints of the trainer library, which get their name when all of them is on disk: whole at any time,
        whatever happens to the program."""
        folders = {path.partition("/")[0] for path in self.files}
        return bool(folders) and all(
            _NAMED.fullmatch(folder) and f"{folder}/checkpoint.json" in self.files for folder in folders
        )

    def same(self, other: FolderSnapshot) -> bool:
        """Has nothing changed? To open a database alone changes nothing."""
        return (self.files | self.databases, self.links) == (other.files | other.databases, other.links)

    def equals(self, other: FolderSnapshot) -> bool:
        """Is it the same, the empty folders as well?"""
        return self.same(other) and self.folders == other.folders

    def holds(self, other: FolderSnapshot) -> bool:
        """Is all that must be whole as it was?"""
        return (self.files, self.links) == (other.files, other.links)


def is_plainly_unfinished(path: str, names: Collection[str] = ()) -> bool:
    """Is it left out because of its name? What somebody names is meant, but not all that is in it."""
    return all(_UNFINISHED.search(inner) for inner in insides(path, names))


def take_snapshot(
    folder: str,
    *,
    names: tuple[str, ...] = (),
    logs: Collection[str] = (),
    databases: Collection[str] = (),
    over: bool = False,
) -> FolderSnapshot:
    """What is there now, of these names, without what is plainly unfinished. `over`: nobody writes any more."""
    found = survey(folder, names=names)
    return _judged(folder, found, names=names, logs=logs, databases=databases, over=over)


def _judged(
    folder: str,
    found: FolderListing,
    *,
    names: tuple[str, ...],
    logs: Collection[str],
    databases: Collection[str],
    over: bool,
) -> FolderSnapshot:
    inside = _by_folder(found.files)
    unfinished, waits = _unfinished_folders(inside, over=over)
    hidden = tuple(f"{folder}/" if folder else "" for folder in unfinished)

    def finished(path: str) -> bool:
        return not is_plainly_unfinished(path, names) and not path.startswith(hidden)

    # By folders and then by file names: with many files that is several times as fast as by whole paths.
    left_out: list[str] = []
    for above, files in inside.items():
        joined = "/".join(files)
        if names or not finished(f"{above}/") or any(hint in joined for hint in _UNFINISHED_HINTS):
            left_out += [path for path in files.values() if not finished(path)]
    gone = set(left_out)
    marks = {path: mark for path, mark in found.files.items() if path not in gone} if gone else found.files
    at_any_time = {*logs, *with_sides(databases)}
    plain = {path: mark for path, mark in marks.items() if path not in at_any_time} if at_any_time else marks
    changed_s, changed_ns = divmod(max((changed_ns for _, changed_ns, _ in plain.values()), default=0), 10**9)
    folders = frozenset(path for path in found.folders if finished(f"{path}/") and not _may_be_filled(path))
    kept_at = {*marks, *folders} if found.links else set()
    return FolderSnapshot(
        files=plain,
        logs={path: marks[path] for path in logs if path in marks},
        databases={path: marks[path] + _written_ahead(marks, path) for path in databases if path in marks},
        links={path: to for path, to in found.links.items() if finished(path) and _leads(folder, path, to, kept_at)},
        folders=folders,
        changed_at=changed_s + 1e-9 * changed_ns,
        names=names,
        waits=waits,
        over=over,
        incomplete=next((above or "." for above in unfinished), ""),
        temporary=left_out[0] if left_out else "",
        found=found,
    )


def _by_folder(paths: Iterable[str]) -> dict[str, dict[str, str]]:
    """The files of each folder: folder → name → path."""
    inside: dict[str, dict[str, str]] = {}
    for path in paths:
        above, _, name = path.rpartition("/")
        try:
            inside[above][name] = path
        except KeyError:
            inside[above] = {name: path}
    return inside


def _may_be_filled(folder: str) -> bool:
    """May this empty folder be the next checkpoint? A framework would take it for the newest and fail to load it."""
    name = os.path.basename(folder)
    return name.isdecimal() or bool(_STEP.search(name))


def is_there(folder: str, snapshot: FolderSnapshot, *, read: bool = False) -> bool:
    """Is all that must be whole still as it was seen?

    `read`: small files were compared with the snapshot when they were read. Where there are many of them they are not
    compared a second time; only names and large files are.
    """
    if read and len(snapshot.files) > _MANY and snapshot.found and has_same_names(folder, snapshot.found):
        large = {path: mark for path, mark in snapshot.files.items() if not is_small(mark[0])}
        return all(_is_as_seen(f"{folder}/{path}", mark) for path, mark in large.items())
    found = survey(folder, names=snapshot.names)
    if found == snapshot.found:
        return True
    now = _judged(
        folder,
        found,
        names=snapshot.names,
        logs=snapshot.logs,
        databases=snapshot.databases,
        over=snapshot.over,
    )
    return now.holds(snapshot)


def _is_as_seen(path: str, mark: Mark) -> bool:
    try:
        info = os.stat(path)
    except OSError:
        return False
    return (info.st_size, info.st_mtime_ns, info.st_ino) == mark


def _written_ahead(marks: Mapping[str, Mark], database: str) -> tuple[int, ...]:
    """The mark of what is not in the database itself yet; none if nothing is."""
    mark = marks.get(f"{database}-wal", (0, 0, 0))
    return mark if mark[0] else ()


def _leads(folder: str, path: str, target: str, kept: Collection[str]) -> bool:
    """Does the link lead to something that is kept, or to nothing at all? What is left out would be missing."""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    if place in kept or not os.path.exists(os.path.join(folder, path)):
        return True
    return any(other.startswith(f"{place}/") for other in kept)


def _unfinished_folders(inside: Mapping[str, Collection[str]], *, over: bool) -> tuple[list[str], bool]:
    """Folders of frameworks whose marker says that they are not whole, the top one being "". And whether one of them is
    the only checkpoint beside its kind. `inside`: the names of the files in each folder."""
    numbered = {
        above: int(number[1])
        for above in {above for folder in inside for above in _and_above(folder)}
        if (number := _NUMBERED.fullmatch(os.path.basename(above)))
    }

    def beside(folder: str) -> list[str]:
        return [other for other in numbered if os.path.dirname(other) == os.path.dirname(folder)]

    def unfinished(folder: str, names: Collection[str]) -> bool:
        # PyTorch's distributed checkpoints write `.metadata` last.
        if any(name.endswith(".distcp") for name in names) and ".metadata" not in names:
            return True
        # Hugging Face: whole is where the trainer's state is and the marker is not.
        if "checkpoint-is-incomplete.txt" in names:
            return bool(folder)
        if folder not in numbered or "trainer_state.json" in names:
            return False
        # A loop of somebody's own that has gone on to the next one, or has ended, is done with this one.
        goes_on = any(numbered[other] > numbered[folder] for other in beside(folder))
        return not goes_on and _is_in_the_making(names, over=over)

    hidden = [folder for folder, names in inside.items() if unfinished(folder, names)]
    waits = any(folder in numbered and set(beside(folder)) <= set(hidden) for folder in hidden)
    return hidden, waits


def _is_in_the_making(names: Collection[str], *, over: bool) -> bool:
    """May this be a folder of Hugging Face's whose last file is still to come? Loops that are somebody's own give their
    folders the same name, with `save_pretrained` the same files, and never write that last one."""
    if all(_DESCRIBES.fullmatch(name) for name in names):
        return True
    if over and "training_args.bin" not in names:
        return False
    # Accelerate uses the same name, too, and writes the states of its dice last.
    accelerate = any(name.startswith("random_states_") for name in names)
    return any(_WEIGHTS.fullmatch(name) for name in names) and not accelerate


def _and_above(folder: str) -> Iterator[str]:
    while folder:
        yield folder
        folder = os.path.dirname(folder)


def step_of(snapshot: FolderSnapshot) -> int | None:
    """The highest step that a file or folder name tells, for people."""
    joined = "/".join(snapshot.files)
    lowered = joined.lower()
    if not any(hint in lowered for hint in _STEP_HINTS):
        return None
    return max(map(int, _STEP.findall(joined)), default=None)


def name_without_text(snapshot: FolderSnapshot) -> str:
    """The first name or target in the snapshot that is no text, as names of files may be; empty if all are."""
    places = (snapshot.paths, snapshot.databases, snapshot.links, snapshot.links.values(), snapshot.folders)
    return next((name for name in chain(*places) if not name.isascii() and not _is_text(name)), "")


def _is_text(name: str) -> bool:
    try:
        return bool(name.encode())
    except UnicodeEncodeError:
        return False


def why_unsettled(snapshot: FolderSnapshot, *, now: float, restless_s: float, filled: Collection[str] = ()) -> str:
    """Return why this snapshot may not be read as whole though no process writes to it; empty if it may be.

    `filled`: files that were seen with something in them.
    """
    if not snapshot.files:
        return "" if snapshot.databases else "there is no file yet"
    # Absolute: times in the future, of a clock that was set back or of a program that sets them, are no recent change.
    now_ns, settled_ns = int(now * 1e9), int(SETTLED_S * 1e9)
    recent = [path for path, (_, at_ns, _) in snapshot.files.items() if abs(now_ns - at_ns) < settled_ns]
    if recent and abs(now - snapshot.changed_at) < _STILL_S:
        return f"`{recent[0]}` is being written"
    # A file that was just emptied is about to be written: on a busy disk the call that empties it can take long, and
    # until it returns no process has the file open.
    emptied = [path for path in recent if not snapshot.files[path][0]]
    if known := sorted(set(emptied).intersection(filled)):
        return f"`{known[0]}` was emptied and not written yet"
    if restless_s >= RESTLESS_S or not (len(recent) > 1 or emptied):
        return ""
    return f"files change all the time, such as `{recent[0]}`"


def why_not(
    snapshot: FolderSnapshot,
    *,
    writing: Collection[str],
    databases: Collection[str],
    logs: Collection[str],
    now: float,
    restless_s: float = 0.0,
    filled: Collection[str] = (),
) -> str:
    """Return why this snapshot must not be committed now; empty if it may be.

    `writing`: files that the program has open for writing and that are no logs. `databases`, `logs`: what is open now
    and may change at any time.
    """
    if snapshot.named_whole and not snapshot.databases:
        return ""
    if snapshot.waits:
        return why_left_out(snapshot)
    if writing:
        return f"`{min(writing)}` is open for writing"
    strangers = sorted(path for path in (*databases, *logs) if path in snapshot.files)
    if strangers:
        return f"`{strangers[0]}` was just opened"  # the next look takes it for a database or a log
    if closed := sorted(set(snapshot.databases).difference(databases)):
        return f"`{closed[0]}` was just closed"
    return why_unsettled(snapshot, now=now, restless_s=restless_s, filled=filled)


def why_left_out(snapshot: FolderSnapshot) -> str:
    """Return why files in the folder are left out although they may be a checkpoint; empty if none is."""
    if snapshot.incomplete:
        return f"the framework has not completed `{snapshot.incomplete}`"
    if snapshot.empty and snapshot.temporary:
        return f"there are only files with temporary names, such as `{snapshot.temporary}`"
    return ""


def why_incomplete(
    snapshot: FolderSnapshot, ending: Ending, *, died_at: float, open_at_signal: Collection[str], signalled_at: float
) -> str:
    """Why the folder that an ended command left may be incomplete; empty if it is complete.

    A command that left in order left complete files. One that was cut short may have been in the middle of writing:
    then only a state that had settled before is complete. A handler of SIGTERM may have raised within a write: a file
    that was open when the signal came is complete if the program renamed it, or wrote another file afterwards.
    """
    if ending == "orderly" or snapshot.named_whole:
        return ""
    interrupted = snapshot.files.keys() & set(open_at_signal)
    written_later = any(
        changed_ns / 1e9 > signalled_at and path not in interrupted
        for path, (_, changed_ns, _) in snapshot.files.items()
    )
    if ending == "handled" and (written_later or not interrupted):
        return ""
    if not open_at_signal and died_at - snapshot.changed_at >= SETTLED_S:
        return ""
    return "the command ended while it was writing to its checkpoint folder"
