"""Ports for servers that a test starts itself."""

from __future__ import annotations

import random
import socket

# The kernel gives ports from 32768 to connections, so a port above may be taken before the server listens on it.
_PORTS = range(10000, 32768)


def free_port() -> int:
    """Return a port of loopback that no server uses and that the kernel gives to no connection."""
    chosen = random.SystemRandom()
    while True:
        port = chosen.choice(_PORTS)
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
