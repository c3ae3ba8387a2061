"""The copy of a state into shared memory, in threads.

The memory holds the state before: equal parts are only compared, so that the saver process knows which pieces changed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_BLOCK_BYTES = 1 << 20
# Smaller buffers are copied by the thread of the trainer.
_PARALLEL_BYTES = 8 << 20
_THREADS = 4


class StateCopy:
    """One copy of a state. Use it as a context manager.

    `existing`: bytes that are allocated, of which `compared` belong to the state before. The rest is written like a
    file: if the file system is full, this is an error and not a signal that ends the process.
    """

    def __init__(self, memory: mmap.mmap, handle: int, *, piece: int, existing: int, compared: int) -> None:
        self._memory, self._handle, self._piece = memory, handle, piece
        self._existing, self._compared = existing, compared
        # The numbers of the pieces that differ from the state before.
        self.changed: set[int] = set()
        self._calls = _Calls(memory) if existing or compared else None
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> StateCopy:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._calls = None

    def put(self, at: int, view: memoryview) -> None:
        """Copy a buffer to this offset. Raises OSError."""
        view, size = view.cast("B"), view.nbytes
        ends = [*range(at - at % self._piece + self._piece, at + size, self._piece), at + size]
        parts = list(zip([at, *ends], ends, strict=False))
        source = self._calls.address(view) if self._calls and size else 0

        def copy(part: tuple[int, int]) -> None:
            self._copy(part[0], view[part[0] - at : part[1] - at], source + part[0] - at)

        if size < _PARALLEL_BYTES:
            for part in parts:
                copy(part)
        else:
            list(self._threads().map(copy, parts))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1))
        return self._pool

    def _copy(self, at: int, part: memoryview, source: int) -> None:
        """Copy what belongs to one piece."""
        size, number, calls = len(part), at // self._piece, self._calls
        begin = 0
        if calls is not None and number not in self.changed and at + size <= self._compared:
            begin = calls.first_difference(at, source, size)
            if begin == size:
                return
        self.changed.add(number)
        if calls is not None and at + size <= self._existing:
            calls.move(at + begin, source + begin, size - begin)
            return
        part, at = part[begin:], at + begin
        while part:
            count = os.pwrite(self._handle, part, at)
            part, at = part[count:], at + count


class _Calls:
    """The calls of the C library, which release the interpreter lock, and the addresses that they need."""

    def __init__(self, memory: mmap.mmap) -> None:
        import ctypes

        library = ctypes.CDLL(None)
        self._move, self._compare = library.memmove, library.memcmp
        for call in (self._move, self._compare):
            call.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._address: Callable[[Any], int] = _address_by(ctypes)
        # Keeps the map open.
        self._first = ctypes.c_char.from_buffer(memory)
        self._begin = ctypes.addressof(self._first)

    def address(self, view: memoryview) -> int:
        return self._address(view)

    def first_difference(self, at: int, source: int, size: int) -> int:
        """Return the offset of the first block that differs; `size` if none does."""
        for block in range(0, size, _BLOCK_BYTES):
            if self._compare(self._begin + at + block, source + block, min(_BLOCK_BYTES, size - block)):
                return block
        return size

    def move(self, at: int, source: int, size: int) -> None:
        self._move(self._begin + at, source, size)


def _address_by(ctypes: Any) -> Callable[[memoryview], int]:
    """Return a function for the address of a view, which may be read-only. It is valid while the view exists."""

    class Buffer(ctypes.Structure):  # type: ignore[misc]
        # Py_buffer: the address comes first, the rest is room.
        _fields_ = (("address", ctypes.c_void_p), ("rest", ctypes.c_char * 128))

    take, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    take.argtypes = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int)
    release.argtypes = (ctypes.c_void_p,)

    def address(view: memoryview) -> int:
        buffer = Buffer()
        take(view, ctypes.byref(buffer), 0)
        found: int = buffer.address
        release(ctypes.byref(buffer))
        return found

    return address
