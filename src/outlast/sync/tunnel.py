"""A port of a machine, here, for as long as it is wanted. Refuses to listen anywhere but on this computer itself."""

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
from outlast.sync.target import Over, Report, Target

_HERE = "127.0.0.1"
_LOOK_S = 1.0
_MOVED_S = 5.0
_UP_S = 20.0


def parse_port(text: str) -> tuple[int, int]:
    """`PORT` or `PORT:LOCAL`: the port there, the port here. Raises UsageError."""
    there, _, here = text.partition(":")
    ports = [int(word) if word.isdigit() else 0 for word in (there, here or there)]
    if not all(0 < port < 65536 for port in ports):
        raise UsageError(f"`{text}` is no port", hint="PORT, or PORT:LOCAL for another one here, e.g. 6006:16006")
    return ports[0], ports[1]


def check_free(port: int) -> None:
    """Raises UsageError if somebody listens here already."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((_HERE, port))
        except OSError as problem:
            free = _free_port()
            raise UsageError(
                f"port {port} of this computer cannot be used: {problem.strerror}",
                hint=f"choose another one for this side, e.g. {port}:{free}",
            ) from problem


def _free_port() -> int:
    with socket.socket() as trial:
        trial.bind((_HERE, 0))
        return int(trial.getsockname()[1])


class Tunnel:
    """One port there, one port here, over as many machines as it takes."""

    def __init__(self, target: Target, there: int, here: int, *, report: Report) -> None:
        self.target = target
        self.there = there
        self.here = here
        self.report = report
        self._entered = False
        # A machine of the local cloud in a user's namespace is entered from outside: a port that ssh opened would be
        # this computer's, so it refuses to.
        self._forbidden = False

    def run(self) -> None:
        """Until it is interrupted, or there is nothing to follow any more."""
        check_free(self.here)
        while True:
            try:
                link = self.target.connect(report=self.report, patient=self._entered)
            except Over as over:
                if not self._entered:
                    raise UsageError(over.message, hint=over.hint) from over
                self.report(over.message)
                return
            why = self._relay(link) if self._forbidden else self._carry(link)
            self._entered = True
            if why:
                self.report(f"{why}; connecting again")
                time.sleep(0.5)

    def _carry(self, link: Link) -> str:
        """One connection; why it ended."""
        # A connection of its own: a forward that the shared one was asked for would outlive us.
        forward = f"{_HERE}:{self.here}:{_HERE}:{self.there}"
        options = ("-N", "-L", forward, "-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes")
        process = subprocess.Popen(
            link.argv(options=options), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            self._wait_until_up(process)
            return self._watch(process, link)
        finally:
            _end(process)

    def _wait_until_up(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + _UP_S
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((_HERE, self.here), timeout=1.0):
                return
            time.sleep(0.05)

    def _watch(self, process: subprocess.Popen[bytes], link: Link) -> str:
        told: bool | None = None
        looked_at = time.monotonic()
        while process.poll() is None:
            if told is not True:
                listening = self._listens(link)
                if self._forbidden:
                    return ""
                told = self._tell(link, listening, first=told is None)
            if time.monotonic() > looked_at + _MOVED_S:
                looked_at = time.monotonic()
                if self.target.moved(link):
                    return f"{self.target.name} has moved to another machine"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_S)
        assert process.stderr is not None
        said = process.stderr.read().decode(errors="replace").strip()
        if "cannot listen to port" in said or "Address already in use" in said:
            raise UsageError(
                f"port {self.here} of this computer was taken meanwhile",
                hint=f"choose another one for this side: {self.there}:{_free_port()}",
            )
        return f"the connection to {link.name} was lost"

    def _relay(self, link: Link) -> str:
        """The same where ssh forwards no ports; why it ended."""
        relays = Relays(link, self.there, self.here)
        told: bool | None = None
        looked_at = time.monotonic() - _MOVED_S
        try:
            while True:
                if told is not True:
                    told = self._tell(link, listens(link, self.there), first=told is None)
                relays.serve(_LOOK_S)
                if time.monotonic() > looked_at + _MOVED_S:
                    looked_at = time.monotonic()
                    if self.target.moved(link):
                        return f"{self.target.name} has moved to another machine"
        except CloudError:
            return f"the connection to {link.name} was lost"
        finally:
            relays.close()

    def _tell(self, link: Link, listening: bool, *, first: bool) -> bool:
        if listening:
            self.report(f"http://localhost:{self.here} is port {self.there} of {link.name}; Ctrl-C ends this")
        elif first:
            self.report(f"nothing listens on port {self.there} of {link.name} yet; waiting for it")
        return listening

    def _listens(self, link: Link) -> bool:
        """Whether a connection to the port gets through. ssh itself opens it: the machine needs no program for it."""
        options = ("-W", f"{_HERE}:{self.there}", "-o", "ControlPath=none", "-o", "LogLevel=INFO")
        argv = link.argv(options=options)
        process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            process.wait(_LOOK_S)
            assert process.stderr is not None
            said = process.stderr.read()
            self._forbidden = b"administratively prohibited" in said
            return b"open failed" not in said and process.returncode == 0
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
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
