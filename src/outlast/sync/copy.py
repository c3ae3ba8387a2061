"""Bulk copies with rsync over the shared ssh connection."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence

import msgspec

from outlast.errors import OutlastError
from outlast.sync.channel import LinkLost

# rsync's exit codes: some files were not sent; some vanished during the copy; the connection failed.
_PARTIAL, _VANISHED = 23, 24
_EXIT_S = 3.0
_LOST = (-15, -9, 10, 12, 30, 35, 255)
# Compare times to the nanosecond, to notice a file that was saved twice within a second.
_OPTIONS = ["-lptz", "-s", "--modify-window=-1", "--files-from=-", "--from0", "--out-format=%i %l"]

# An itemized line of a sent file or link, with its size; folders do not match.
_SENT = re.compile(rb"^[<>c][fL]\S* +(\d+)$", re.MULTILINE)


class CopyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The number and size of sent files, and rsync's messages about the others."""

    sent: int
    bytes: int
    problems: tuple[str, ...] = ()


def require_rsync() -> str:
    """Return the path of this computer's rsync. Raises OutlastError if it is missing or too old."""
    found = shutil.which("rsync")
    if found is None:
        raise OutlastError(
            "`rsync` is not installed on this computer",
            hint="install it: `apt-get install rsync`, `brew install rsync`",
        )
    output = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"rsync +version (\d+)\.(\d+)\.(\d+)", output)
    if version is None or tuple(map(int, version.groups())) < (3, 1, 3):
        first = output.split("\n")[0] or "unknown version"
        raise OutlastError(
            f"the `rsync` on this computer is too old ({first})", hint="install 3.1.3 or newer: `brew install rsync`"
        )
    return found


class Rsync:
    """Runs one rsync at a time; another thread can stop it."""

    def __init__(self, shell: str) -> None:
        self._argv = [require_rsync(), *_OPTIONS, "-e", shell]
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def copy(self, source: str, destination: str, paths: Iterable[str], *, options: Sequence[str] = ()) -> CopyResult:
        """Copy the paths. Raises LinkLost, or OutlastError with rsync's message."""
        argv = [*self._argv, *options, source, destination]
        with self._lock:
            if self._stopped:
                raise LinkLost("stopped")
            self._running = process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        output, errors = process.communicate(b"".join(os.fsencode(path) + b"\0" for path in paths))
        sizes = [int(size) for size in _SENT.findall(output)]
        return _result(process.returncode, sizes, errors.decode(errors="replace").strip())

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = self._running
        if running is None or running.poll() is not None:
            return
        # Signal the group, so that rsync's ssh ends too.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(_EXIT_S)
                return


def _result(code: int, sizes: list[int], errors: str) -> CopyResult:
    lines = [line for line in errors.splitlines() if line.strip()]
    if code in (0, _VANISHED):
        return CopyResult(sent=len(sizes), bytes=sum(sizes))
    if code == _PARTIAL:
        problems = tuple(line for line in lines if "some files/attrs were not" not in line)
        return CopyResult(sent=len(sizes), bytes=sum(sizes), problems=problems)
    last = lines[-1] if lines else f"rsync exited with {code}"
    if code in _LOST:
        raise LinkLost(lines[0] if lines else "the connection was lost")
    if any("No space left" in line for line in lines):
        raise OutlastError("the disk on the other side is full", hint="free space there, then sync again")
    raise OutlastError(f"rsync: {last}")
