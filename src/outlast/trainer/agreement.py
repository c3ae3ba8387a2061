"""The agreement of several ranks on the steps after which all save, and after which all stop. Rank 0 decides.

Rank 0 names such a step before it begins the step before it. The others must not miss it: ranks that share a folder
move in lockstep and read a file; ranks on several machines receive rank 0's decisions over a connection, one line for
each step, and wait for that of the step before.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import Literal, Protocol

from outlast.errors import OutlastError
from outlast.trainer.environment import Environment

Action = Literal["stop", "save"]
# The port of the agreement follows those that launchers use.
_PORT_OFFSET = 1000
_CONNECT_S = 600.0
_RETRY_S = 0.05


class Agreement(Protocol):
    """How rank 0 passes its decisions on."""

    def publish(self, action: Action, step: int) -> None:
        """Name the step of an action. Called by rank 0 only."""

    def begin(self, step: int) -> None:
        """Rank 0 begins this step: nothing else is named for the steps up to it."""

    def named(self, action: Action, step: int) -> int | None:
        """Return the newest named step of an action, with all decisions from before this step began on rank 0."""

    def close(self) -> None: ...


def agreement_of(environment: Environment) -> Agreement:
    if environment.nodes == 1:
        return FolderAgreement(environment)
    return LeaderRank(environment) if environment.rank == 0 else FollowerRank(environment)


class FolderAgreement:
    """Decisions in files of the checkpoint folder, which all ranks share."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._created_at = time.time()

    def publish(self, action: Action, step: int) -> None:
        path = self._path(action)
        with open(path + ".part", "w", encoding="utf-8") as file:
            file.write(str(step))
        os.replace(path + ".part", path)

    def begin(self, step: int) -> None:
        pass

    def named(self, action: Action, step: int) -> int | None:
        try:
            with open(self._path(action), encoding="utf-8") as file:
                # On a laptop every start is attempt 1: ignore the file of an earlier start.
                if not self.environment.on_machine and os.fstat(file.fileno()).st_mtime < self._created_at:
                    return None
                return int(file.read())
        except FileNotFoundError:
            return None

    def close(self) -> None:
        pass

    def _path(self, action: Action) -> str:
        return os.path.join(self.environment.checkpoints, f"{action}-{self.environment.attempt}.tmp")


class LeaderRank:
    """Rank 0 of several machines: sends its decisions to all other ranks."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._named: dict[Action, int] = {}
        self._begun: int | None = None
        self._streams: list[socket.socket] = []

    def publish(self, action: Action, step: int) -> None:
        self._named[action] = step

    def begin(self, step: int) -> None:
        if self._begun == step:
            return
        self._begun = step
        self._connect()
        line = json.dumps({"begun": step, **self._named}).encode() + b"\n"
        for stream in self._streams:
            # A rank that is gone ends the attempt by itself.
            with contextlib.suppress(OSError):
                stream.sendall(line)

    def named(self, action: Action, step: int) -> int | None:
        return self._named.get(action)

    def close(self) -> None:
        for stream in self._streams:
            stream.close()

    def _connect(self) -> None:
        """Accept the connections of all other ranks, at the first step."""
        missing = self.environment.ranks - 1 - len(self._streams)
        if not missing:
            return
        port = _port(self.environment)
        try:
            with socket.create_server(("", port), backlog=missing) as server:
                server.settimeout(_CONNECT_S)
                for _ in range(missing):
                    stream, _ = server.accept()
                    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._streams.append(stream)
        except OSError as problem:
            found = f"{len(self._streams) + 1} of {self.environment.ranks} ranks have reached their first step"
            why = problem.strerror or str(problem)
            raise OutlastError(f"rank 0 could not connect all ranks on port {port}: {why}; {found}") from problem


class FollowerRank:
    """Another rank: receives the decisions of rank 0."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self._named: dict[Action, int] = {}
        # The newest step of which rank 0's decisions are known. Before the first one, nothing is named.
        self._begun: int | None = None
        self._stream: socket.socket | None = None
        # Lines that were received and concern later steps.
        self._lines: list[bytes] = []
        self._rest = b""

    def publish(self, action: Action, step: int) -> None:
        raise AssertionError("rank 0 names the steps")

    def begin(self, step: int) -> None:
        if self._begun is None:
            # Rank 0 waits for all connections before its first step.
            self._connected()
            self._begun = step - 1

    def named(self, action: Action, step: int) -> int | None:
        # Rank 0 names a step before it begins the one before: with the line of that one, nothing can be missing.
        needed = step if action == "save" else step - 1
        while self._begun is not None and self._begun < needed:
            if not self._lines:
                self._receive()
                continue
            # Rank 0 may be ahead, and may have named another step since.
            news = json.loads(self._lines.pop(0))
            self._begun = int(news.pop("begun"))
            self._named = news
        return self._named.get(action)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _receive(self) -> None:
        stream = self._connected()
        try:
            body = stream.recv(65536)
        except OSError:
            body = b""
        if not body:
            raise OutlastError(f"rank {self.environment.rank}: rank 0 has closed its connection; its process is gone")
        *lines, self._rest = (self._rest + body).split(b"\n")
        self._lines += lines

    def _connected(self) -> socket.socket:
        until = time.monotonic() + _CONNECT_S
        while self._stream is None:
            try:
                self._stream = socket.create_connection((self.environment.master[0], _port(self.environment)), 10.0)
                self._stream.settimeout(None)
            except OSError as problem:
                if time.monotonic() > until:
                    where = f"{self.environment.master[0]}:{_port(self.environment)}"
                    raise OutlastError(f"rank {self.environment.rank} cannot reach rank 0 at {where}") from problem
                time.sleep(_RETRY_S)
        return self._stream


def _port(environment: Environment) -> int:
    return environment.master[1] + _PORT_OFFSET
