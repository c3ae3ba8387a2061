"""The shared memory of the trainer and its saver process, with the copy of the state that is being written.

Later saves use it again, because the first use of memory is several times slower than a copy. It is created in advance
where the size of the state is known, only if enough memory is free, and released after a save where memory is scarce.
"""

from __future__ import annotations

import mmap
import os
import threading

# The memory that stays free for others.
_SPARE = 0.1
_STEP_BYTES = 16 << 20
# From linux/mman.h: allocate and map the pages. Python has no name for it yet.
_MADV_POPULATE_WRITE = 23


class Arena:
    """A file that trainer and saver have mapped."""

    def __init__(self, path: str, size: int, *, create: bool) -> None:
        self.path = path
        self.size = size
        self._file = open(path, "w+b" if create else "r+b")  # noqa: SIM115  closed with the arena
        if create:
            self._file.truncate(size)
        self.map = mmap.mmap(self._file.fileno(), size)
        self._closing = threading.Event()
        self._filling: threading.Thread | None = None

    def fill_in_background(self) -> None:
        """Allocate the memory now, in a thread."""
        self._filling = threading.Thread(target=self._fill, name="outlast-arena", daemon=True)
        self._filling.start()

    def _fill(self) -> None:
        import ctypes

        # Unlike `mmap.madvise`, this call releases the interpreter lock.
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        first = ctypes.c_char.from_buffer(self.map)
        try:
            for at in range(0, self.size, _STEP_BYTES):
                size = min(_STEP_BYTES, self.size - at)
                if self._closing.is_set() or madvise(ctypes.addressof(first) + at, size, _MADV_POPULATE_WRITE):
                    return  # an older kernel: the copy allocates the memory
        finally:
            del first  # it keeps the map open

    def close(self, *, remove: bool) -> None:
        self._closing.set()
        if self._filling is not None:
            self._filling.join()
        try:
            self.map.close()
        except BufferError:
            pass  # a view still exists; the memory is freed with the process
        self._file.close()
        if remove and os.path.exists(self.path):
            os.unlink(self.path)


def shared_folder(size: int) -> str:
    """Return the folder for shared memory: in RAM if there is room, else the folder for temporary files."""
    import tempfile

    try:
        room = os.statvfs("/dev/shm")
        if min(room.f_bavail * room.f_frsize, available_bytes()) > size * (1 + _SPARE):
            return "/dev/shm"
    except OSError:
        pass
    return tempfile.gettempdir()


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
