"""Checkpoints of the trainer library on disk: one folder per step, renamed to its final name when it is complete.

step-000000012/rank-0/state.bin      the state without its large buffers, as plain data; or
step-000000012/rank-0/state.pickle   the same as a pickle, if the program uses `pickle=True`
step-000000012/rank-0/buffers-00000.bin, …   the large buffers, one after the other, each aligned, in pieces of equal
                                     size. A piece that did not change is a hard link to that of the checkpoint before
step-000000012/rank-0/files/…        files that the user's code wrote
step-000000012/checkpoint.json       sizes and hashes of all files; written last, before the rename
step-000000012/checkpoint-1.json     the same, of the ranks on node 1 of a distributed run
"""

from __future__ import annotations

import json
import mmap
import os
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from outlast.trainer import chunks
from outlast.trainer import state as states
from outlast.trainer.chunks import BadCheckpoint as BadCheckpoint

_NAME = re.compile(r"^step-(\d{9})$")
MARKER = "checkpoint.json"
_MARKERS = re.compile(r"checkpoint(-\d+)?\.json")
_BUFFERS = re.compile(r"buffers-\d{5}\.bin")
# Smaller pieces are written again: a damaged link would damage two checkpoints, for little time.
_LINKED_BYTES = 1 << 20
# More pieces would make a checkpoint of many files.
_PIECES_MAX = 1000
# The alignment that vector instructions and NumPy prefer.
_ALIGNED = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoint:
    """A complete checkpoint folder."""

    step: int
    path: str


def folder_name(step: int) -> str:
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Return the step of a checkpoint folder; None for any other name."""
    match = _NAME.match(name)
    return int(match.group(1)) if match else None


def found_in(folder: str) -> list[FoundCheckpoint]:
    """Return the complete checkpoints of a folder, newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = [step for name in names if (step := step_of(name)) is not None]
    return [
        FoundCheckpoint(step=step, path=os.path.join(folder, folder_name(step))) for step in sorted(steps, reverse=True)
    ]


def marker_name(node: int) -> str:
    """Return the name of the marker that a node of a distributed run writes."""
    return f"checkpoint-{node}.json" if node else MARKER


def read_marker(path: str) -> dict[str, Any]:
    """Return the marker, with the parts of all nodes whose files are here."""
    try:
        names = sorted(name for name in os.listdir(path) if _MARKERS.fullmatch(name))
        markers = [_read_json(os.path.join(path, name)) for name in names or [MARKER]]
    except (OSError, ValueError) as problem:
        raise BadCheckpoint(f"{path}: its marker cannot be read: {problem}") from problem
    for marker in markers:
        if not isinstance(marker, dict) or not isinstance(marker.get("ranks"), int):
            raise BadCheckpoint(f"{path}: its marker was not written by outlast")
    # Node 0 stores notes and metrics. Without its marker, this is the folder of another node.
    first: dict[str, Any] = next((one for name, one in zip(names, markers, strict=True) if name == MARKER), markers[0])
    parts = [marker.get("parts") for marker in markers]
    if len(parts) > 1 and all(isinstance(one, dict) for one in parts):
        return {**first, "parts": {rank: part for one in parts for rank, part in one.items()}}
    return first


def _read_json(path: str) -> Any:
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def ranks_of(found: FoundCheckpoint) -> int:
    """Return how many ranks saved a checkpoint. Raises BadCheckpoint."""
    ranks: int = read_marker(found.path)["ranks"]
    return ranks


def load(found: FoundCheckpoint, *, rank: int, pickle: bool = False, mapped: bool = False) -> Any:
    """Read and verify the state of a rank. Raises BadCheckpoint, and PickleRefused for a pickle without `pickle`.

    With `mapped`, arrays and tensors are backed by the file: copy them, and do not keep them.
    """
    marker = read_marker(found.path)
    known, sizes = _entries(found, marker, rank)
    stream = states.PICKLED if states.PICKLED in known else states.PLAIN
    if stream == states.PICKLED and not pickle:
        raise states.refuse_pickle(os.path.join(found.path, f"rank-{rank}", stream))
    names = sorted(filter(_BUFFERS.fullmatch, known))
    body = chunks.read({_path_of(found, rank, stream): known[stream]})
    pieces = {_path_of(found, rank, name): known[name] for name in names}
    arena = chunks.mapped(pieces) if mapped else chunks.read(pieces)
    for name in known.keys() - {stream, *names}:
        chunks.verify(_path_of(found, rank, name), known[name])
    begins, size = aligned(sizes)
    if size != len(arena):
        raise BadCheckpoint(f"{found.path}: its buffers differ from the saved ones")
    buffers = [arena[at : at + size] for at, size in zip(begins, sizes, strict=True)]
    return states.load(stream, body, buffers, path=found.path)


def check(found: FoundCheckpoint) -> None:
    """Verify the files of every rank without decoding them. Raises BadCheckpoint."""
    marker = read_marker(found.path)
    for rank in range(marker["ranks"]):
        known, _ = _entries(found, marker, rank)
        for name in known:
            chunks.verify(_path_of(found, rank, name), known[name])


def _entries(found: FoundCheckpoint, marker: dict[str, Any], rank: int) -> tuple[dict[str, Any], list[int]]:
    """Return the entries of a rank's files in the marker, and the sizes of its buffers."""
    try:
        part = marker["parts"].get(str(rank))
        if part is None:
            raise BadCheckpoint(f"{found.path}: it was saved by {marker['ranks']} ranks and has no rank {rank}")
        files, sizes = dict(part["files"]), [int(size) for size in part["buffers"]]
    except (AttributeError, LookupError, TypeError, ValueError) as problem:
        raise BadCheckpoint(f"{found.path}: its marker was not written by outlast") from problem
    streams = files.keys() & {states.PLAIN, states.PICKLED}
    if len(streams) != 1 or min(sizes, default=0) < 0:
        raise BadCheckpoint(f"{found.path}: its marker does not name one {states.PLAIN}, or has a negative size")
    return files, sizes


def _path_of(found: FoundCheckpoint, rank: int, name: str) -> str:
    top = os.path.join(found.path, f"rank-{rank}")
    path = os.path.normpath(os.path.join(top, name))
    if not path.startswith(os.path.join(top, "")):
        raise BadCheckpoint(f"{found.path}: its marker names `{name}`, which is outside the checkpoint")
    return path


def aligned(sizes: list[int]) -> tuple[list[int], int]:
    """Return the offset of each buffer in one file, and the size of that file."""
    begins, end = [], 0
    for size in sizes:
        begins.append(-(-end // _ALIGNED) * _ALIGNED)
        end = begins[-1] + size
    return begins, end


def piece_bytes(size: int) -> int:
    """Return the size of the pieces of large buffers of this total size."""
    return max(chunks.PIECE_BYTES, -(-size // _PIECES_MAX // chunks.PIECE_BYTES) * chunks.PIECE_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedPieces:
    """The pieces of the large buffers of a rank's last save, by name, in the folder that the checkpoint gets."""

    folder: str
    piece: int
    entries: dict[str, Any]


def write_rank(
    staged: str,
    rank: int,
    *,
    stream: str,
    body: bytes | bytearray | memoryview,
    arena: memoryview,
    sizes: list[int],
    last: SavedPieces | None = None,
    unchanged: Collection[int] = (),
) -> dict[str, Any]:
    """Write one rank's part to the staged folder, durably, and then the rank's own marker.

    Includes files of `write_user_files`. `stream` is the name of the file for `body`; `unchanged` are the numbers of
    pieces that equal those of `last`. Returns the entries of the pieces.
    """
    folder = os.path.join(staged, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    try:
        written = _user_files(folder)
        written[stream] = chunks.write(os.path.join(folder, stream), memoryview(body))
        pieces = _write_pieces(folder, arena, last, unchanged)
        written |= pieces
        # The files before the folders that list them.
        for where, _, _ in os.walk(folder, topdown=False):
            chunks.sync(where)
    except OSError:
        # An incomplete part is useless, and takes the room of the next one on a full disk.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    temporary = os.path.join(staged, f"rank-{rank}.part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"files": written, "buffers": sizes}, file)
    os.replace(temporary, os.path.join(staged, f"rank-{rank}.json"))
    return pieces


def _user_files(folder: str) -> dict[str, Any]:
    return {
        os.path.relpath(os.path.join(where, name), folder): chunks.describe(os.path.join(where, name))
        for where, _, names in os.walk(folder)
        for name in names
        if os.path.relpath(where, folder) != "."
    }


def _write_pieces(
    folder: str, arena: memoryview, last: SavedPieces | None, unchanged: Collection[int]
) -> dict[str, Any]:
    piece = piece_bytes(len(arena))
    same = frozenset(unchanged) if last is not None and last.piece == piece else frozenset()

    def one(number: int) -> tuple[str, Any]:
        name = f"buffers-{number:05d}.bin"
        content, path = arena[number * piece : (number + 1) * piece], os.path.join(folder, name)
        is_same = number in same and len(content) >= _LINKED_BYTES
        if last is not None and is_same and last.entries.get(name, {}).get("bytes") == len(content):
            try:
                os.link(os.path.join(last.folder, name), path)
                return name, last.entries[name]
            except OSError:
                pass  # the last checkpoint was deleted, or the file system has no hard links
        return name, chunks.write_piece(path, content)

    return dict(chunks.each(one, range(-(-len(arena) // piece))))


def parts_written(staged: str, ranks: range) -> dict[str, Any] | None:
    """Return the markers of these ranks; None until the last of them is written."""
    parts: dict[str, Any] = {}
    for rank in ranks:
        try:
            with open(os.path.join(staged, f"rank-{rank}.json"), encoding="utf-8") as file:
                parts[str(rank)] = json.load(file)
        except FileNotFoundError:
            return None
    return parts


def publish(staged: str, marker: dict[str, Any], *, node: int = 0, keep: int) -> None:
    """Write the marker, rename the folder to its final name, and delete all but the newest `keep` checkpoints."""
    with open(os.path.join(staged, marker_name(node)), "w", encoding="utf-8") as file:
        json.dump(marker, file)
        file.flush()
        os.fsync(file.fileno())
    for rank in marker["parts"]:
        os.unlink(os.path.join(staged, f"rank-{rank}.json"))
    chunks.sync(staged)
    folder = os.path.dirname(staged)
    final = os.path.join(folder, folder_name(marker["step"]))
    shutil.rmtree(final, ignore_errors=True)
    os.rename(staged, final)
    chunks.sync(folder)
    for old in found_in(folder)[max(1, keep) :]:
        # Rename first: a concurrent reader sees a complete checkpoint or none.
        removed = old.path + ".tmp"
        os.rename(old.path, removed)
        shutil.rmtree(removed, ignore_errors=True)


def write_user_files(staged: str, writer: Callable[[str], object]) -> None:
    """Let the user's code write the checkpoint's files."""
    folder = os.path.join(staged, "rank-0", "files")
    os.makedirs(folder, exist_ok=True)
    writer(folder)


def after(size: int) -> int:
    """Return the offset of the stream behind the buffers in an arena: the next page, for direct I/O."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
