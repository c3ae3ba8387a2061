"""A separate network namespace for the browser, with port forwarding to the servers of the tests.

Chromium aborts loading when a network interface appears or disappears, and other tests create and remove interfaces all
the time. In its own namespace nothing changes. Without the necessary privileges Chromium runs in the host's network.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import tempfile
import threading

CLONE_NEWNET = 0x40000000


class Quiet:
    def __init__(self, program: str) -> None:
        self.program = program
        self.name = f"outlast-web-{os.getpid()}"
        self.folder = ""
        self.carried: dict[int, socket.socket] = {}
        if os.geteuid() == 0 and shutil.which("ip") and not _fails("ip", "netns", "add", self.name):
            _fails("ip", "-n", self.name, "link", "set", "lo", "up")
            self.folder = tempfile.mkdtemp(prefix="outlast-web-")
            self.program = os.path.join(self.folder, "chromium")
            with open(self.program, "w", encoding="utf-8") as file:
                file.write(f'#!/bin/sh\nexec ip netns exec {self.name} {program} "$@"\n')
            os.chmod(self.program, 0o755)

    def carry(self, port: int) -> None:
        """Forward a port of the host to the browser's namespace, under the same number."""
        if not self.folder or port in self.carried:
            return
        made: list[socket.socket] = []
        listener = threading.Thread(target=self._listen, args=(port, made))
        listener.start()
        listener.join()
        self.carried[port] = made[0]
        threading.Thread(target=_accept, args=(made[0], port), daemon=True).start()

    def _listen(self, port: int, made: list[socket.socket]) -> None:
        """Listen in the namespace. Runs in a short-lived thread, because it switches the thread's namespace."""
        with open(f"/run/netns/{self.name}") as there:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        made.append(socket.create_server(("127.0.0.1", port), backlog=64))

    def end(self) -> None:
        for listening in self.carried.values():
            listening.close()
        if self.folder:
            _fails("ip", "netns", "delete", self.name)
            shutil.rmtree(self.folder)


def _fails(*argv: str) -> bool:
    return subprocess.run(argv, capture_output=True, check=False).returncode != 0


def _accept(listening: socket.socket, port: int) -> None:
    while True:
        try:
            near, _ = listening.accept()
        except OSError:
            return  # closed at the end of the tests
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()
            continue
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    try:
        while body := one.recv(1 << 16):
            other.sendall(body)
    except OSError:
        pass  # one side has disconnected
    for end in (one, other):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
    one.close()
