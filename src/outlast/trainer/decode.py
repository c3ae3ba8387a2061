"""Decode a trainer's state from plain data; `encode.py` has the format. Input may be hostile.

No part of the input names code: each tag and each library name is looked up in a fixed table. Memory is bounded by the
size of the input: every count is checked against the remaining bytes, every buffer is used once, and a value that a
maker copies cannot be referred to again.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, Literal

from outlast.trainer import library
from outlast.trainer.encode import MAGIC, MAX_DEPTH

_INT = struct.Struct("<q")
_FLOAT = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")


class Malformed(ValueError):
    """The input was not written by `encode`."""


# Errors that Python, NumPy and PyTorch raise for values that no encoder writes.
_ERRORS = (
    *(ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RuntimeError, MemoryError, struct.error),
)


def decode(body: bytes | bytearray | memoryview, buffers: Sequence[memoryview]) -> Any:
    """Return the state. Arrays and tensors share the memory of the buffers. Raises Malformed."""
    decoder = _Decoder(bytes(body), buffers)
    try:
        return decoder.state()
    except Malformed:
        raise
    except _ERRORS as problem:
        raise Malformed(f"invalid value before byte {decoder.at}: {str(problem)[:200]}") from problem


class _Decoder:
    """One decoding; `at` is the next byte."""

    def __init__(self, body: bytes, buffers: Sequence[memoryview]) -> None:
        self.at = len(MAGIC)
        self._body = body
        self._buffers = iter(buffers)
        self._seen: list[Any] = []
        self._texts: list[str] = []
        self._blobs: list[memoryview] = []
        self._depth = 0
        self._spelled_out = 0
        self._atoms: dict[int, Callable[[], Any]] = {
            ord("N"): lambda: None,
            ord("T"): lambda: True,
            ord("F"): lambda: False,
            ord("i"): lambda: self._unpack(_INT)[0],
            ord("I"): lambda: int.from_bytes(self._take(self._size()), "little", signed=True),
            ord("f"): lambda: self._unpack(_FLOAT)[0],
            ord("c"): lambda: complex(*self._unpack(_COMPLEX)),
            ord("s"): self._text,
            ord("S"): lambda: self._texts[self._number()],
            ord("r"): self._again,
        }
        self._containers: dict[int, Callable[[], Any]] = {
            ord("b"): lambda: bytes(self._blob(shared=False)),
            ord("B"): lambda: bytearray(self._blob(shared=False)),
            ord("l"): self._list,
            ord("t"): lambda: tuple(self._list()),
            ord("p"): lambda: self._numbers("d").tolist(),
            ord("P"): lambda: self._numbers("q").tolist(),
            ord("q"): lambda: tuple(self._numbers("d")),
            ord("Q"): lambda: tuple(self._numbers("q")),
            ord("d"): self._dict,
            ord("e"): lambda: set(self._elements()),
            ord("E"): lambda: frozenset(self._elements()),
            ord("x"): self._library,
        }

    def state(self) -> Any:
        if not self._body.startswith(MAGIC):
            raise Malformed("it does not start like a state of this version of outlast")
        value = self._value()
        if self.at != len(self._body):
            raise Malformed(f"{len(self._body) - self.at} bytes follow its end")
        if next(self._buffers, None) is not None:
            raise Malformed("it does not use all of its buffers")
        return value

    def _value(self) -> Any:
        tag = self._body[self.at]
        self.at += 1
        atom = self._atoms.get(tag)
        if atom is not None:
            return atom()
        container = self._containers.get(tag)
        if container is None:
            raise Malformed(f"unknown tag {tag} at byte {self.at - 1}")
        if self._depth >= MAX_DEPTH:
            raise Malformed(f"it is nested more than {MAX_DEPTH} levels deep")
        self._depth += 1
        value = container()
        self._depth -= 1
        if not self._spelled_out:
            self._seen.append(value)
        return value

    def _take(self, size: int) -> bytes:
        """Return the next bytes; the caller has checked with `_size` that they exist."""
        taken = self._body[self.at : self.at + size]
        self.at += size
        return taken

    def _number(self) -> int:
        byte = self._body[self.at]
        self.at += 1
        number, shift = byte & 0x7F, 7
        while byte > 0x7F:
            if shift > 56:
                raise Malformed(f"a number is too large at byte {self.at}")
            byte = self._body[self.at]
            self.at += 1
            number |= (byte & 0x7F) << shift
            shift += 7
        return number

    def _size(self, each: int = 1) -> int:
        """Read a count of elements that take at least `each` bytes: no more than there are."""
        count = self._number()
        if count * each > len(self._body) - self.at:
            raise Malformed(f"{count} elements are announced at byte {self.at}, but fewer follow")
        return count

    def _unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        unpacked = layout.unpack_from(self._body, self.at)
        self.at += layout.size
        return unpacked

    def _numbers(self, kind: Literal["d", "q"]) -> array.array[Any]:
        numbers: array.array[Any] = array.array(kind, self._take(8 * self._size(8)))
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers

    def _text(self) -> str:
        text = self._take(self._size()).decode("utf-8", "surrogatepass")
        self._texts.append(text)
        return text

    def _again(self) -> Any:
        # A key that repeats its parts takes exponential time to hash; fields are copied.
        if self._spelled_out:
            raise Malformed("a key or a field refers to another value")
        return self._seen[self._number()]

    def _blob(self, *, shared: bool) -> memoryview:
        """Return a blob in memory that belongs to the state and may be written to."""
        tag = self._body[self.at]
        self.at += 1
        # A caller that copies blobs must not copy one a thousand times.
        if tag == ord("=") and shared:
            return self._blobs[self._number()]
        if tag == ord("<"):
            blob = memoryview(bytearray(self._take(self._size())))
        elif tag == ord(">"):
            size, buffer = self._number(), next(self._buffers, None)
            if buffer is None or buffer.nbytes != size:
                raise Malformed(f"a buffer of {size} bytes is announced but missing")
            blob = buffer
        else:
            raise Malformed(f"no blob at byte {self.at - 1}")
        self._blobs.append(blob)
        return blob

    def _list(self) -> list[Any]:
        return [self._value() for _ in range(self._size())]

    def _dict(self) -> dict[Any, Any]:
        count = self._size(2)
        made = {}
        for _ in range(count):
            key = self._key()
            made[key] = self._value()
        if len(made) != count:
            raise Malformed("a dict has two keys that are equal")
        return made

    def _elements(self) -> list[Any]:
        return [self._key() for _ in range(self._size())]

    def _key(self) -> Any:
        self._spelled_out += 1
        key = self._value()
        self._spelled_out -= 1
        return key

    def _library(self) -> Any:
        name = self._value()
        make = library.MAKERS.get(name) if type(name) is str else None
        if make is None:
            raise Malformed(f"unknown kind of value before byte {self.at}")
        count, leaf = self._size(), name not in library.CONTAINERS
        if not leaf and self._body[self.at] == ord("r"):
            raise Malformed("a container is made of another one")  # a thousand copies of one large list
        self._spelled_out += leaf
        fields = [self._field(shared=name in library.SHARING) for _ in range(count)]
        self._spelled_out -= leaf
        return make(*fields)

    def _field(self, *, shared: bool) -> Any:
        return self._blob(shared=shared) if self._body[self.at] in b"<>=" else self._value()
