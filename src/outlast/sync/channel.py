"""One open connection to the receiver on the machine: frames there, answers back. Refuses to hide that it broke."""

from __future__ import annotations

import json
import shlex
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

from outlast.errors import OutlastError, UsageError
from outlast.sync import receiver

_ANSWER_S = 60.0
_LEAVE_S = 3.0
_NO_PYTHON = 127
# Reads the program and not a byte more: what follows is for the program.
_FIRST = """\
import os
size, got = %d, b""
while len(got) < size:
    more = os.read(0, size - len(got))
    if not more:
        os._exit(1)
    got += more
exec(got)
"""


class LinkLost(OutlastError):
    """The connection is gone; the machine may be, too, or may come back elsewhere."""


class Channel:
    """The receiver, started by ssh. One thread reads its answers; one caller at a time sends."""

    def __init__(self, argv: Sequence[str], *, heard: Callable[[dict[str, Any]], None]) -> None:
        """`heard` is called in a thread with every answer that nobody waits for, and with `{}` when it broke."""
        with open(receiver.__file__, "rb") as file:
            program = file.read()
        remote = f"command -v python3 >/dev/null || exit 127; exec python3 -IS -c {shlex.quote(_FIRST % len(program))}"
        self._process = subprocess.Popen(
            [*argv, "--", remote],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._heard = heard
        self._number = 0
        self._awaited: dict[int, _Answer] = {}
        self._said = b""
        self._over = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._listen, self._overhear)]
        for thread in self._threads:
            thread.start()
        self._write(program)

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """Send and wait for the answer. Raises LinkLost; UsageError for what the receiver refuses."""
        answer = _Answer()
        number = self._number + 1
        self._awaited[number] = answer
        self.send(do, **fields)
        if not answer.there.wait(_ANSWER_S) or not answer.told:
            raise LinkLost(self.why())
        if "refused" in answer.told:
            raise UsageError(answer.told["refused"], hint=answer.told["hint"])
        return answer.told

    def send(self, do: str, body: bytes = b"", **fields: Any) -> int:
        """Send and go on; the answer is heard later, under the number that is returned."""
        self._number += 1
        header = json.dumps({"n": self._number, "do": do, "size": len(body), **fields}).encode("ascii")
        self._write(struct.pack(">I", len(header)) + header + body)
        return self._number

    def _write(self, body: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(body)
            self._process.stdin.flush()
        except (OSError, ValueError) as problem:
            raise LinkLost(self.why()) from problem

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                told = json.loads(line)
            except ValueError:
                continue  # a login script that prints
            answer = self._awaited.pop(told.get("n", 0), None)
            if answer is None:
                self._heard(told)
            else:
                answer.tell(told)
        self._process.wait()
        self._over.set()
        for answer in list(self._awaited.values()):
            answer.tell({})
        self._heard({})

    def _overhear(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said = (self._said + line)[-2000:]

    def why(self) -> str:
        """Why it broke, as far as anybody said."""
        self._over.wait(1.0)
        self._threads[1].join(1.0)
        return self._said.decode(errors="replace").strip() or "the connection was lost"

    @property
    def lacks_python(self) -> bool:
        return self._process.poll() == _NO_PYTHON

    def close(self) -> None:
        """The receiver leaves when nothing more can come; nothing of it stays."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join(1.0)


class _Answer:
    def __init__(self) -> None:
        self.there = threading.Event()
        self.told: dict[str, Any] = {}

    def tell(self, told: dict[str, Any]) -> None:
        self.told = told
        self.there.set()
