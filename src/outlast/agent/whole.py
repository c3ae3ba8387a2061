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

import msgspec

from outlast.agent.database import with_sides
from outlast.spec.names import insides
from outlast.workspace.checkpoints import survey

# Unchanged for this long: settled.
SETTLED_S = 0.5
RESTLESS_S = 10.0
_STILL_S = 0.02

_UNFINISHED = re.compile(
    r"(^|/)[^/]*(\.tmp|\.temp|\.part|\.partial|\.incomplete|\.swp|~|\.orbax-checkpoint-tmp[^/]*|\.lock)(/|$)"
    # With a number behind it it is a temperature.
    r"|(^|/)(\.?tmp[-_.]|temp[-_.](?!\d))[^/]*(/|$)|(^|/)\.~"
)
# What Hugging Face writes before the weights.
_DESCRIBES = re.compile(r"(generation_|adapter_|tokenizer_|preprocessor_|processor_)?config\.json|README\.md|.*\.jinja")
# What it writes next. `model.pt` and `optimizer.pt` alone are a loop of somebody's own.
_WEIGHTS = re.compile(r"(pytorch_|adapter_)?model.*\.(safetensors|bin)|.*\.index\.json|training_args\.bin")
_NUMBERED = re.compile(r"checkpoint-(\d{1,18})")
_NAMED = re.compile(r"step-\d{9}")
_STEP = re.compile(
    r"(?:checkpoint|ckpt|step|model|iter|iteration|epoch|round|snapshot)[-_=]?(\d{1,18})(?!\d)", re.IGNORECASE
)


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a folder at one moment: path → size, time of change and inode."""

    files: dict[str, tuple[int, int, int]]
    # Those among the files that are no part of what must be whole.
    logs: dict[str, tuple[int, int, int]] = {}
    # Databases that are open, which change and are never half: path → the marks of them and of their write-ahead logs.
    databases: dict[str, tuple[int, ...]] = {}
    # Links inside of the folder, such as `latest`: path → relative target.
    links: dict[str, str] = {}
    changed_at: float = 0.0
    # What was looked for; empty: everything.
    names: tuple[str, ...] = ()
    # The only checkpoint is one that is in the making: without it the rest is none.
    waits: bool = False
    over: bool = False

    @property
    def paths(self) -> list[str]:
        return sorted({*self.files, *self.logs})

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

    def same(self, other: Snapshot) -> bool:
        """Has nothing changed? To open a database alone changes nothing."""
        return (self.files | self.databases, self.links) == (other.files | other.databases, other.links)

    def holds(self, other: Snapshot) -> bool:
        """Is all that must be whole as it was?"""
        return (self.files, self.links) == (other.files, other.links)


def is_plainly_unfinished(path: str, names: Collection[str] = ()) -> bool:
    """Is it left out because of its name? What somebody names is meant, but not all that is in it."""
    return all(_UNFINISHED.search(inner) for inner in insides(path, names))


def look(
    folder: str,
    *,
    names: tuple[str, ...] = (),
    logs: Collection[str] = (),
    databases: Collection[str] = (),
    over: bool = False,
) -> Snapshot:
    """What is there now, of these names, without what is plainly unfinished. `over`: nobody writes any more."""
    found, links = survey(folder, names=names)
    unfinished, waits = _unfinished_folders(found, over=over)

    def finished(path: str) -> bool:
        return not is_plainly_unfinished(path, names) and not any(path.startswith(folder) for folder in unfinished)

    kept = {path: info for path, info in found.items() if finished(path)}
    marks = {path: (info.st_size, info.st_mtime_ns, info.st_ino) for path, info in kept.items()}
    at_any_time = {*logs, *with_sides(databases)}
    return Snapshot(
        files={path: mark for path, mark in marks.items() if path not in at_any_time},
        logs={path: mark for path, mark in marks.items() if path in logs},
        databases={path: marks[path] + _written_ahead(marks, path) for path in databases if path in marks},
        links={path: target for path, target in links.items() if finished(path) and _leads(path, target, kept)},
        changed_at=max((info.st_mtime for path, info in kept.items() if path not in at_any_time), default=0.0),
        names=names,
        waits=waits,
        over=over,
    )


def is_there(folder: str, snapshot: Snapshot) -> bool:
    """Is all that must be whole still as it was seen?"""
    now = look(folder, names=snapshot.names, logs=snapshot.logs, databases=snapshot.databases, over=snapshot.over)
    return now.holds(snapshot)


def _written_ahead(marks: Mapping[str, tuple[int, int, int]], database: str) -> tuple[int, ...]:
    """The mark of what is not in the database itself yet; none if nothing is."""
    mark = marks.get(f"{database}-wal", (0, 0, 0))
    return mark if mark[0] else ()


def _leads(path: str, target: str, kept: Mapping[str, os.stat_result]) -> bool:
    """Does the link lead to something that is kept?"""
    place = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return place in kept or any(other.startswith(place + "/") for other in kept)


def _unfinished_folders(found: Iterable[str], *, over: bool) -> tuple[list[str], bool]:
    """Folders of frameworks whose marker says that they are not whole, the top one being "", as its paths begin. And
    whether one of them is the only checkpoint beside its kind."""
    inside: dict[str, set[str]] = {}
    for path in found:
        inside.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
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
    return [f"{folder}/" if folder else "" for folder in hidden], waits


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


def step_of(snapshot: Snapshot) -> int | None:
    """The highest step that a file or folder name tells, for people."""
    numbers = [int(n) for path in snapshot.files for n in _STEP.findall(path)]
    return max(numbers, default=None)


def rests(snapshot: Snapshot, *, now: float, restless_s: float, filled: Collection[str] = ()) -> bool:
    """May this snapshot be read as whole, if nobody is writing to it? `filled`: files that were seen with something in
    them."""
    if not snapshot.files:
        return bool(snapshot.databases)
    # Absolute: times in the future, of a clock that was set back or of a program that sets them, are no recent change.
    recent = sum(abs(now - changed_ns / 1e9) < SETTLED_S for _, changed_ns, _ in snapshot.files.values())
    if recent and abs(now - snapshot.changed_at) < _STILL_S:
        return False
    # A file that was just emptied is about to be written: on a busy disk the call that empties it can take long, and
    # until it returns nobody has the file open.
    emptied = {
        path for path, (size, at_ns, _) in snapshot.files.items() if not size and abs(now - at_ns / 1e9) < SETTLED_S
    }
    if emptied.intersection(filled):
        return False
    return restless_s >= RESTLESS_S or not (recent > 1 or emptied)
