"""The command with a terminal of its own, which people can enter and leave; its output still goes to the log.

The command stays the agent's own child, so its exit code, its leader and its end are what they are without. Only
what it reads and writes is a terminal, and a tmux on this machine shows it. Refuses to need the tmux.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Mapping, Sequence

from outlast.agent.process import Command
from outlast.agent.relay import __file__ as relay_file

SESSION = "outlast"
# In the home folder of whom we log in as: a link to the folder with both sockets.
POINTER = ".outlast/terminal"
_ROWS, _COLUMNS = 40, 120
_REPLAY = 64 << 10
# A socket's path must be short; ssh and tmux have no way around it either.
_PATH_MAX = 80
# The first program opens the terminal as the leader of its session, which makes it the one that Ctrl-C comes from.
_OPEN = 'tty=$1; shift; exec "$@" <"$tty" >"$tty" 2>&1'


class TerminalCommand(Command):
    """As `Command`, in a terminal."""

    def __init__(self, argv: Sequence[str], *, folder: str, environment: Mapping[str, str], home: str) -> None:
        self._anchor, self._forget, self._anchored = (lambda: 0), (lambda: None), 0
        self._master, slave = os.openpty()
        self._resize(_ROWS, _COLUMNS)
        self._copy = os.dup(slave)  # held until the command ends: without a holder there is nothing to read from
        path = os.ttyname(slave)
        os.close(slave)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", _OPEN, "sh", path, *argv],
            cwd=folder,
            env={"TERM": "screen-256color", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        reading, writing = os.pipe()
        self.output = open(reading, "rb", 0)  # noqa: SIM115 - the pump's to read, for as long as it lives
        self._viewers: list[socket.socket] = []
        self._lock = threading.Lock()
        self._recent = b""
        self._place = _make_place(home)
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(os.path.join(self._place, "relay"))
        self._door.listen(8)
        for work, name in ((lambda: self._show(writing), "terminal"), (self._admit, "viewers")):
            threading.Thread(target=work, name=name, daemon=True).start()
        start_tmux(self._place)

    def wait(self) -> int:
        code = super().wait()
        # Now the terminal may end: when its last holder is gone, the reader is told.
        with contextlib.suppress(OSError):
            os.close(self._copy)
        return code

    def _show(self, writing: int) -> None:
        """What the command prints: to whoever watches as it is, to the log with plain line ends."""
        held = b""
        while True:
            try:
                body = os.read(self._master, 65536)
            except OSError as problem:
                if problem.errno != errno.EIO:
                    raise
                body = b""
            if not body:
                break
            self._broadcast(body)
            body, held = held + body, b""
            if body.endswith(b"\r"):
                body, held = body[:-1], b"\r"
            _write_all(writing, body.replace(b"\r\n", b"\n"))
        _write_all(writing, held)
        os.close(writing)
        self._close()

    def _broadcast(self, body: bytes) -> None:
        with self._lock:
            self._recent = (self._recent + body)[-_REPLAY:]
            for viewer in list(self._viewers):
                try:
                    viewer.sendall(body)
                except OSError:
                    self._viewers.remove(viewer)  # it left, or did not read for too long

    def _admit(self) -> None:
        while True:
            try:
                viewer, _ = self._door.accept()
            except OSError:
                return
            viewer.settimeout(5.0)
            with self._lock, contextlib.suppress(OSError):
                viewer.sendall(self._recent)
                self._viewers.append(viewer)
            threading.Thread(target=self._obey, args=(viewer,), daemon=True).start()

    def _obey(self, viewer: socket.socket) -> None:
        with contextlib.suppress(OSError), viewer.dup() as mine:
            mine.settimeout(None)
            with mine.makefile("rb") as stream:
                while head := stream.read(5):
                    body = stream.read(struct.unpack(">I", head[1:])[0])
                    if head[:1] == b"w":
                        self._resize(*struct.unpack(">HH", body))
                    else:
                        _write_all(self._master, body)

    def _resize(self, rows: int, columns: int) -> None:
        if rows and columns:
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _close(self) -> None:
        """Whoever watches sees the end, and nothing stays in the file system."""
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with self._lock:
            for viewer in self._viewers:
                # Also what the thread that listens to it holds.
                with contextlib.suppress(OSError):
                    viewer.shutdown(socket.SHUT_RDWR)
                viewer.close()
            self._viewers = []
        shutil.rmtree(self._place, ignore_errors=True)


def _make_place(home: str) -> str:
    pointer = os.path.join(home, POINTER)
    os.makedirs(os.path.dirname(pointer), mode=0o700, exist_ok=True)
    near = os.path.dirname(pointer)
    place = tempfile.mkdtemp(prefix="t", dir=near if len(near) < _PATH_MAX else "/tmp")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pointer)
    os.symlink(place, pointer)
    return place


def start_tmux(place: str) -> bool:
    """A session that shows the terminal and can be entered from anywhere; False where there is no tmux."""
    tmux = shutil.which("tmux")
    if tmux is None:
        return False
    argv = [tmux, "-u", "-f", "/dev/null", "-S", f"{place}/tmux", "set-option", "-g", "history-limit", "50000"]
    argv += [";", "set-option", "-g", "mouse", "on", ";", "new-session", "-d", "-s", SESSION]
    argv += ["-x", str(_COLUMNS), "-y", str(_ROWS), "--", sys.executable, "-IS", relay_file, f"{place}/relay"]
    answer = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return answer.returncode == 0


def _write_all(handle: int, body: bytes) -> None:
    while body:
        body = body[os.write(handle, body) :]
