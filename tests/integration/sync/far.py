"""Helpers: a machine of the local cloud that is accessed through ssh, and a running sync."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from outlast.clouds.cloud import Boot, Requirements
from outlast.machines.ssh import Link
from tests.support.home import OUTLAST, Home
from tests.support.waiting import eventually

SLEEPS = "#!/bin/sh\nexec sleep 1000\n"


class Far:
    """A machine's files, accessed through ssh as a user would."""

    def __init__(self, home: Home, name: str) -> None:
        self.home = home
        self.name = name
        offer = home.cloud.offers(Requirements())[0]
        home.cloud.launch(offer, name, boot=Boot(script=SLEEPS), labels={})
        eventually(lambda: home.cloud.machine(name).status == "running", what="the machine")
        self.link = Link(home.cloud, name)

    def sh(self, command: str) -> str:
        return self.link.run(command, timeout_s=30.0).stdout.decode(errors="surrogateescape")

    def has(self, path: str, text: str | None = None) -> bool:
        answer = self.link.run(["cat", path], check=False, timeout_s=30.0)
        return answer.returncode == 0 and (text is None or answer.stdout == text.encode())

    def files(self, folder: str) -> set[str]:
        """Return the files below the folder, without those of the receiver."""
        listing = self.sh(f"cd {folder} 2>/dev/null && find . ! -type d ! -path './.outlast-sync/*' -print0 || true")
        return {name.removeprefix("./") for name in listing.split("\0") if name}

    def write(self, path: str, text: str) -> None:
        self.link.run(f'mkdir -p "$(dirname {path})" && cat > {path}', input=text.encode(), timeout_s=30.0)


class Syncing:
    """A running `outlast sync --watch --json` and its events."""

    def __init__(self, home: Home, *argv: str, folder: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [OUTLAST, "sync", *argv, "--watch", "--json"],
            cwd=folder or home.project,
            env={**home.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        home._started.append(self.process)  # type: ignore[arg-type]
        self.events: list[dict[str, Any]] = []
        self._new: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._new.put(json.loads(line))
        self._new.put(None)

    def until(self, event: str, *, within_s: float = 30.0, **fields: Any) -> dict[str, Any]:
        """Return the next event of this kind."""
        deadline = time.monotonic() + within_s
        while True:
            received = self._new.get(timeout=max(0.1, deadline - time.monotonic()))
            assert received is not None, f"it ended before `{event}`: {self.stderr_text()}"
            self.events.append(received)
            if received["event"] == event and all(received.get(name) == value for name, value in fields.items()):
                return received

    def stderr_text(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def stop(self) -> tuple[int, str]:
        """Press Ctrl-C and return the exit code and stderr."""
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(20.0)
        return code, self.stderr_text()


def left_behind(home: Home) -> list[str]:
    """Return processes that a finished sync left: receivers, rsync, ssh. The shared connection ends later by itself."""
    found = []
    for name in os.listdir("/proc"):
        try:
            argv = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            variables = Path(f"/proc/{name}/environ").read_bytes()
        except OSError:
            continue
        ours = str(home.root) in argv or str(home.root).encode() in variables
        if ours and "[mux]" not in argv and any(sign in argv for sign in ("rsync", "python3 -IS", "ControlPath=none")):
            found.append(argv)
    return found
