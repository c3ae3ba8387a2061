"""Encode a trainer's state as plain data: numbers, text, containers, arrays and tensors, without pickle.

The encoding is a stream of tagged values. Bytes of large arrays stay outside, as views of the state's own memory.
A value that occurs twice is stored once and restored as one object. A value that contains itself is refused.

    b"outlast-state 1\\n"   then one value:
    N T F                   None, True, False
    i I f c                 int of 64 bits, int of any size, float, complex
    s S                     text; text that occurred before, by its number
    b B                     bytes, bytearray; a blob follows
    l t d e E               list, tuple, dict, set, frozenset: a count, then the elements
    p P q Q                 list and tuple of floats, list and tuple of 64-bit ints: a count, then 8 bytes each
    r                       a container or library value that occurred before, by its number
    x                       a library value: its name, a count, its fields (values or blobs); see `library.py`
A blob is: < size bytes (here), > size (the next buffer), = number (a blob that occurred before; tensors only).
Counts, sizes and numbers are unsigned LEB128. Values inside a key, a set element or a library value that is
not a container are not numbered, and are never `r`.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable
from typing import Any

from outlast.errors import OutlastError
from outlast.trainer import library
from outlast.trainer.arrays import Blob, Unsupported

MAGIC = b"outlast-state 1\n"
# Deeper than any state that a program builds on purpose, and shallow enough for Python's stack.
MAX_DEPTH = 150
# Smaller blobs go into the stream: a separate buffer costs more than a second copy.
_OUTSIDE_BYTES = 4096
_PACK_FROM = 8
_INT = struct.Struct("<cq")
_FLOAT = struct.Struct("<cd")
_COMPLEX = struct.Struct("<cdd")
_OPT_IN = "pass pickle=True to outlast.training() or @outlast.trainer; a restore then runs code from the checkpoint"


class UnsavableState(OutlastError):
    """The state contains a value that cannot be saved; the message names the value and its path."""


class _NotPlain(Exception):
    """A value that cannot be encoded. The containers around it add their step to the path, the innermost first."""

    def __init__(self, value: Any, why: str, *, hint: str = "") -> None:
        super().__init__(why)
        self.value, self.why, self.hint = value, why, hint
        self.path: list[str] = []

    def error(self) -> UnsavableState:
        path = "state" + "".join(reversed(self.path))
        path = path if len(path) <= 200 else path[:200] + "…"
        kind = type(self.value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return UnsavableState(
            f"{path} cannot be saved without pickle: {name}" + (f": {self.why}" if self.why else ""),
            hint=(f"{self.hint.replace('VALUE', path)}, or " if self.hint else "") + _OPT_IN,
        )


def encode(state: Any) -> tuple[bytearray, list[Blob]]:
    """Return the stream and its buffers, which are views of the state's memory. Raises UnsavableState."""
    encoder = _Encoder()
    try:
        encoder.value(state)
    except _NotPlain as problem:
        raise problem.error() from problem
    except RecursionError as problem:
        raise _NotPlain(state, "it is nested too deep for Python's stack").error() from problem
    return encoder.out, encoder.buffers


class _Encoder:
    """One encoding. Optimised for speed: the training loop waits for it."""

    def __init__(self) -> None:
        self.out = bytearray(MAGIC)
        self.buffers: list[Blob] = []
        # By id, with the value itself: the id of a freed temporary value could be reused.
        self._seen: dict[int, tuple[int, Any]] = {}
        self._texts: dict[str, int] = {}
        self._blobs: dict[object, tuple[int, Blob]] = {}
        self._blob_count = 0
        self._open: set[int] = set()
        self._spelled_out = 0
        self._writers: dict[type, Callable[[Any], object]] = {
            type(None): lambda _: self.out.append(0x4E),
            bool: lambda value: self.out.append(0x54 if value else 0x46),
            int: self._int,
            float: self._float,
            complex: self._complex,
            str: self._text,
        }
        self._containers: dict[type, Callable[[Any], object]] = {
            bytes: lambda value: self._bytes(b"b", value),
            bytearray: lambda value: self._bytes(b"B", value),
            list: lambda value: self._sequence(value, b"lpP"),
            tuple: lambda value: self._sequence(value, b"tqQ"),
            dict: self._dict,
            set: lambda value: self._elements(b"e", value),
            frozenset: lambda value: self._elements(b"E", value),
        }

    def value(self, value: Any) -> None:
        self._writers.get(type(value), self._numbered)(value)

    def _numbered(self, value: Any) -> None:
        """Write a value that may occur again, or its number if it has occurred."""
        mark = id(value)
        seen = self._seen.get(mark)
        if seen is not None and not self._spelled_out:
            self.out += b"r"
            self._count(seen[0])
            return
        if mark in self._open:
            raise _NotPlain(value, "it contains itself")
        if len(self._open) >= MAX_DEPTH:
            raise _NotPlain(value, f"it is nested more than {MAX_DEPTH} levels deep")
        self._open.add(mark)
        self._containers.get(type(value), self._library)(value)
        self._open.discard(mark)
        if not self._spelled_out:
            self._seen[mark] = (len(self._seen), value)

    def _count(self, number: int) -> None:
        while number > 0x7F:
            self.out.append(number & 0x7F | 0x80)
            number >>= 7
        self.out.append(number)

    def _int(self, value: int) -> None:
        try:
            self.out += _INT.pack(b"i", value)
        except struct.error:
            body = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
            self.out += b"I"
            self._count(len(body))
            self.out += body

    def _float(self, value: float) -> None:
        self.out += _FLOAT.pack(b"f", value)

    def _complex(self, value: complex) -> None:
        self.out += _COMPLEX.pack(b"c", value.real, value.imag)

    def _text(self, value: str) -> None:
        known = self._texts.get(value)
        if known is not None:
            self.out += b"S"
            self._count(known)
            return
        self._texts[value] = len(self._texts)
        body = value.encode("utf-8", "surrogatepass")
        self.out += b"s"
        self._count(len(body))
        self.out += body

    def _bytes(self, tag: bytes, value: bytes | bytearray) -> None:
        self.out += tag
        self._blob(Blob.of(value))

    def _blob(self, blob: Blob) -> None:
        size = blob.nbytes
        known = self._blobs.get(blob.key) if blob.key is not None else None
        if known is not None:
            self.out += b"="
            self._count(known[0])
            return
        if blob.key is not None:
            # With the blob, which keeps the memory from being reused by another tensor.
            self._blobs[blob.key] = (self._blob_count, blob)
        self._blob_count += 1
        self.out += b">" if size >= _OUTSIDE_BYTES else b"<"
        self._count(size)
        if size >= _OUTSIDE_BYTES:
            self.buffers.append(blob)
        else:
            self.out += blob.view()

    def _sequence(self, value: list[Any] | tuple[Any, ...], tags: bytes) -> None:
        if len(value) >= _PACK_FROM and self._pack(value, tags):
            return
        self.out.append(tags[0])
        self._count(len(value))
        at, writers, numbered = 0, self._writers, self._numbered
        try:
            for at, one in enumerate(value):  # noqa: B007  the index of the value that fails
                writers.get(type(one), numbered)(one)
        except _NotPlain as problem:
            problem.path.append(f"[{at}]")
            raise

    def _pack(self, value: list[Any] | tuple[Any, ...], tags: bytes) -> bool:
        """Write many floats or ints at once, which is much faster than one by one."""
        kind = type(value[0])
        if kind not in (float, int) or set(map(type, value)) != {kind}:
            return False
        try:
            numbers = array.array("d" if kind is float else "q", value)
        except OverflowError:
            return False  # an int of more than 64 bits
        if sys.byteorder == "big":
            numbers.byteswap()
        self.out.append(tags[1 if kind is float else 2])
        self._count(len(numbers))
        self.out += numbers.tobytes()
        return True

    def _dict(self, value: dict[Any, Any]) -> None:
        self.out += b"d"
        self._count(len(value))
        key, writers, numbered = None, self._writers, self._numbered
        try:
            for key, one in value.items():
                if type(key) is str:
                    self._text(key)
                else:
                    self._key(key)
                writers.get(type(one), numbered)(one)
        except _NotPlain as problem:
            problem.path.append(f"[{_short(key)}]")
            raise

    def _elements(self, tag: bytes, value: set[Any] | frozenset[Any]) -> None:
        self.out += tag
        self._count(len(value))
        for one in value:
            try:
                self._key(one)
            except _NotPlain as problem:
                problem.path.append(f"{{{_short(one)}}}")
                raise

    def _key(self, key: Any) -> None:
        self._spelled_out += 1
        self.value(key)
        self._spelled_out -= 1

    def _library(self, value: Any) -> None:
        try:
            name, fields = library.fields_of(value)
        except Unsupported as problem:
            raise _NotPlain(value, problem.why, hint=problem.hint) from problem
        except (RuntimeError, TypeError, ValueError) as problem:
            raise _NotPlain(value, str(problem)) from problem
        self.out += b"x"
        self._text(name)
        self._count(len(fields))
        leaf = name not in library.CONTAINERS
        self._spelled_out += leaf
        for field in fields:
            if type(field) is Blob:
                self._blob(field)
            else:
                self.value(field)
        self._spelled_out -= leaf


def _short(key: Any) -> str:
    """Show a key in a path, unless its text is long or its type is not plain."""
    if isinstance(key, str | int | float | bytes | None) and len(text := repr(key)) <= 60:
        return text.replace("'", '"') if isinstance(key, str) else text
    return "…"
