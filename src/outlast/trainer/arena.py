"""The shared memory of the trainer and its saver process, with the copy of the state that is being written.

Later saves use it again, because the first use of memory is several times slower than a copy. It is created in advance
where the size of the state is known, only if enough memory is free, and released after a save where memory is scarce.
It has no name, so that the system frees it with the last process that uses it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from outlast.trainer.copying import StateCopy

# The memory that stays free for others.
_SPARE = 0.1
_STEP_BYTES = 16 << 20
# From linux/mman.h: allocate and map the pages. Python has no name for it yet.
_MADV_POPULATE_WRITE = 23


class Arena:
    """A file without a name that trainer and saver have mapped; created here, or inherited from the trainer."""

    def __init__(self, size: int, *, handle: int | None = None) -> None:
        self.size = size
        self.handle, self._in_memory = _unnamed_file(size) if handle is None else (handle, True)
        try:
            if handle is None:
                os.truncate(self.handle, size)
            self.map = mmap.mmap(self.handle, size)
        except BaseException:
            os.close(self.handle)
            raise
        # The bytes of the last complete state: the next one is compared with it.
        self._state_bytes = 0
        # The first bytes that are allocated and mapped.
        self._mapped = 0
        self._closing = threading.Event()
        self._filling: threading.Thread | None = None

    def fill_in_background(self) -> None:
        """Allocate and map the memory now, in a thread."""
        if self._in_memory and self._filling is None and self._mapped < self.size:
            self._closing.clear()
            self._filling = threading.Thread(target=self._fill, name="outlast-arena", daemon=True)
            self._filling.start()

    def _fill(self) -> None:
        import ctypes

        try:
            # Unlike `mmap.madvise`, this call releases the interpreter lock.
            madvise = ctypes.CDLL(None, use_errno=True).madvise
        except (AttributeError, OSError):
            return
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        first = ctypes.c_char.from_buffer(self.map)
        try:
            while self._mapped < self.size and not self._closing.is_set():
                size = min(_STEP_BYTES, self.size - self._mapped)
                if madvise(ctypes.addressof(first) + self._mapped, size, _MADV_POPULATE_WRITE):
                    return  # an older kernel, or not enough memory
                self._mapped += size
        finally:
            del first  # it keeps the map open

    def _stop_filling(self) -> None:
        self._closing.set()
        if self._filling is not None:
            self._filling.join()
            self._filling = None

    @contextmanager
    def copy(self, size: int, *, piece: int) -> Iterator[StateCopy]:
        """Yield a copy of a state of this size. Only a complete one is compared with the next."""
        self._stop_filling()
        compared, self._state_bytes = self._state_bytes, 0
        # On a disk, changed pages of a map are written one by one.
        existing = max(self._mapped, compared) if self._in_memory else 0
        with StateCopy(self.map, self.handle, piece=piece, existing=existing, compared=compared) as copy:
            yield copy
        self._state_bytes = size

    def forget_state(self) -> None:
        """Do not compare the next state with the last one: it was not saved."""
        self._state_bytes = 0

    def close(self) -> None:
        self._stop_filling()
        # If a view still exists, the memory is freed with the process.
        with suppress(BufferError):
            self.map.close()
        os.close(self.handle)


def _unnamed_file(size: int) -> tuple[int, bool]:
    """Return a file in memory if there is room, else one on the disk; and whether it is in memory."""
    import tempfile

    try:
        if hasattr(os, "memfd_create") and available_bytes() > size * (1 + _SPARE):
            return os.memfd_create("outlast"), True
    except OSError:
        pass
    handle, path = tempfile.mkstemp(prefix="outlast-")
    os.unlink(path)
    return handle, False


def is_scarce(size: int) -> bool:
    """Return whether so much idle memory is needed by others: less than that is free."""
    return available_bytes() < size


def available_bytes(proc: str = "/proc", cgroups: str = "/sys/fs/cgroup") -> int:
    """Return the memory that this process can still use, by the computer and by the limits of its control group."""
    with open(f"{proc}/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    available = int(fields["MemAvailable"].split()[0]) << 10
    return min([available, *_left_in_groups(proc, cgroups)])


def _left_in_groups(proc: str, cgroups: str) -> list[int]:
    """Return what each control group around this process has left; groups without a limit are left out."""
    try:
        with open(f"{proc}/self/cgroup", encoding="utf-8") as file:
            group = next((line[3:].strip() for line in file if line.startswith("0::")), "")
    except OSError:
        return []
    left = []
    while group:
        folder = os.path.join(cgroups, group.strip("/"))
        try:
            limit, used = _number(f"{folder}/memory.max"), _number(f"{folder}/memory.current")
            # Pages of files that nothing has changed can be dropped.
            with open(f"{folder}/memory.stat", encoding="ascii") as file:
                cached = sum(int(line.split()[1]) for line in file if line.startswith("inactive_file "))
            left.append(max(0, limit - used + cached))
        except (OSError, ValueError):
            pass  # no limit here, or a group that is not visible
        group = "" if group == "/" else os.path.dirname(group)
    return left


def _number(path: str) -> int:
    with open(path, encoding="ascii") as file:
        return int(file.read())
