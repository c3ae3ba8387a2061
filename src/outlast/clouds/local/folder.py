"""The folder of one machine: its facts, its state, its lock. Interprets the files; starts and kills nothing.

    machine.json     facts, rarely changed        state.json   phase, why, boots, the shim's pid, the address
    metadata.json    attributes, may change       shim.lock    held by the launcher, then by the shim while it lives
    disk/ bin/       boot disk, private commands  stop.request, preempt.request   requests to the shim
    guest.json       guest attributes, if any     suspend.request   the machine is suspended while this exists

Only the holder of the lock writes the state. A shim is alive if and only if the lock is held: its pid may belong to
another process by now.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from outlast.clouds.local.files import is_locked, read_json, try_lock, write_json

# Other phases are statuses. In these the shim has not booted the machine yet: pending while it lives, else broken.
_ALIVE = {"created": "pending", "starting": "pending"}
_WHY_BROKEN = {
    "created": "half created",
    "starting": "its boot was interrupted",
    "damaged": "its files are damaged",
}
# The `why` of a suspended machine, whose status is still `running`.
SUSPENDED = "suspended"


class Folder:
    """The files of one machine. Any number of processes may use the same folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.lock_path = f"{path}/shim.lock"
        self.disk_path = f"{path}/disk"
        self.serial_path = f"{path}/serial.log"
        self.metadata_path = f"{path}/metadata.json"
        self._facts: dict[str, Any] | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def root(self) -> str:
        """The folder of the whole cloud."""
        return os.path.dirname(os.path.dirname(self.path))

    def exists(self) -> bool:
        return os.path.exists(f"{self.path}/machine.json")

    def facts(self) -> dict[str, Any] | None:
        """Return the facts of the machine; None if it does not exist."""
        if self._facts is None:
            self._facts = read_json(f"{self.path}/machine.json")
        return self._facts

    def change_facts(self, changes: dict[str, Any]) -> None:
        """Change facts, for the next boot. The caller holds the cloud's lock."""
        if changes:
            self._facts = {**(self.facts() or {}), **changes}
            write_json(f"{self.path}/machine.json", self._facts)

    def state(self) -> dict[str, Any] | None:
        return read_json(f"{self.path}/state.json")

    def set_state(self, **changes: Any) -> None:
        """Change the state. The caller holds the machine's lock."""
        write_json(f"{self.path}/state.json", {**(self.state() or {}), **changes})

    def attributes(self) -> dict[str, str]:
        return read_json(self.metadata_path) or {}

    def is_held(self) -> bool:
        return is_locked(self.lock_path)

    def status(self) -> tuple[str, dict[str, Any]] | None:
        """Return the status and the state it is based on; None if the machine does not exist."""
        while True:
            state = self.state()
            if state is None:
                return None
            phase = str(state.get("phase", "damaged"))
            if self.is_held():
                return _ALIVE.get(phase, phase), state
            # The shim may have ended, or a new one started, between the two reads.
            if self.state() == state:
                if phase in ("stopped", "broken"):
                    return phase, state
                return "broken", {**state, "why": _WHY_BROKEN.get(phase, "its shim was killed")}

    def take_lock(self, *, timeout_s: float = 0.0) -> int | None:
        """Return the lock, waiting for its holder to exit. None after the timeout, or if the machine is gone."""
        give_up_at = time.monotonic() + timeout_s
        pause_s = 0.001
        while (descriptor := try_lock(self.lock_path)) is None:
            if time.monotonic() >= give_up_at or not os.path.exists(self.lock_path):
                return None
            time.sleep(pause_s)
            pause_s = min(0.02, pause_s * 1.3)
        return descriptor

    def request(self, what: str, **details: Any) -> None:
        """Write a request for the shim and wake it. Without the signal it polls within a second."""
        try:
            write_json(f"{self.path}/{what}.request", details)
        except FileNotFoundError:
            return
        except OSError as problem:
            if what != "stop":
                from outlast.errors import CloudError

                why = f"could not write the {what} request of machine `{self.name}`: {problem.strerror}"
                raise CloudError(why, hint="free space on the disk") from problem
            # The disk is full. A stop needs no file.
            self.signal_shim(signal.SIGTERM)
            return
        self.wake()

    def requested(self, what: str) -> dict[str, Any] | None:
        return read_json(f"{self.path}/{what}.request")

    def clear_requests(self) -> None:
        for what in ("stop", "preempt", "suspend"):
            self.withdraw(what)

    def withdraw(self, what: str) -> None:
        try:
            os.unlink(f"{self.path}/{what}.request")
        except FileNotFoundError:
            pass

    def wake(self) -> None:
        """Make the shim check its folder now."""
        self.signal_shim(signal.SIGUSR1)

    def signal_shim(self, number: int) -> None:
        """Signal the shim if it is alive, and never another process that has its pid by now."""
        pid = (self.state() or {}).get("shim_pid")
        if not isinstance(pid, int):
            return
        try:
            if hasattr(os, "pidfd_open"):
                self._signal_by_pidfd(pid, number)
            elif self.is_held():
                os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass

    def _signal_by_pidfd(self, pid: int, number: int) -> None:
        descriptor = os.pidfd_open(pid)
        try:
            # The lock is still held by the boot that wrote this pid, so the descriptor is the shim's.
            if self.is_held() and (self.state() or {}).get("shim_pid") == pid:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)

    def print_serial(self, line: str) -> None:
        """Append a line to the serial output."""
        now_s = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now_s)) + f".{int(now_s * 1000) % 1000:03d}Z"
        try:
            descriptor = os.open(self.serial_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return
        try:
            os.write(descriptor, f"{stamp} outlast: {line}\n".encode())
        except OSError:
            pass  # a full disk must not end a machine
        finally:
            os.close(descriptor)

    def discard(self) -> str:
        """Move the machine to the trash in one step; return the new path. The caller holds the machine's lock."""
        trash = f"{self.root}/trash"
        os.makedirs(trash, exist_ok=True)
        remains = f"{trash}/{self.name}.{time.time_ns()}.{os.getpid()}"
        os.rename(self.path, remains)
        return remains
