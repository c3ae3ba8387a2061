"""The command as a process: starts it in a new session, finds its members, signals and kills them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

_SHELLS = {"bash", "sh", "dash", "zsh", "ksh", "ash"}


class Command:
    """The running command. Its output is one pipe; its exit code is a shell's (128 + signal)."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: str,
        environment: Mapping[str, str],
        anchor: Callable[[], int] = lambda: 0,
        cleanup: Callable[[], None] = lambda: None,
    ) -> None:
        """`anchor` returns the first process of a container, which is not a child of the program that started it;
        `cleanup` is called when the command has ended."""
        self._anchor = anchor
        self._cleanup = cleanup
        self._anchored = 0
        self.process = subprocess.Popen(
            argv,
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout

    def wait(self) -> int:
        code = self.process.wait()
        self._cleanup()
        return 128 - code if code < 0 else code

    def terminate(self) -> bool | None:
        """Send SIGTERM to the leaders. Returns whether all of them handle it: others die of it at once.

        Returns None if the command has exited before. A signal to the group would kill data-loader workers, and with
        them the save.
        """
        leaders = self._leaders()
        handled = [_handles(pid, signal.SIGTERM) for pid in leaders]
        if self.process.poll() is not None:
            return None
        for pid in leaders:
            _kill(pid, signal.SIGTERM)
        return bool(handled) and all(handled)

    def _leaders(self) -> list[int]:
        """Return the command's own process, or the programs that a shell waits for if it does not handle SIGTERM.

        Such a shell would die of the signal and leave its program running.
        """
        if self.process.poll() is not None:
            return []
        parents = _parents()
        leaders, checked = [self._inside() or self.process.pid], 0
        while checked < len(leaders):
            pid = leaders[checked]
            children = [child for child, parent in parents.items() if parent == pid]
            if children and _name(pid) in _SHELLS and not _catches(pid, signal.SIGTERM):
                leaders[checked : checked + 1] = children
            else:
                checked += 1
        return leaders

    def _inside(self) -> int:
        """Return the container's first process; 0 without a container, or before it has started."""
        if not self._anchored and self.process.poll() is None:
            self._anchored = self._anchor()
        return self._anchored

    def kill(self) -> None:
        """Kill every process of its session and all descendants."""
        for _ in range(20):
            alive = self.members()
            if self.process.poll() is None:
                _kill_group(self.process.pid)
            for pid in alive:
                _kill(pid, signal.SIGKILL)
            if not alive and self.process.poll() is not None:
                return
            time.sleep(0.01)

    def members(self) -> list[int]:
        """Return the processes of its session and all descendants; without /proc, the leader only."""
        parents = _parents()
        if not parents:
            return [self.process.pid] if self.process.poll() is None else []
        found = {self.process.pid} if self.process.poll() is None else set()
        found |= {inside} if (inside := self._inside()) in parents else set()
        grown = True
        while grown:
            more = {child for child, parent in parents.items() if parent in found} - found
            grown = bool(more)
            found |= more
        for pid in parents:
            if pid not in found and _session(pid) == self.process.pid:
                found.add(pid)
        return [pid for pid in found if _alive(pid)]

    def is_alive(self) -> bool:
        """Return whether the leader runs; a zombie process does not."""
        return self.process.poll() is None and (_alive(self.process.pid) or not _parents())

    def processor_s(self) -> float:
        """Return the processor time that its living processes have used."""
        ticks = os.sysconf("SC_CLK_TCK")
        total = 0.0
        for pid in self.members():
            fields = _stat(pid)
            if fields:
                total += (int(fields[11]) + int(fields[12])) / ticks
        return total


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name: state, parent, group, session, …"""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _parents() -> dict[int, int]:
    """Return the parent of every visible process; empty without /proc."""
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    return {pid: int(fields[1]) for pid in pids if (fields := _stat(pid))}


def _session(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def _alive(pid: int) -> bool:
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _catches(pid: int, number: int) -> bool:
    """Return whether the process has a handler for the signal."""
    return _in_mask(pid, number, ("SigCgt",))


def _handles(pid: int, number: int) -> bool:
    """Return whether the process survives the signal: it handles, blocks or ignores it."""
    return _in_mask(pid, number, ("SigCgt", "SigBlk", "SigIgn"))


def _in_mask(pid: int, number: int, masks: Sequence[str]) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith(tuple(masks)))
    except OSError:
        return False
    return any(int(value, 16) >> (number - 1) & 1 for value in fields.values())
