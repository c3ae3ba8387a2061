"""A place for one call at a time on a worker's machine: its process, and the call in it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import IO

from outlast.executor import call_process
from outlast.executor.records import OWN_PATH, PoolRecord, QueueEntry

_KILL_S = 5.0


class CallSlot:
    """One process for calls. It is started for the first call, and again when it died."""

    def __init__(self, folder: str, record: PoolRecord, *, library: str, blobs: str) -> None:
        self.folder = folder
        self.record = record
        self.library = library
        self.blobs = blobs
        self.number = -1
        self.entry: QueueEntry | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: IO[bytes] | None = None
        self._replies = -1
        self._reply = b""
        os.makedirs(folder, exist_ok=True)

    @property
    def busy(self) -> bool:
        return self.entry is not None

    @property
    def replies(self) -> int:
        """The file descriptor that becomes readable when the call ends or its process dies."""
        return self._replies

    @property
    def payload(self) -> str:
        return os.path.join(self.folder, "payload")

    @property
    def result(self) -> str:
        return os.path.join(self.folder, "result")

    def start(self, number: int, entry: QueueEntry, payload: bytes) -> None:
        """Hand a call to the process."""
        self.number, self.entry, self._reply = number, entry, b""
        with open(self.payload, "wb") as file:
            file.write(payload)
        if self._process is None or self._process.poll() is not None:
            self._launch()
        self._send()

    def repeat(self) -> None:
        """Execute the call again in a new process."""
        self._reply = b""
        self._launch()
        self._send()

    def _send(self) -> None:
        assert self._requests is not None
        try:
            self._requests.write(json.dumps([self.payload, self.result]).encode() + b"\n")
            self._requests.flush()
        except BrokenPipeError:
            pass  # the process died: `poll` reports it

    def _launch(self) -> None:
        self.close()
        requests, own_requests = os.pipe()
        own_replies, replies = os.pipe()
        os.set_blocking(own_replies, False)
        program = os.path.abspath(call_process.__file__)
        argv = [self.record.interpreter or "python3", program, self.library, self.blobs, self.record.python]
        # The worker's own packages are those of the agent; calls have those of the user.
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", OWN_PATH)}
        if os.environ.get(OWN_PATH):
            environment["PYTHONPATH"] = os.environ[OWN_PATH]
        self._process = subprocess.Popen(
            [*argv, str(requests), str(replies)],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(requests, replies),
            start_new_session=True,
        )
        os.close(requests)
        os.close(replies)
        self._requests, self._replies = os.fdopen(own_requests, "wb"), own_replies

    def poll(self) -> str:
        """Return `done` or `returned` with the result in its file, `died`, or nothing while the call runs."""
        assert self._process is not None
        code = self._process.poll()
        try:
            self._reply += os.read(self._replies, 100)
        except BlockingIOError:
            pass
        else:
            if not self._reply and code is None:
                code = self._process.wait()  # the pipe was closed: the process is ending
        if self._reply.endswith(b"\n"):
            return self._reply.decode().strip()
        return "" if code is None else "died"

    @property
    def exit_text(self) -> str:
        """Describe the end of the process."""
        code = self._process.poll() if self._process else None
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def clear(self) -> None:
        self.number, self.entry, self._reply = -1, None, b""

    def notice(self) -> None:
        """Pass the notice of the machine on to the call."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End the process and everything that it started."""
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        self._process.wait(_KILL_S)
        if self._requests is not None:
            try:
                self._requests.close()
            except BrokenPipeError:
                pass
            os.close(self._replies)
        self._process, self._requests = None, None
