"""Connects a user's terminal with the command's: forwards keys and window sizes, and prints its output.

`python relay.py SOCKET [direct]` runs in a tmux pane, or by itself without tmux. Uses the standard library only,
because it is also sent to machines as text.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty

# Ctrl-], as in telnet: detaches without tmux.
_DETACH = b"\x1d"


def frame(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body)) + body


def _size(handle: int) -> bytes:
    rows, columns = struct.unpack("HHHH", fcntl.ioctl(handle, termios.TIOCGWINSZ, bytes(8)))[:2]
    return struct.pack(">HH", rows, columns)


def main(argv: list[str]) -> int:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(argv[0])
    except OSError:
        print("outlast: the command has ended")
        return 0
    direct = "direct" in argv
    before = termios.tcgetattr(0)
    resized, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGWINCH, lambda *_: os.write(wake, b"w") and None)
    try:
        tty.setraw(0)
        connection.sendall(frame(b"w", _size(0)))
        return _relay(connection, resized, direct=direct)
    finally:
        termios.tcsetattr(0, termios.TCSAFLUSH, before)


def _relay(connection: socket.socket, resized: int, *, direct: bool) -> int:
    watched: list[int] = [0, connection.fileno(), resized]
    while True:
        ready = select.select(watched, [], [])[0]
        if resized in ready:
            os.read(resized, 4096)
            connection.sendall(frame(b"w", _size(0)))
        if connection.fileno() in ready:
            body = connection.recv(65536)
            if not body:
                return 0
            while body:
                body = body[os.write(1, body) :]
        if 0 in ready:
            typed = os.read(0, 4096)
            if not typed or (direct and _DETACH in typed):
                return 10
            connection.sendall(frame(b"i", typed))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (OSError, KeyboardInterrupt):
        sys.exit(0)
