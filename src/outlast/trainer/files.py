"""Checkpoints of the trainer library on disk: a folder a step, whole under its name or not there at all.

step-000000012/rank-0/state.bin      the state without its large buffers, as plain data; or
step-000000012/rank-0/state.pickle   the same as a pickle, if the program asked for pickle
step-000000012/rank-0/buffers.bin    the large buffers, one after the other, each aligned
step-000000012/rank-0/files/…        what the user's own code wrote
step-000000012/checkpoint.json       sizes and hashes of all; written last, before the folder gets its name
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from outlast.trainer import chunks
from outlast.trainer import state as states
from outlast.trainer.chunks import BadCheckpoint as BadCheckpoint

_NAME = re.compile(r"^step-(\d{9})$")
MARKER = "checkpoint.json"
_BUFFERS = "buffers.bin"
# Vector instructions and NumPy want numbers at such addresses.
_ALIGNED = 64
A = TypeVar("A")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoint:
    """A checkpoint folder that has its name."""

    step: int
    path: str


def folder_name(step: int) -> str:
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Of a checkpoint's folder; None for any other name."""
    match = _NAME.match(name)
    return int(match.group(1)) if match else None


def found_in(folder: str) -> list[FoundCheckpoint]:
    """The whole checkpoints of a folder, newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = [step for name in names if (step := step_of(name)) is not None]
    return [
        FoundCheckpoint(step=step, path=os.path.join(folder, folder_name(step))) for step in sorted(steps, reverse=True)
    ]


def read_marker(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, MARKER), encoding="utf-8") as file:
            marker = json.load(file)
    except (OSError, ValueError) as problem:
        raise BadCheckpoint(f"{path}: its marker cannot be read: {problem}") from problem
    if not isinstance(marker, dict) or not isinstance(marker.get("ranks"), int):
        raise BadCheckpoint(f"{path}: its marker is not one of outlast")
    return marker


def load(found: FoundCheckpoint, *, rank: int, pickle: bool = False) -> Any:
    """The state of a rank, verified against the marker while it is read. Raises BadCheckpoint, and PickleRefused for a
    pickle unless `pickle` is true."""
    marker = read_marker(found.path)
    known, sizes = _known(found, marker, rank)
    stream = states.PICKLED if states.PICKLED in known else states.PLAIN
    if stream == states.PICKLED and not pickle:
        raise states.refuse_pickle(os.path.join(found.path, f"rank-{rank}", stream))
    body, arena = (_own(found, known, rank, name, chunks.read) for name in (stream, _BUFFERS))
    for name in known.keys() - {stream, _BUFFERS}:
        _own(found, known, rank, name, chunks.verify)
    begins, size = aligned(sizes)
    if size != len(arena):
        raise BadCheckpoint(f"{found.path}: its buffers are not what was saved")
    buffers = [arena[at : at + size] for at, size in zip(begins, sizes, strict=True)]
    return states.load(stream, body, buffers, path=found.path)


def check(found: FoundCheckpoint) -> None:
    """That every rank's bytes are what was saved; nothing is decoded. Raises BadCheckpoint."""
    marker = read_marker(found.path)
    for rank in range(marker["ranks"]):
        known, _ = _known(found, marker, rank)
        for name in known:
            _own(found, known, rank, name, chunks.verify)


def _known(found: FoundCheckpoint, marker: dict[str, Any], rank: int) -> tuple[dict[str, Any], list[int]]:
    """What the marker says of a rank's files, and the sizes of its buffers."""
    try:
        part = marker["parts"].get(str(rank))
        if part is None:
            raise BadCheckpoint(f"{found.path}: it was saved by {marker['ranks']} ranks and has no rank {rank}")
        files, sizes = dict(part["files"]), [int(size) for size in part["buffers"]]
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise BadCheckpoint(f"{found.path}: its marker is not one of outlast") from problem
    streams = files.keys() & {states.PLAIN, states.PICKLED}
    if len(streams) != 1 or _BUFFERS not in files or min(sizes, default=0) < 0:
        raise BadCheckpoint(f"{found.path}: its marker does not name one {states.PLAIN} and one {_BUFFERS}")
    return files, sizes


def _own(found: FoundCheckpoint, known: dict[str, Any], rank: int, name: str, act: Callable[[str, Any], A]) -> A:
    top = os.path.join(found.path, f"rank-{rank}")
    path = os.path.normpath(os.path.join(top, name))
    if not path.startswith(os.path.join(top, "")):
        raise BadCheckpoint(f"{found.path}: its marker names `{name}`, which is not its own")
    return act(path, known[name])


def aligned(sizes: list[int]) -> tuple[list[int], int]:
    """Return where each buffer begins when they follow each other in one file, and the size of that file."""
    begins, end = [], 0
    for size in sizes:
        begins.append(-(-end // _ALIGNED) * _ALIGNED)
        end = begins[-1] + size
    return begins, end


def write_rank(
    staged: str, rank: int, *, stream: str, body: bytes | bytearray | memoryview, arena: memoryview, sizes: list[int]
) -> None:
    """One rank's part into the folder that has no name yet, durable, with what is there of `write_into`; its own marker
    says that it is all there. `stream` is the name of the file for `body`."""
    folder = os.path.join(staged, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    try:
        written = _written(folder, {stream: memoryview(body), _BUFFERS: arena})
    except OSError:
        # Half of it is of no use, and on a full disk it would stand in the way of the next.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    temporary = os.path.join(staged, f"rank-{rank}.part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"files": written, "buffers": sizes}, file)
    os.replace(temporary, os.path.join(staged, f"rank-{rank}.json"))


def _written(folder: str, contents: dict[str, memoryview]) -> dict[str, Any]:
    written = {
        os.path.relpath(os.path.join(where, name), folder): chunks.taken(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
        if os.path.relpath(where, folder) != "."
    }
    for name, content in contents.items():
        written[name] = chunks.write(os.path.join(folder, name), content)
    # The bodies before the names that lead to them.
    for where, _, _ in os.walk(folder, topdown=False):
        chunks.sync(where)
    return written


def parts_written(staged: str, ranks: int) -> dict[str, Any] | None:
    """What every rank has written; None until the last of them has."""
    parts: dict[str, Any] = {}
    for rank in range(ranks):
        try:
            with open(os.path.join(staged, f"rank-{rank}.json"), encoding="utf-8") as file:
                parts[str(rank)] = json.load(file)
        except FileNotFoundError:
            return None
    return parts


def give_name(staged: str, step: int, *, parts: dict[str, Any], keep: int, told: dict[str, Any]) -> None:
    """The commit: the marker, then the name. Older checkpoints than the newest `keep` go. `told` is what the marker
    says besides: notes and metrics."""
    marker = {"step": step, "ranks": len(parts), "parts": parts, **told}
    with open(os.path.join(staged, MARKER), "w", encoding="utf-8") as file:
        json.dump(marker, file)
        file.flush()
        os.fsync(file.fileno())
    for rank in range(len(parts)):
        os.unlink(os.path.join(staged, f"rank-{rank}.json"))
    chunks.sync(staged)
    folder = os.path.dirname(staged)
    final = os.path.join(folder, folder_name(step))
    shutil.rmtree(final, ignore_errors=True)
    os.rename(staged, final)
    chunks.sync(folder)
    for old in found_in(folder)[max(1, keep) :]:
        # Renamed first: whoever lists the folder meanwhile sees a whole checkpoint or none.
        doomed = old.path + ".tmp"
        os.rename(old.path, doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def write_into(staged: str, writer: Callable[[str], object]) -> None:
    """Let the user's own code write the checkpoint's files."""
    folder = os.path.join(staged, "rank-0", "files")
    os.makedirs(folder, exist_ok=True)
    writer(folder)


class Arena:
    """Memory that trainer and saver share: the copy of the state. Kept between saves, so that its pages are warm."""

    def __init__(self, path: str, size: int, *, create: bool) -> None:
        self.path = path
        self.size = size
        self._file = open(path, "w+b" if create else "r+b")  # noqa: SIM115  lives as long as the arena
        if create:
            self._file.truncate(size)
        self.map = mmap.mmap(self._file.fileno(), size)

    def close(self, *, remove: bool) -> None:
        try:
            self.map.close()
        except BufferError:
            pass  # somebody still looks at it; it goes with the process
        self._file.close()
        if remove and os.path.exists(self.path):
            os.unlink(self.path)


def after(size: int) -> int:
    """Where the stream begins behind the buffers in an arena: at a page, like them, as disks want it."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def shared_folder(size: int) -> str:
    """Where memory is shared: in RAM if there is room, else in a folder for temporary files."""
    import tempfile

    try:
        room = os.statvfs("/dev/shm")
        if room.f_bavail * room.f_frsize > size * 1.1:
            return "/dev/shm"
    except OSError:
        pass
    return tempfile.gettempdir()
