"""Pickling of calls: functions of scripts and notebook cells travel with them, large arguments are stored once."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import zipfile
from collections.abc import Callable
from typing import Any

from outlast.errors import CallFailed, OutlastError
from outlast.extras import install_hint

# Larger objects are stored by their content: a data set that 200 calls use is uploaded once.
BLOB_BYTES = 64 * 1024
# Packages whose arrays and tables may be large. Others are pickled with the call.
_DATA = ("numpy", "pandas", "polars", "pyarrow", "scipy", "torch")


class RemoteTraceback(Exception):
    """The traceback of an exception on a machine: the `__cause__` of the exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def load_cloudpickle() -> Any:
    """Import cloudpickle. Raises OutlastError with the command that installs it."""
    try:
        import cloudpickle
    except ImportError as problem:
        raise OutlastError(
            f"functions on machines need cloudpickle: {problem}", hint=install_hint("outlast[executor]")
        ) from problem
    return cloudpickle


def library() -> bytes:
    """Return an archive of this process's cloudpickle, for machines without it. Same version, same bytes."""
    folder = os.path.dirname(load_cloudpickle().__file__)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name in sorted(os.listdir(folder)):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb") as file:
                    archive.writestr(zipfile.ZipInfo(f"cloudpickle/{name}"), file.read())
    return buffer.getvalue()


def dumps(call: Any, store: Callable[[str, bytes], None]) -> bytes:
    """Return the pickled call; `store` receives the digest and content of each large object."""
    cloudpickle = load_cloudpickle()
    base: Any = cloudpickle.Pickler

    class Writer(base):  # type: ignore[misc]
        """Replaces large objects by their digest."""

        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file, protocol=5)
            self._places: dict[int, tuple[str, int]] = {}
            # Ids are unique while the objects live.
            self._alive: list[Any] = []

        def persistent_id(self, value: Any) -> tuple[str, int] | None:
            if not _may_be_large(value):
                return None
            if id(value) in self._places:
                return self._places[id(value)]
            body = cloudpickle.dumps(value, protocol=5)
            if len(body) < BLOB_BYTES:
                return None
            digest = hashlib.sha256(body).hexdigest()
            store(digest, body)
            self._alive.append(value)
            self._places[id(value)] = (digest, len(self._places))
            return self._places[id(value)]

    buffer = io.BytesIO()
    Writer(buffer).dump(call)
    return buffer.getvalue()


def outcome(body: bytes) -> tuple[Any, BaseException | None]:
    """Return the value of a call, or its exception, whose cause is the traceback of the machine."""
    result, problem = _loaded(body)
    if problem is not None:
        return None, _unreadable("result", problem, problem)
    kind, value, *text = result
    if kind == "value":
        return value, None
    cause = RemoteTraceback(text[0]) if text and text[0] else None
    # Pickled apart, so that the traceback arrives even if the exception cannot be loaded.
    raised, problem = _loaded(value)
    if problem is not None:
        return None, _unreadable("exception", problem, cause or problem)
    raised.__cause__ = cause
    return None, raised


def _loaded(body: bytes) -> tuple[Any, Exception | None]:
    """Return the object, or the error of loading it."""
    try:
        return pickle.loads(body), None
    except Exception as problem:  # noqa: BLE001 - classes of the user may raise anything
        return None, problem


def _unreadable(thing: str, problem: Exception, cause: BaseException) -> CallFailed:
    text = f"the {thing} of the call cannot be loaded here: {type(problem).__name__}: {problem}"
    failure = CallFailed(text, hint="its classes must be importable in this process, and survive pickling")
    failure.__cause__ = cause
    return failure


def _may_be_large(value: Any) -> bool:
    kind = type(value)
    if kind in (bytes, bytearray, str):
        return len(value) >= BLOB_BYTES
    if kind.__module__.partition(".")[0] not in _DATA or isinstance(value, type):
        return False
    size = getattr(value, "nbytes", None)
    if isinstance(size, int) and getattr(getattr(value, "dtype", None), "kind", "O") != "O":
        return size >= BLOB_BYTES
    # Tables and arrays of objects: their size shows when they are pickled.
    return hasattr(value, "__len__") and hasattr(value, "shape") and len(getattr(value, "shape", ())) > 0
