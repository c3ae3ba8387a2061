"""Forwards ports of a machine's loopback to the same ports of this computer's loopback.

    python -m outlast.clouds.local.relay DESCRIPTOR

Machines in their own network thereby reach servers of this computer, such as an emulator of a cloud. One port is a
proxy to other computers (`proxy.py`). The process stays in this computer's network and receives listening sockets of
the machine's network.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from outlast.clouds.local import linux, proxy

_BYTES = 256 * 1024


def start() -> socket.socket:
    """Start the relay while this process is in the computer's network; it ends with us. Return the socket to it."""
    from outlast.clouds.local.probe import shim_environment

    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-m", "outlast.clouds.local.relay", "0"]
    actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)]
    os.posix_spawn(argv[0], argv, shim_environment(), file_actions=actions, setsid=True)
    theirs.close()
    return ours


def hand_over(line: socket.socket, listeners: list[socket.socket]) -> None:
    """Send the relay the sockets to serve."""
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
    # Returns when the shim exits: nothing is ever written here.
    line.recv(1)


def _serve(listener: socket.socket, port: int) -> None:
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_connect, args=(client, port), daemon=True).start()


def _connect(client: socket.socket, port: int) -> None:
    if port == proxy.PORT:
        server = proxy.answer(client)
        if server is None:
            return
    else:
        try:
            server = socket.create_connection(("127.0.0.1", port))
        except OSError:
            client.close()
            return
    threading.Thread(target=_pump, args=(server, client), daemon=True).start()
    _pump(client, server)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy one direction to its end; the other may continue."""
    try:
        while data := source.recv(_BYTES):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, sink):
            end.close()


if __name__ == "__main__":
    main(int(sys.argv[1]))
