"""A trainer's state as bytes: a small stream and large buffers beside it, which are copied once and never parsed.

A state is stored as plain data (`encode.py`), which runs nothing when it is loaded. A program may choose pickle
instead (`pickled.py`); only then are pickles loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outlast.errors import OutlastError, UsageError
from outlast.trainer.arrays import Blob
from outlast.trainer.chunks import BadCheckpoint
from outlast.trainer.decode import Malformed, decode
from outlast.trainer.encode import UnsavableState as UnsavableState
from outlast.trainer.encode import encode

# Names of the stream's file, by format.
_LIST_MAX = 10_000
PLAIN, PICKLED = "state.bin", "state.pickle"


class PickleRefused(OutlastError):
    """A checkpoint is a pickle, but the program does not use `pickle=True`."""


def dump(state: Any, *, pickle: bool) -> tuple[str, bytes | bytearray, list[Blob]]:
    """Return the name of the stream, the stream and its buffers. Raises UnsavableState.

    Buffers are views of the state's own memory: copy them before the state changes.
    """
    if not pickle:
        return PLAIN, *encode(state)
    from outlast.trainer import pickled

    return PICKLED, *pickled.encode(state)


def size_of(state: Any) -> int:
    """Return about how many bytes the arrays and tensors of a state have, without copying any."""
    total, pending, seen = 0, [state], set()
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value.values()
        elif isinstance(value, list | tuple):
            # A long list holds numbers, not arrays.
            pending += value[:_LIST_MAX]
        elif id(value) not in seen and isinstance(size := getattr(value, "nbytes", None), int):
            seen.add(id(value))
            total += size
    return total


def load(name: str, body: memoryview, buffers: Sequence[memoryview], *, path: str) -> Any:
    """Return the state of the stream of this name. Raises BadCheckpoint."""
    if name == PICKLED:
        from outlast.trainer import pickled

        return pickled.decode(body, buffers)
    try:
        return decode(body, buffers)
    except Malformed as problem:
        raise BadCheckpoint(f"{path}: its state cannot be decoded: {problem}") from problem


def require_pickle(allowed: bool, why: str) -> None:
    """Raise UsageError if a state needs pickle and the program does not allow it."""
    if not allowed:
        raise UsageError(
            f"{why}, which only pickle can save",
            hint="if you trust everyone who can write to the checkpoint folder or bucket, pass pickle=True to "
            "outlast.training() or @outlast.trainer: a restore then runs code from the checkpoint",
        )


def refuse_pickle(path: str) -> PickleRefused:
    return PickleRefused(
        f"{path} is a pickle: loading it would run code that the checkpoint contains",
        hint="if you trust everyone who can write to this folder or bucket, pass pickle=True to outlast.training() or "
        "@outlast.trainer; else delete the checkpoint, or train in another folder",
    )
