"""Checkpoints of the trainer library on disk: a folder a step, whole under its name or not there at all.

step-000000012/rank-0/state.pickle   the small pickle
step-000000012/rank-0/buffers.bin    the large buffers, one after the other
step-000000012/checkpoint.json       sizes and hashes; written last, before the folder gets its name
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer import state as pickles

_NAME = re.compile(r"^step-(\d{9})$")
MARKER = "checkpoint.json"


class BadCheckpoint(OutlastError):
    """A checkpoint that does not hold; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A checkpoint folder that has its name."""

    step: int
    path: str


def folder_name(step: int) -> str:
    return f"step-{step:09d}"


def step_of(name: str) -> int | None:
    """Of a checkpoint's folder; None for any other name."""
    match = _NAME.match(name)
    return int(match.group(1)) if match else None


def found_in(folder: str) -> list[Found]:
    """The whole checkpoints of a folder, newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    steps = [step for name in names if (step := step_of(name)) is not None]
    return [Found(step=step, path=os.path.join(folder, folder_name(step))) for step in sorted(steps, reverse=True)]


def read_marker(path: str) -> dict[str, Any]:
    try:
        with open(os.path.join(path, MARKER), encoding="utf-8") as file:
            marker = json.load(file)
    except (OSError, ValueError) as problem:
        raise BadCheckpoint(f"{path}: its marker cannot be read: {problem}") from problem
    if not isinstance(marker, dict) or not isinstance(marker.get("ranks"), int):
        raise BadCheckpoint(f"{path}: its marker is not one of outlast")
    return marker


def load(found: Found, *, rank: int) -> Any:
    """The state of a rank, verified against the marker. Raises BadCheckpoint."""
    body, arena, sizes = _read(found, read_marker(found.path), rank=rank)
    return pickles.load(body, list(_cut(arena, sizes)))


def check(found: Found) -> None:
    """That every rank's bytes are what was saved; nothing is unpickled. Raises BadCheckpoint."""
    marker = read_marker(found.path)
    for rank in range(marker["ranks"]):
        _read(found, marker, rank=rank)


def _read(found: Found, marker: dict[str, Any], *, rank: int) -> tuple[bytes, memoryview, list[int]]:
    folder = os.path.join(found.path, f"rank-{rank}")
    known = marker["parts"].get(str(rank))
    if known is None:
        raise BadCheckpoint(f"{found.path}: it was saved by {marker['ranks']} ranks and has no rank {rank}")
    try:
        with open(os.path.join(folder, "state.pickle"), "rb") as file:
            body = file.read()
        arena = _read_arena(os.path.join(folder, "buffers.bin"))
    except OSError as problem:
        raise BadCheckpoint(f"{found.path}: {problem}") from problem
    if digest(body, arena) != known["sha256"]:
        raise BadCheckpoint(f"{found.path}: its bytes are not what was saved")
    return body, arena, known["buffers"]


def _read_arena(path: str) -> memoryview:
    size = os.path.getsize(path)
    body = bytearray(size)
    with open(path, "rb", buffering=0) as file:
        view, at = memoryview(body), 0
        while at < size and (count := file.readinto(view[at : at + (1 << 26)])):
            at += count
    return memoryview(body)


def _cut(arena: memoryview, sizes: list[int]) -> Iterator[memoryview]:
    at = 0
    for size in sizes:
        yield arena[at : at + size]
        at += size


def digest(body: bytes | memoryview, arena: memoryview) -> str:
    hasher = hashlib.sha256(body)
    hasher.update(arena)
    return hasher.hexdigest()


def write_rank(staged: str, rank: int, *, body: bytes | memoryview, arena: memoryview, sizes: list[int]) -> None:
    """One rank's part into the folder that has no name yet, durable; its own marker says that it is all there."""
    folder = os.path.join(staged, f"rank-{rank}")
    os.makedirs(folder, exist_ok=True)
    # Hashing and writing both leave the interpreter's lock: side by side they take as long as the slower of the two.
    hashes: list[str] = []
    hashing = threading.Thread(target=lambda: hashes.append(digest(body, arena)))
    hashing.start()
    for name, content in (("state.pickle", body), ("buffers.bin", arena)):
        with open(os.path.join(folder, name), "wb", buffering=0) as file:
            view, at = memoryview(content), 0
            while at < view.nbytes:
                at += file.write(view[at : at + (1 << 26)])
            os.fsync(file.fileno())
    hashing.join()
    part = {"sha256": hashes[0], "buffers": sizes}
    temporary = os.path.join(staged, f"rank-{rank}.part")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(part, file)
    os.replace(temporary, os.path.join(staged, f"rank-{rank}.json"))


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


def give_name(staged: str, step: int, *, parts: dict[str, Any], keep: int, notes: dict[str, Any] | None = None) -> None:
    """The commit: the marker, then the name. Older checkpoints than the newest `keep` go."""
    marker = {"step": step, "ranks": len(parts), "parts": parts, "notes": notes or {}}
    with open(os.path.join(staged, MARKER), "w", encoding="utf-8") as file:
        json.dump(marker, file)
        file.flush()
        os.fsync(file.fileno())
    for rank in range(len(parts)):
        os.unlink(os.path.join(staged, f"rank-{rank}.json"))
    folder = os.path.dirname(staged)
    final = os.path.join(folder, folder_name(step))
    shutil.rmtree(final, ignore_errors=True)
    os.rename(staged, final)
    _sync(folder)
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


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
