"""Port forwarding for machines whose ssh server forwards no ports: one ssh session per connection.

Listens on 127.0.0.1 only.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess

from outlast.machines.ssh import Link

# Copies between stdio and a port of the machine; ends when the port's program closes the connection.
_RELAY = """
import os, socket, sys, threading
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def send():
    while data := os.read(0, 65536):
        connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := connection.recv(65536):
    while data:
        data = data[os.write(1, data):]
"""
_PROBE = 'import socket, sys; socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5).close()'


class Relays:
    """A local port. Each connection to it starts an ssh session that connects to the machine's port."""

    def __init__(self, link: Link, there: int, here: int) -> None:
        self._argv = [*link.argv(), "--", f"exec python3 -IS -c {shlex.quote(_RELAY)} {there}"]
        self._listener = socket.create_server(("127.0.0.1", here))
        self._sessions: list[subprocess.Popen[bytes]] = []

    def serve(self, for_s: float) -> None:
        """Accept at most one connection within this time."""
        self._listener.settimeout(for_s)
        with contextlib.suppress(TimeoutError):
            connection, _ = self._listener.accept()
            with connection:
                # A separate process group: Ctrl-C reaches this process only, which then ends the session.
                session = subprocess.Popen(
                    self._argv,
                    stdin=connection.fileno(),
                    stdout=connection.fileno(),
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
    """Return whether a program listens on the machine's port, tested from the machine itself."""
    return link.run(["python3", "-IS", "-c", _PROBE, str(there)], check=False, timeout_s=20.0).returncode == 0
