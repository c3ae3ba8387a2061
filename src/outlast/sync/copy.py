"""Many files, or large ones, at once: rsync over the shared connection. Refuses to guess whether it worked."""

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

# rsync's own codes: some files could not be sent; some went away meanwhile; everything that is the connection's fault.
_PARTIAL, _VANISHED = 23, 24
_LEAVE_S = 3.0
_LOST = (-15, -9, 10, 12, 30, 35, 255)
# Times to the nanosecond: a file that was saved twice within a second is another one.
_OPTIONS = ["-lptz", "-s", "--modify-window=-1", "--files-from=-", "--from0", "--out-format=%i %l"]

# A file or a link that was sent, and its size; folders do not count.
_SENT = re.compile(rb"^[<>c][fL]\S* +(\d+)$", re.MULTILINE)


class CopyResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was sent, and what could not be, in rsync's own words."""

    sent: int
    bytes: int
    problems: tuple[str, ...] = ()


def need_rsync() -> str:
    """rsync on this computer. Raises with the way to get it."""
    found = shutil.which("rsync")
    if found is None:
        raise OutlastError(
            "there is no `rsync` on this computer", hint="install it: `apt-get install rsync`, `brew install rsync`"
        )
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.match(r"rsync +version (\d+)\.(\d+)\.(\d+)", said)
    if version is None or tuple(map(int, version.groups())) < (3, 1, 3):
        first = said.split("\n")[0] or "it does not tell its version"
        raise OutlastError(
            f"the `rsync` on this computer is too old ({first})", hint="3.1.3 is needed: `brew install rsync`"
        )
    return found


class Rsync:
    """One rsync after another, each of which can be ended from another thread."""

    def __init__(self, shell: str) -> None:
        self._words = [need_rsync(), *_OPTIONS, "-e", shell]
        self._running: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def copy(self, source: str, destination: str, paths: Iterable[str], *, options: Sequence[str] = ()) -> CopyResult:
        """Raises LinkLost, or OutlastError with what rsync said."""
        argv = [*self._words, *options, source, destination]
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
        said, errors = process.communicate(b"".join(os.fsencode(path) + b"\0" for path in paths))
        sizes = [int(size) for size in _SENT.findall(said)]
        return _judge(process.returncode, sizes, errors.decode(errors="replace").strip())

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            running = self._running
        if running is None or running.poll() is not None:
            return
        # The group: its ssh must not stay behind either.
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(_LEAVE_S)
                return


def _judge(code: int, sizes: list[int], errors: str) -> CopyResult:
    lines = [line for line in errors.splitlines() if line.strip()]
    if code in (0, _VANISHED):
        return CopyResult(sent=len(sizes), bytes=sum(sizes))
    if code == _PARTIAL:
        problems = tuple(line for line in lines if "some files/attrs were not" not in line)
        return CopyResult(sent=len(sizes), bytes=sum(sizes), problems=problems)
    last = lines[-1] if lines else f"rsync ended with {code}"
    if code in _LOST:
        raise LinkLost(lines[0] if lines else "the connection was lost")
    if any("No space left" in line for line in lines):
        raise OutlastError("the disk on the other side is full", hint="make room there, then sync again")
    raise OutlastError(f"rsync: {last}")
