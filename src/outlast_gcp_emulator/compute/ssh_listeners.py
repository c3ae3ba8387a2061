"""Port 22 of machines that have no network of their own: each has a loopback address, and we listen there for it.

Behind it is the machine's own door (`LocalCloud.access`), which a connection is handed to. Where this user may not
listen on port 22, it is 2222.
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


class Doors:
    def __init__(self, cloud: LocalCloud) -> None:
        self._cloud = cloud
        self._open: dict[str, socket.socket] = {}
        # Machines that need none of us, or whose address is taken.
        self._others: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._closed = False
        self._thread: threading.Thread | None = None

    def keep(self, running: set[str]) -> None:
        """A door for each running machine, and none for the others."""
        with self._lock:
            for name in set(self._open) - running:
                self._shut(name)
            self._others &= running
            for name in running - set(self._open) - self._others:
                self._listen(name)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for name in list(self._open):
                self._shut(name)
        self._wake_writer.send(b"x")

    def _shut(self, name: str) -> None:
        listener = self._open.pop(name)
        self._selector.unregister(listener)
        listener.close()

    def _listen(self, name: str) -> None:
        try:
            access = self._cloud.access(name)
        except OutlastError:
            # No ssh server on this computer, or the machine has just gone.
            self._others.add(name)
            return
        listener = _bind(access.host) if access.proxy_command else None
        if listener is None:
            self._others.add(name)
            return
        self._open[name] = listener
        self._selector.register(listener, selectors.EVENT_READ, name)
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="doors", daemon=True)
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
                    continue  # shut meanwhile, or the client left already
                threading.Thread(target=self._hand_over, args=(key.data, connection), daemon=True).start()

    def _hand_over(self, name: str, connection: socket.socket) -> None:
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
        return None  # where all machines share one address, port 22 would be anybody's
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
