"""The command in a pseudo-terminal that users can attach to and detach from; its output still goes to the log.

The command is a child of the agent as without a terminal, with the same exit code, leader and end. Only its standard
streams are a terminal, and a tmux on this machine shows it. Works without tmux.
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
# In the home folder of the login user: a link to the folder with both sockets.
POINTER = ".outlast/terminal"
_ROWS, _COLUMNS = 40, 120
_REPLAY = 64 << 10
# Paths of sockets must be short, also for ssh and tmux.
_PATH_MAX = 80
# A session leader that opens a terminal makes it the controlling terminal, which delivers Ctrl-C.
_OPEN = 'tty=$1; shift; exec "$@" <"$tty" >"$tty" 2>&1'


class TerminalCommand(Command):
    """A `Command` in a terminal."""

    def __init__(self, argv: Sequence[str], *, folder: str, environment: Mapping[str, str], home: str) -> None:
        self._anchor, self._cleanup, self._anchored = (lambda: 0), (lambda: None), 0
        self._master, slave = os.openpty()
        self._resize(_ROWS, _COLUMNS)
        self._copy = os.dup(slave)  # held until the command ends: without it, reads would fail
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
        self.output = open(reading, "rb", 0)  # noqa: SIM115 - the pump reads it to the end
        self._viewers: list[socket.socket] = []
        self._lock = threading.Lock()
        self._recent = b""
        self._folder = _make_folder(home)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(os.path.join(self._folder, "relay"))
        self._listener.listen(8)
        for work, name in ((lambda: self._forward_output(writing), "terminal"), (self._accept_viewers, "viewers")):
            threading.Thread(target=work, name=name, daemon=True).start()
        start_tmux(self._folder)

    def wait(self) -> int:
        code = super().wait()
        # Without its last holder, the reader of the terminal sees the end.
        with contextlib.suppress(OSError):
            os.close(self._copy)
        return code

    def _forward_output(self, writing: int) -> None:
        """Send output to the viewers unchanged, and to the log with plain line ends."""
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
                    self._viewers.remove(viewer)  # it disconnected, or did not read for too long

    def _accept_viewers(self) -> None:
        while True:
            try:
                viewer, _ = self._listener.accept()
            except OSError:
                return
            viewer.settimeout(5.0)
            with self._lock, contextlib.suppress(OSError):
                viewer.sendall(self._recent)
                self._viewers.append(viewer)
            threading.Thread(target=self._read_input, args=(viewer,), daemon=True).start()

    def _read_input(self, viewer: socket.socket) -> None:
        with contextlib.suppress(OSError), viewer.dup() as copy:
            copy.settimeout(None)
            with copy.makefile("rb") as stream:
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
        """Disconnect all viewers and remove the folder of the sockets."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for viewer in self._viewers:
                # Also the copy that its reader thread holds.
                with contextlib.suppress(OSError):
                    viewer.shutdown(socket.SHUT_RDWR)
                viewer.close()
            self._viewers = []
        shutil.rmtree(self._folder, ignore_errors=True)


def _make_folder(home: str) -> str:
    pointer = os.path.join(home, POINTER)
    os.makedirs(os.path.dirname(pointer), mode=0o700, exist_ok=True)
    near = os.path.dirname(pointer)
    folder = tempfile.mkdtemp(prefix="t", dir=near if len(near) < _PATH_MAX else "/tmp")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(pointer)
    os.symlink(folder, pointer)
    return folder


def start_tmux(folder: str) -> bool:
    """Start a session that shows the terminal. Returns False without tmux."""
    tmux = shutil.which("tmux")
    if tmux is None:
        return False
    argv = [tmux, "-u", "-f", "/dev/null", "-S", f"{folder}/tmux", "set-option", "-g", "history-limit", "50000"]
    argv += [";", "set-option", "-g", "mouse", "on", ";", "new-session", "-d", "-s", SESSION]
    argv += ["-x", str(_COLUMNS), "-y", str(_ROWS), "--", sys.executable, "-IS", relay_file, f"{folder}/relay"]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return done.returncode == 0


def _write_all(handle: int, body: bytes) -> None:
    while body:
        body = body[os.write(handle, body) :]
