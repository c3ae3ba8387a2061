"""Calls over a Unix socket: one line of JSON in each direction."""

from __future__ import annotations

import json
import os
import socketserver
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from outlast.errors import OutlastError

# Takes the name of the call and its arguments; the result must encode as JSON.
Handler = Callable[[str, dict[str, Any]], Any]


class SocketServer(socketserver.ThreadingUnixStreamServer):
    """Handles each call in a thread. Only this user can open the socket."""

    daemon_threads = True

    def __init__(self, path: str, answer: Handler) -> None:
        self.answer = answer
        with suppress(FileNotFoundError):
            os.unlink(path)  # left by a killed server
        super().__init__(path, _Call)
        os.chmod(path, 0o600)


class _Call(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, SocketServer)
        try:
            request = json.loads(self.rfile.readline())
            answer = {"ok": msgspec.to_builtins(self.server.answer(request["call"], request["args"]))}
        except OutlastError as problem:
            answer = {"error": type(problem).__name__, "message": problem.message, "hint": problem.hint}
        except (ValueError, KeyError, TypeError) as problem:
            answer = {"error": "BadRequest", "message": f"invalid call: {problem}", "hint": ""}
        with suppress(OSError):  # the caller is gone
            self.wfile.write(msgspec.json.encode(answer) + b"\n")
