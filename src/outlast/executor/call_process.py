"""The process that executes calls on a machine, one after the other.

It runs as a script in the user's environment, whose packages are unknown: it imports the standard library, and
cloudpickle from the archive of the pool.

    call_process.py LIBRARY BLOBS PYTHON REQUESTS REPLIES

REQUESTS and REPLIES are file descriptors. A request is a line with two paths, of the payload and of the result. The
reply is `done`, or `returned` if the call saved itself at a preemption; then the process ends.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any


class _Reader(pickle.Unpickler):
    """Loads a payload; large objects are in files named by their content."""

    def __init__(self, file: Any, blobs: str) -> None:
        super().__init__(file)
        self._blobs = blobs
        self._loaded: dict[Any, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        # One object per place in the payload: two equal arguments stay two objects.
        digest, _place = pid
        if pid not in self._loaded:
            with open(os.path.join(self._blobs, digest), "rb") as file:
                self._loaded[pid] = pickle.load(file)
        return self._loaded[pid]


class CallProcess:
    """One process and the call that it executes."""

    def __init__(self, blobs: str, python: str, replies: int) -> None:
        self.blobs = blobs
        self.python = python
        self.replies = replies
        self._call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
        self._result = ""

    def serve(self, requests: int) -> None:
        """Execute calls until the worker closes the pipe."""
        signal.signal(signal.SIGTERM, self._save)
        with os.fdopen(requests, encoding="utf-8") as lines:
            for line in lines:
                payload, self._result = json.loads(line)
                self._write(self._result, self._executed(payload))
                self._reply("done")

    def _executed(self, payload: str) -> tuple[Any, ...]:
        """Return `("value", value)` or `("error", exception, traceback)`; `_write` pickles the exception apart."""
        value, problem, text = _attempt(lambda: self._value(payload))
        self._call = None
        return ("value", value) if problem is None else ("error", problem, text)

    def _value(self, payload: str) -> Any:
        own = "{}.{}".format(*sys.version_info)
        if own != self.python:
            raise RuntimeError(
                f"the machine has Python {own}, the caller has {self.python}: "
                f'choose an environment with the same version, such as environment={{"python": "{self.python}"}}'
            )
        with open(payload, "rb") as file:
            self._call = _Reader(file, self.blobs).load()
        function, args, kwargs = self._call
        return function(*args, **kwargs)

    def _write(self, path: str, result: tuple[Any, ...]) -> None:
        """Write the result. One that cannot be pickled becomes an error."""
        import cloudpickle

        kind, value, *text = result
        body, problem, _ = _attempt(lambda: cloudpickle.dumps(value if kind == "error" else result, protocol=5))
        if problem is not None:
            shown = "".join(traceback.format_exception_only(type(problem), problem)).strip()
            thing = "result" if kind == "value" else f"exception {type(value).__name__}"
            kind, body = "error", pickle.dumps(TypeError(f"the {thing} of the call cannot be pickled: {shown}"))
        if kind == "error":
            body = pickle.dumps((kind, body, *text))
        with open(f"{path}.new", "wb") as file:
            file.write(body)
        os.replace(f"{path}.new", path)

    def _save(self, _number: int, _frame: object) -> None:
        """Handle the notice: a callable with `checkpoint` returns a call that continues it; others go on working."""
        call = self._call
        if call is None or not callable(getattr(call[0], "checkpoint", None)):
            return
        import cloudpickle

        function, args, kwargs = call
        rest = function.checkpoint(*args, **kwargs)
        if rest is None:
            return
        if all(hasattr(rest, name) for name in ("function", "args", "kwargs")):
            rest = (rest.function, tuple(rest.args), dict(rest.kwargs))
        else:
            rest = (rest, args, kwargs)
        with open(f"{self._result}.new", "wb") as file:
            file.write(cloudpickle.dumps(rest, protocol=5))
        os.replace(f"{self._result}.new", self._result)
        self._reply("returned")
        os._exit(0)

    def _reply(self, text: str) -> None:
        os.write(self.replies, f"{text}\n".encode())


def _attempt(act: Callable[[], Any]) -> tuple[Any, BaseException | None, str]:
    """Return the value, or the exception with its traceback: an exception of the call is its result."""
    try:
        return act(), None, ""
    except BaseException as problem:  # noqa: BLE001 - the outermost loop of a user's function
        return None, problem, traceback.format_exc()


def main() -> None:
    library, blobs, python, requests, replies = sys.argv[1:]
    # The folder of this script is replaced by the code folder; the archive comes last: an installed cloudpickle wins.
    sys.path[0] = os.getcwd()
    sys.path.append(library)
    sys.argv = [""]
    CallProcess(blobs, python, int(replies)).serve(int(requests))


if __name__ == "__main__":
    main()
