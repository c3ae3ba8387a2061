"""A command in a pseudo-terminal that a test types to and reads from."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

from tests.support.home import OUTLAST


class Desk(Protocol):
    """The working folder and environment of the command, and the list of processes to end with the test."""

    project: Path
    environment: dict[str, str]
    _started: Any


class Keyboard:
    """A terminal. `seen` is the output since the last `until`."""

    def __init__(self, home: Desk, *argv: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [OUTLAST, *argv],
            cwd=home.project,
            env={**home.environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        home._started.append(self.process)
        self.seen = b""

    def until(self, text: str, *, within_s: float = 40.0) -> str:
        deadline = time.monotonic() + within_s
        while text.encode() not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come; seen: {self.seen.decode(errors='replace')}"
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 65536)
                except OSError:
                    raise AssertionError(f"it ended before {text!r}: {self.seen.decode(errors='replace')}") from None
        seen, self.seen = self.seen.decode(errors="replace"), b""
        return seen

    def type(self, text: str) -> None:
        """Type key by key: tmux takes faster input for a paste, in which no key is a command."""
        for key in text:
            next_key_at = time.monotonic() + 0.02
            while (left_s := next_key_at - time.monotonic()) > 0:
                self._read(left_s)
            os.write(self._master, key.encode())

    def wait(self, *, within_s: float = 30.0) -> int:
        """Wait for the exit while reading the output, as a full terminal would block the command."""
        deadline = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still running: {self.seen.decode(errors='replace')}"
            self._read()
        self._read()
        return self.process.returncode

    def _read(self, patience_s: float = 0.1) -> None:
        if select.select([self._master], [], [], patience_s)[0]:
            try:
                self.seen += os.read(self._master, 65536)
            except OSError:
                return

    def sleep_and_wake(self) -> None:
        """End the ssh processes, as ssh does after a laptop has slept for long."""
        children = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "ssh"], capture_output=True, text=True, check=True
        ).stdout
        for pid in children.split():
            os.kill(int(pid), signal.SIGTERM)
