"""Connections to a port of a machine whose ssh server forwards none: each one through a session of its own.

Refuses to listen anywhere but on this computer itself.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess

from outlast.machines.ssh import Link

# Between its own input and output and a port there; ends when the program at the port has closed.
_RELAY = """
import os, socket, sys, threading
line = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while data := os.read(0, 65536):
        line.sendall(data)
    line.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := line.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
_PROBE = 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()'


class Relays:
    """A port here; whoever connects gets a session that connects there."""

    def __init__(self, link: Link, there: int, here: int) -> None:
        self._words = [*link.argv(), "--", f"exec python3 -IS -c {shlex.quote(_RELAY)} {there}"]
        self._listener = socket.create_server(("127.0.0.1", here))
        self._sessions: list[subprocess.Popen[bytes]] = []

    def serve(self, for_s: float) -> None:
        """Take who comes within this time."""
        self._listener.settimeout(for_s)
        with contextlib.suppress(TimeoutError):
            line, _ = self._listener.accept()
            with line:
                # In a group of its own: Ctrl-C is for us, and we end it.
                session = subprocess.Popen(
                    self._words,
                    stdin=line.fileno(),
                    stdout=line.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            self._sessions.append(session)
        self._sessions = [session for session in self._sessions if session.poll() is None]

    def close(self) -> None:
        self._listener.close()
        for session in self._sessions:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session.pid, signal.SIGTERM)
            session.wait()


def listens(link: Link, there: int) -> bool:
    """Whether a connection to the port gets through, tried by the machine itself."""
    return link.run(["python3", "-IS", "-c", _PROBE, str(there)], check=False, timeout_s=20.0).returncode == 0
