"""Logged metrics: rows in numbered pieces per attempt, and one curve per metric over all attempts.

Stitching is pure. Invalid lines are skipped: a metric never causes a failure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from outlast.errors import Exists
from outlast.runs.state import Attempt, RunState
from outlast.store.bucket import Bucket
from outlast.store.codec import UNREADABLE
from outlast.store.parallel import in_parallel

PIECE_BYTES = 64 * 1024
# Larger steps are rejected: JSON readers would round them.
_STEP_MAX = 2**53
_NAME_MAX = 200
_OWN = ("step", "at")
# JSON has no NaN: pieces store this text for NaN and infinities.
_NOT_FINITE = "NaN"

End = Literal["preempted", "lost", "crashed"]


class Row(msgspec.Struct, frozen=True):
    """One call of `run.log`."""

    step: int
    at: float
    values: dict[str, float]
    # The metrics that were NaN or infinite.
    not_finite: tuple[str, ...] = ()


class Point(msgspec.Struct, frozen=True):
    step: int
    value: float
    at: float
    attempt: int


class CurveMark(msgspec.Struct, frozen=True):
    """An event on a curve: an attempt ended before the work was done, or resumed another."""

    step: int
    kind: End | Literal["resumed"]
    attempt: int
    at: float


class Curves(msgspec.Struct, frozen=True):
    """All metrics by name, in order of appearance, and the marks in the order of attempts."""

    series: dict[str, tuple[Point, ...]]
    marks: tuple[CurveMark, ...]
    # Metric → the steps at which it was NaN or infinite; its series has no points there.
    not_finite: dict[str, tuple[int, ...]] = {}


# Rows as bytes


def parsed(line: bytes) -> Row | None:
    """Parse a line into a row; None if it is not a row."""
    found = _decoded(line)
    if not isinstance(found, dict):
        return None
    step = finite(found.get("step"))
    if step is None or step != math.floor(step) or abs(step) > _STEP_MAX:
        return None
    named = {
        name: value
        for name, value in found.items()
        if name not in _OWN and name.isprintable() and len(name) <= _NAME_MAX
    }
    values = {name: number for name, value in named.items() if (number := finite(value)) is not None}
    odd = tuple(name for name, value in named.items() if _is_not_finite(value))
    return Row(int(step), finite(found.get("at")) or 0.0, values, odd)


def _is_not_finite(value: object) -> bool:
    return value == _NOT_FINITE or (isinstance(value, float) and not math.isfinite(value))


def _decoded(line: bytes) -> object:
    try:
        return msgspec.json.decode(line)
    except UNREADABLE:
        if b"NaN" not in line and b"Infinity" not in line:
            return None
    import json

    # Python's `json` writes NaN, which is invalid JSON; keep the other values of the line.
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def line_of(row: Row) -> bytes:
    odd = dict.fromkeys(row.not_finite, _NOT_FINITE)
    return msgspec.json.encode({"step": row.step, "at": row.at, **row.values, **odd}) + b"\n"


# Pieces


def piece_key(run: str, attempt: int, number: int) -> str:
    return f"runs/{run}/metrics/{attempt}/{number:08d}.jsonl"


def write_piece(bucket: Bucket, run: str, attempt: int, number: int, body: bytes) -> None:
    """Create one piece. An attempt has one writer: if the piece exists, an earlier response was lost."""
    try:
        bucket.create(piece_key(run, attempt, number), body, durable=False)
    except Exists:
        pass


def attempts_with_metrics(bucket: Bucket, run: str) -> list[int]:
    return sorted(int(name) for name in bucket.children(f"runs/{run}/metrics/") if name.isdigit())


def read(bucket: Bucket, run: str, attempt: int, *, newest: int = 0) -> list[Row]:
    """Return the rows of an attempt as logged; with `newest`, only those of the last pieces."""
    keys = [entry.key for entry in bucket.list(f"runs/{run}/metrics/{attempt}/")]
    bodies = in_parallel(bucket.get, keys[-newest:])
    return [row for body in bodies for line in body.splitlines() if (row := parsed(line)) is not None]


def stitched(bucket: Bucket, run: str, state: RunState, *, newest: int = 0) -> Curves:
    """Return one curve per metric over all attempts, without work that was lost and repeated."""
    return stitch(_rows(bucket, run, newest=newest), state.attempts)


def unstitched(bucket: Bucket, run: str, state: RunState) -> Curves:
    """Return all logged points, including lost work: attempt after attempt, each in the order of its steps."""
    rows = _rows(bucket, run)
    series: dict[str, list[Point]] = {}
    for number in sorted(rows):
        for name, points in _own_points(number, rows[number]).items():
            series.setdefault(name, []).extend(points.values())
    return Curves({name: tuple(points) for name, points in series.items()}, _marks(rows, state.attempts))


def _rows(bucket: Bucket, run: str, *, newest: int = 0) -> dict[int, list[Row]]:
    return {number: read(bucket, run, number, newest=newest) for number in attempts_with_metrics(bucket, run)}


# Stitching


def stitch(rows: Mapping[int, Sequence[Row]], attempts: Sequence[Attempt]) -> Curves:
    """Return one curve per metric with increasing steps.

    An attempt replaces the points of earlier attempts from its first step on. Work that it did not repeat stays.
    """
    by_number = {attempt.number: attempt for attempt in attempts}
    curves: dict[str, dict[int, Point]] = {}
    gaps: dict[str, set[int]] = {}
    for number in sorted({*rows, *by_number}):
        begin = _begin(rows.get(number, ()), by_number.get(number))
        if begin is not None:
            curves = {name: {s: p for s, p in points.items() if s < begin} for name, points in curves.items()}
            gaps = {name: {s for s in steps if s < begin} for name, steps in gaps.items()}
        for name, points in _own_points(number, rows.get(number, ())).items():
            curves.setdefault(name, {}).update(points)
        for row in rows.get(number, ()):
            for name in row.not_finite:
                gaps.setdefault(name, set()).add(row.step)
    series = {name: tuple(points.values()) for name, points in curves.items() if points}
    odd = {name: tuple(sorted(steps)) for name, steps in gaps.items() if steps}
    return Curves(series, _marks(rows, attempts), odd)


def _begin(rows: Iterable[Row], attempt: Attempt | None) -> int | None:
    """Return the first step of an attempt, if known.

    The checkpoint of step 10 may be the state after step 10 or before it. An attempt that repeats step 10 logs it
    again; otherwise the old point belongs to the saved work.
    """
    begins = [row.step for row in rows]
    if attempt is not None and attempt.started_at and attempt.resumed_step is not None:
        begins.append(attempt.resumed_step + 1)
    return min(begins, default=None)


def _own_points(number: int, rows: Iterable[Row]) -> dict[str, dict[int, Point]]:
    """Return the points by metric and step, sorted; if a step was logged twice, the later value."""
    points: dict[str, dict[int, Point]] = {}
    for row in rows:
        for name, value in row.values.items():
            points.setdefault(name, {})[row.step] = Point(row.step, value, row.at, number)
    return {name: dict(sorted(by_step.items())) for name, by_step in points.items()}


def _marks(rows: Mapping[int, Sequence[Row]], attempts: Sequence[Attempt]) -> tuple[CurveMark, ...]:
    marks: list[CurveMark] = []
    started = [attempt for attempt in attempts if attempt.started_at]
    for attempt in started:
        steps = [row.step for row in rows.get(attempt.number, ())]
        first = attempt.resumed_step if attempt.resumed_step is not None else min(steps, default=None)
        last = max(steps, default=first)
        if first is not None and attempt is not started[0]:
            marks.append(CurveMark(first, "resumed", attempt.number, attempt.started_at))
        kind = _end(attempt)
        if last is not None and kind is not None:
            marks.append(CurveMark(last, kind, attempt.number, attempt.noticed_at or attempt.over_at))
    return tuple(marks)


def _end(attempt: Attempt) -> End | None:
    """Return how an attempt ended before the work was done; None if it did not."""
    if attempt.outcome in ("finished", "stopped"):
        return None
    if attempt.preempted:
        return "preempted"
    if attempt.outcome == "lost":
        return "lost"
    return "crashed" if attempt.outcome in ("crashed", "killed", "hung", "broken") else None


def thinned(points: Sequence[Point], stretches: int) -> Sequence[Point]:
    """Reduce a long curve to the lowest and the highest point of each stretch, and the newest: no peak is lost."""
    if len(points) <= 2 * stretches:
        return points
    kept: list[Point] = []
    stretches = max(1, stretches)
    for number in range(stretches):
        part = points[number * len(points) // stretches : (number + 1) * len(points) // stretches]
        ends = {min(part, key=lambda p: p.value), max(part, key=lambda p: p.value)}
        kept += sorted(ends, key=lambda p: p.step)
    return kept if kept[-1] is points[-1] else [*kept, points[-1]]
