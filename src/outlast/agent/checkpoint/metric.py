"""The metric of a checkpoint for `keep_best`: the value that the trainer stored with it, else the last one logged.

Values that are not finite numbers do not count.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from outlast.runs.metrics import finite

_MARKER = "checkpoint.json"
# Read from the end of the log: metrics logged before that do not belong to the checkpoint.
_TAIL_BYTES = 1 << 20


def metric_of(name: str, *, folder: str, paths: Sequence[str], log: str, step: int | None) -> float | None:
    """Return the metric of the checkpoint that consists of `paths`; None if it has none."""
    # Folders of the trainer library are named by their steps: the last is the newest.
    markers = [path for path in paths if os.path.basename(path) == _MARKER]
    stored = _stored(os.path.join(folder, max(markers))) if markers else {}
    return finite(stored[name]) if name in stored else _logged(log, name, step)


def _stored(path: str) -> dict[str, object]:
    try:
        with open(path, "rb") as file:
            metrics = _decoded(file.read()).get("metrics")
    except OSError:
        return {}
    return metrics if isinstance(metrics, dict) else {}


def _logged(log: str, name: str, step: int | None) -> float | None:
    """Return the value in the last row up to the step that has the metric.

    None if that is not a number: an older value belongs to an older checkpoint.
    """
    for line in reversed(_tail(log)):
        row = _decoded(line)
        at = finite(row.get("step"))
        if at is not None and (step is None or at <= step) and name in row:
            return finite(row[name])
    return None


def _tail(log: str) -> list[bytes]:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).split(b"\n")
    except OSError:
        return []


def _decoded(body: bytes) -> dict[str, object]:
    # Not msgspec, which rejects the NaN that Python writes: a row with NaN must not count as a row without the metric.
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
