"""Port 22 for machines that share the host's network. Each has a loopback address, and this module listens there.

A connection is passed to the machine's sshd by the proxy command of `LocalCloud.access`. The port is 2222 if this user
may not listen on port 22.
"""

from __future__ import annotations

import selectors
import shlex
import socket
import subprocess
import threading

from outlast.clouds.local.cloud import LocalCloud
from outlast.errors import OutlastError

PORTS = (22, 2222)


class SshListeners:
    """One listening socket for each running machine that needs one, and a thread that accepts."""

    def __init__(self, cloud: LocalCloud) -> None:
        self._cloud = cloud
        self._open: dict[str, socket.socket] = {}
        # Machines that need no listener, or whose address is taken.
        self._skipped: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._closed = False
        self._thread: threading.Thread | None = None

    def keep(self, running: set[str]) -> None:
        """Open listeners for running machines, and close those of the others."""
        with self._lock:
            for name in set(self._open) - running:
                self._close_listener(name)
            self._skipped &= running
            for name in running - set(self._open) - self._skipped:
                self._listen(name)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for name in list(self._open):
                self._close_listener(name)
        self._wake_writer.send(b"x")

    def _close_listener(self, name: str) -> None:
        listener = self._open.pop(name)
        self._selector.unregister(listener)
        listener.close()

    def _listen(self, name: str) -> None:
        try:
            access = self._cloud.access(name)
        except OutlastError:
            # This computer has no ssh server, or the machine is gone.
            self._skipped.add(name)
            return
        listener = _bind(access.host) if access.proxy_command else None
        if listener is None:
            self._skipped.add(name)
            return
        self._open[name] = listener
        self._selector.register(listener, selectors.EVENT_READ, name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="ssh listeners", daemon=True)
            self._thread.start()
        self._wake_writer.send(b"x")

    def _serve(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._wake_reader.recv(4096)
                    continue
                assert isinstance(key.fileobj, socket.socket)
                try:
                    connection, _ = key.fileobj.accept()
                except OSError:
                    continue  # closed meanwhile, or the client has disconnected
                threading.Thread(target=self._connect, args=(key.data, connection), daemon=True).start()

    def _connect(self, name: str, connection: socket.socket) -> None:
        with connection:
            connection.setblocking(True)
            try:
                command = shlex.split(self._cloud.access(name).proxy_command)
                end = connection.fileno()
                process = subprocess.Popen(command, stdin=end, stdout=end, stderr=subprocess.DEVNULL)
            except (OutlastError, OSError):
                return
        process.wait()


def _bind(address: str) -> socket.socket | None:
    if address == "127.0.0.1":
        return None  # all machines share this address, so port 22 would be ambiguous
    for port in PORTS:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:
            listener.close()
            continue
        listener.listen(64)
        listener.setblocking(False)
        return listener
    return None
