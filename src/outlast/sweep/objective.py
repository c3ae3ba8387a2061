"""The result of a trial: logged metrics, the last JSON line of its output, or a file. Only reads."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from outlast.errors import Missing
from outlast.runs.logs import attempts_with_logs
from outlast.runs.metrics import stitched
from outlast.runs.outputs import OF_ATTEMPT
from outlast.runs.state import RunState
from outlast.store.bucket import Bucket

# The last chunks of output, of up to 64 KiB each, that are searched for a JSON line.
_CHUNKS = 4


def measured(bucket: Bucket, run: str, state: RunState, source: str) -> dict[str, float]:
    """Return the metrics of a run by name. With `auto`, logged values take precedence over printed ones."""
    if source.startswith("file:"):
        return _from_outputs(bucket, run, state, source.removeprefix("file:"))
    printed = _printed(bucket, run) if source in ("auto", "output") else {}
    return {**printed, **(_logged(bucket, run, state) if source in ("auto", "log") else {})}


def _logged(bucket: Bucket, run: str, state: RunState) -> dict[str, float]:
    return {name: points[-1].value for name, points in stitched(bucket, run, state).series.items()}


def _printed(bucket: Bucket, run: str) -> dict[str, float]:
    for attempt in reversed(attempts_with_logs(bucket, run)):
        keys = [entry.key for entry in bucket.list(f"runs/{run}/logs/{attempt}/")][-_CHUNKS:]
        if found := last_line(b"".join(bucket.get(key) for key in keys)):
            return found
    return {}


def _from_outputs(bucket: Bucket, run: str, state: RunState, path: str) -> dict[str, float]:
    for attempt in reversed(state.attempts):
        try:
            return from_file(bucket.get(OF_ATTEMPT.format(run=run, attempt=attempt.number) + path))
        except Missing:
            continue
    return {}


def from_file(body: bytes) -> dict[str, float]:
    """Return the numbers in a JSON file, or in the last line of a JSON lines file."""
    return _numbers(body) or last_line(body)


def last_line(output: bytes) -> dict[str, float]:
    """Return the numbers of the last line that is a JSON object with numbers."""
    for line in reversed(output.splitlines()):
        if line.lstrip().startswith(b"{") and (found := _numbers(line)):
            return found
    return {}


def _numbers(body: bytes) -> dict[str, float]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    plain = {
        name: value for name, value in found.items() if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {name: float(value) for name, value in plain.items() if abs(value) < 1e308 and math.isfinite(value)}


def values_of(metrics: Mapping[str, float], goals: Sequence[str]) -> tuple[tuple[float, ...], str]:
    """Return the values of the goals, or the reason why they are missing."""
    names = [goal.partition(":")[2] for goal in goals]
    missing = [name for name in names if name not in metrics]
    if not missing:
        return tuple(metrics[name] for name in names), ""
    known = (
        f"the trial logged {', '.join(f'`{name}`' for name in sorted(metrics))}"
        if metrics
        else "the trial logged nothing"
    )
    return (), f"no number logged for `{missing[0]}`; {known}"
