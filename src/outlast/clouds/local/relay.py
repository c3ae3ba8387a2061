"""Lets a machine with a network of its own reach chosen ports of this computer's loopback, at the same address.

    python -m outlast.clouds.local.relay DESCRIPTOR

What listens on a laptop listens on loopback, and a rehearsal must reach it: an endpoint that stands for a cloud's. The
process stays in this computer's network; the sockets that it listens on, in the machine's, are handed to it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from outlast.clouds.local import linux

_BYTES = 256 * 1024


def start() -> socket.socket:
    """Start the relay, while we are still in this computer's network; it ends with us. Answers with the line to it."""
    from outlast.clouds.local.probe import shim_environment

    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "outlast.clouds.local.relay", "0"]
    actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
    os.posix_spawn(argv[0], argv, shim_environment(), file_actions=actions, setsid=True)
    theirs.close()
    return ours


def hand_over(line: socket.socket, listeners: list[socket.socket]) -> None:
    """Give the relay the sockets that it shall serve."""
    ports = ",".join(str(listener.getsockname()[1]) for listener in listeners)
    socket.send_fds(line, [ports.encode()], [listener.fileno() for listener in listeners])
    for listener in listeners:
        listener.close()


def main(descriptor: int) -> None:
    linux.die_with_parent(signal.SIGKILL)
    line = socket.socket(fileno=descriptor)
    ports, descriptors, _, _ = socket.recv_fds(line, 4096, 64)
    for port, number in zip(ports.decode().split(","), descriptors, strict=True):
        listener = socket.socket(fileno=number)
        threading.Thread(target=_serve, args=(listener, int(port)), daemon=True).start()
    # Until the shim is gone: nobody ever writes here again.
    line.recv(1)


def _serve(listener: socket.socket, port: int) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_connect, args=(client, port), daemon=True).start()


def _connect(client: socket.socket, port: int) -> None:
    try:
        server = socket.create_connection(("127.0.0.1", port))
    except OSError:
        client.close()
        return
    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
    _pump(client, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """One direction, to its end; the other may go on."""
    try:
        while data := source.recv(_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
