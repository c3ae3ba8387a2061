"""Calls over a socket of this machine: one line of JSON each way. Knows neither who asks nor what is asked."""

from __future__ import annotations

import json
import os
import socketserver
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from outlast.errors import OutlastError

# The call, and what is given with it; the answer goes through JSON.
Answer = Callable[[str, dict[str, Any]], Any]


class SocketServer(socketserver.ThreadingUnixStreamServer):
    """Each call in a thread of its own. The socket is this user's alone."""

    daemon_threads = True

    def __init__(self, path: str, answer: Answer) -> None:
        self.answer = answer
        with suppress(FileNotFoundError):
            os.unlink(path)  # of one that was killed
        super().__init__(path, _Call)
        os.chmod(path, 0o600)


class _Call(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, SocketServer)
        try:
            asked = json.loads(self.rfile.readline())
            answer = {"ok": msgspec.to_builtins(self.server.answer(asked["call"], asked["given"]))}
        except OutlastError as problem:
            answer = {"error": type(problem).__name__, "message": problem.message, "hint": problem.hint}
        except (ValueError, KeyError, TypeError) as problem:
            answer = {"error": "BadRequest", "message": f"the call cannot be read: {problem}", "hint": ""}
        with suppress(OSError):  # whoever asked is gone
            self.wfile.write(msgspec.json.encode(answer) + b"\n")
