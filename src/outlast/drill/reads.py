"""Whether a command opened the checkpoint files that were restored for it, by the access times of the files.

A restored file has not been accessed since it was written. File systems mounted with `relatime`, the default, record
the first access after a write; on others nothing is concluded.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import NamedTuple

from outlast.drill.saves import is_weights, state_files

# Files much smaller than the largest one are settings, not the state: reading one shows nothing.
_STATE_SHARE = 0.1
# More files are not polled.
_FILES_MAX = 200


class _Restored(NamedTuple):
    """A restored file. It stays open, so that it can be examined after the command has replaced it."""

    path: str
    descriptor: int
    changed_ns: int


class ReadWatch:
    """The restored files of one attempt. Close it after use."""

    def __init__(self, folder: str, files: Mapping[str, tuple[int, int]], *, started_at: float) -> None:
        """`files` are the files below the folder with size and time of change, just after the command started."""
        older = {path: mark for path, mark in files.items() if mark[0] and mark[1] / 1e9 < started_at}
        restored = {path: older[path] for path in state_files(older)}
        # A new file of at least this size is a checkpoint.
        self.state_bytes = _STATE_SHARE * max((size for size, _ in restored.values()), default=0)
        # A replay buffer may be much larger than the weights.
        state = {path: mark for path, mark in restored.items() if mark[0] >= self.state_bytes or is_weights(path)}
        ordered = sorted(state, key=lambda path: -state[path][0])[:_FILES_MAX]
        self._files: list[_Restored] = []
        self.read = ""
        self.unread = ""
        # An access was seen before any write was.
        self._accessed = False
        if ordered and accesses_are_recorded(folder):
            self._open(folder, {path: state[path][1] for path in ordered})

    def _open(self, folder: str, changed_ns: Mapping[str, int]) -> None:
        for path, changed in changed_ns.items():
            try:
                descriptor = os.open(os.path.join(folder, path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError:
                continue  # deleted or unreadable
            self._files.append(_Restored(path, descriptor, changed))

    def poll(self, *, working: bool, first_write_ns: int, first_save_ns: int) -> None:
        """Record files that were accessed; and, if the command works already, that none was.

        After the first write of the command, the agent may have read the files as well, for a commit. After its first
        save a command does not load any more. Both times are 0 if unknown.
        """
        if self.read:
            return
        unread, unknown = "", False
        for file in self._files:
            info = os.fstat(file.descriptor)
            accessed_ns, untouched = info.st_atime_ns, info.st_mtime_ns == file.changed_ns
            # The first access is recorded; an access after a rewrite replaces it.
            if accessed_ns <= file.changed_ns or (untouched and 0 < first_save_ns < accessed_ns):
                unread = unread or file.path
            elif not first_write_ns and not self._accessed:
                # The command may have written, and the agent read, since the folder was listed: decide next time.
                self._accessed = True
                return
            elif not first_write_ns or accessed_ns <= first_write_ns:
                self.read, self.unread = file.path, ""
                return
            else:
                unknown = True
        if working and unread and not unknown:
            self.unread = unread

    def close(self) -> None:
        for file in self._files:
            os.close(file.descriptor)
        self._files = []


def accesses_are_recorded(folder: str) -> bool:
    """Return whether the file system records when a file is read."""
    try:
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(folder))) as probe:
            probe.write(b"x")
            probe.flush()
            os.utime(probe.name, ns=(0, os.stat(probe.name).st_mtime_ns))
            with open(probe.name, "rb") as file:
                file.read()
            return os.stat(probe.name).st_atime_ns > 0
    except OSError:
        return False
