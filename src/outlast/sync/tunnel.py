"""`outlast tunnel`: forwards a local port to a port of a machine, over reconnects and moves. Listens on 127.0.0.1."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time

from outlast.errors import CloudError, UsageError
from outlast.machines.ssh import Link
from outlast.sync.port_relay import Relays, listens
from outlast.sync.target import MoveCheck, Report, Target, TargetEnded

_LOCALHOST = "127.0.0.1"
_POLL_S = 1.0

_UP_S = 20.0


def parse_port(text: str) -> tuple[int, int]:
    """Parse `PORT` or `PORT:LOCAL` into the remote and the local port. Raises UsageError."""
    there, _, here = text.partition(":")
    ports = [int(word) if word.isdigit() else 0 for word in (there, here or there)]
    if not all(0 < port < 65536 for port in ports):
        raise UsageError(
            f"invalid port `{text}`", hint="use PORT, or PORT:LOCAL for another local port, e.g. 6006:16006"
        )
    return ports[0], ports[1]


def check_free(port: int) -> None:
    """Raise UsageError if the local port is in use."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_LOCALHOST, port))
        except OSError as problem:
            free = _free_port()
            raise UsageError(
                f"local port {port} cannot be used: {problem.strerror}",
                hint=f"choose another local port, e.g. {port}:{free}",
            ) from problem


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind((_LOCALHOST, 0))
        return int(trial.getsockname()[1])


class Tunnel:
    """Forwards a local port to a port of the target's current machine."""

    def __init__(self, target: Target, there: int, here: int, *, report: Report) -> None:
        self.target = target
        self.there = there
        self.here = here
        self.report = report
        self._entered = False
        # The sshd of a namespaced machine of the local cloud runs outside the namespace: a port that it opened would be
        # this computer's, so it prohibits forwarding.
        self._forbidden = False

    def run(self) -> None:
        """Forward until interrupted, or until the target has ended."""
        check_free(self.here)
        while True:
            try:
                link = self.target.connect(report=self.report, wait=self._entered)
            except TargetEnded as ended:
                if not self._entered:
                    raise UsageError(ended.message, hint=ended.hint) from ended
                self.report(ended.message)
                return
            why = self._relay(link) if self._forbidden else self._carry(link)
            self._entered = True
            if why:
                self.report(f"{why}; connecting again")
                time.sleep(0.5)

    def _carry(self, link: Link) -> str:
        """Forward over one connection and return why it ended."""
        # Not over the shared connection: it would keep the port open after this process exits.
        forward = f"{_LOCALHOST}:{self.here}:{_LOCALHOST}:{self.there}"
        options = ("-N", "-L", forward, "-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes")
        process = subprocess.Popen(
            link.argv(options=options), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            self._wait_until_up(process)
            return self._watch(process, link)
        finally:
            _terminate(process)

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _UP_S
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((_LOCALHOST, self.here), timeout=1.0):
                return
            time.sleep(0.05)

    def _watch(self, process: subprocess.Popen[bytes], link: Link) -> str:
        listening: bool | None = None
        move = MoveCheck(self.target, link)
        while process.poll() is None:
            if listening is not True:
                now_listening = self._listens(link)
                if self._forbidden:
                    return ""
                listening = self._report_port(link, now_listening, first=listening is None)
            if why := move.moved():
                return why
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        assert process.stderr is not None
        errors = process.stderr.read().decode(errors="replace").strip()
        if "cannot listen to port" in errors or "Address already in use" in errors:
            raise UsageError(
                f"another program now uses local port {self.here}",
                hint=f"choose another local port: {self.there}:{_free_port()}",
            )
        return f"the connection to {link.name} was lost"

    def _relay(self, link: Link) -> str:
        """Forward through relays, where ssh forwards no ports, and return why it ended."""
        relays = Relays(link, self.there, self.here)
        listening: bool | None = None
        move = MoveCheck(self.target, link)
        try:
            while True:
                if listening is not True:
                    listening = self._report_port(link, listens(link, self.there), first=listening is None)
                relays.serve(_POLL_S)
                if why := move.moved():
                    return why
        except CloudError:
            return f"the connection to {link.name} was lost"
        finally:
            relays.close()

    def _report_port(self, link: Link, listening: bool, *, first: bool) -> bool:
        if listening:
            self.report(f"http://localhost:{self.here} is port {self.there} of {link.name}; Ctrl-C stops forwarding")
        elif first:
            self.report(f"no program listens on port {self.there} of {link.name} yet; waiting")
        return listening

    def _listens(self, link: Link) -> bool:
        """Return whether a program listens on the port. ssh opens the connection: the machine needs no extra tool."""
        options = ("-W", f"{_LOCALHOST}:{self.there}", "-o", "ControlPath=none", "-o", "LogLevel=INFO")
        argv = link.argv(options=options)
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            process.wait(_POLL_S)
            assert process.stderr is not None
            errors = process.stderr.read()
            self._forbidden = b"administratively prohibited" in errors
            return b"open failed" not in errors and process.returncode == 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            _terminate(process)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
    for stream in (process.stdin, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
