"""The command as a process: started in a group of its own, watched, told to leave, ended for good."""

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
        forget: Callable[[], None] = lambda: None,
    ) -> None:
        """`anchor` tells the first process of a container that is no child of the program which started it; `forget`
        is called when the command has ended."""
        self._anchor = anchor
        self._forget = forget
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
        self._forget()
        return 128 - code if code < 0 else code

    def ask_to_leave(self) -> bool:
        """Send SIGTERM to the leader alone: a signal to the group would kill data-loader workers, and the save with
        them.

        Returns whether every leader handles the signal: one that does not dies of it at once.
        """
        leaders = self._leaders()
        handled = [_handles(pid, signal.SIGTERM) for pid in leaders]
        for pid in leaders:
            _kill(pid, signal.SIGTERM)
        return bool(handled) and all(handled)

    def _leaders(self) -> list[int]:
        """Who leads: the command itself; or, below shells that do not handle the signal, what they wait for.

        A shell that dies of the signal would leave its program running, unasked.
        """
        if self.process.poll() is not None:
            return []
        parents = _parents()
        leaders, seen = [self._inside() or self.process.pid], 0
        while seen < len(leaders):
            pid = leaders[seen]
            children = [child for child, parent in parents.items() if parent == pid]
            if children and _name(pid) in _SHELLS and not _catches(pid, signal.SIGTERM):
                leaders[seen : seen + 1] = children
            else:
                seen += 1
        return leaders

    def _inside(self) -> int:
        """The container's first process; 0 if there is no container, or none yet."""
        if not self._anchored and self.process.poll() is None:
            self._anchored = self._anchor()
        return self._anchored

    def kill(self) -> None:
        """Everything of its session and whatever descends from it, at once."""
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
        """The processes of the command: its session, and what descends from it. Linux only; else the leader."""
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
        """Tell whether the leader runs; one that has ended and was not waited for yet does not."""
        return self.process.poll() is None and (_alive(self.process.pid) or not _parents())

    def processor_s(self) -> float:
        """Processor time used so far by what is alive now."""
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
    """The fields of /proc/PID/stat after the name: state, parent, group, session, …"""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []


def _parents() -> dict[int, int]:
    """Parent of every process that can be seen; empty where there is no /proc."""
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
    """Tell whether the process has a handler for the signal."""
    return _in_mask(pid, number, ("SigCgt",))


def _handles(pid: int, number: int) -> bool:
    """Tell whether the process survives the signal: by a handler, by waiting for it, or by ignoring it."""
    return _in_mask(pid, number, ("SigCgt", "SigBlk", "SigIgn"))


def _in_mask(pid: int, number: int, masks: Sequence[str]) -> bool:
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if line.startswith(tuple(masks)))
    except OSError:
        return False
    return any(int(value, 16) >> (number - 1) & 1 for value in fields.values())
