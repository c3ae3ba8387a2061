"""The parser of spot capacity traces: windows of ticks, one character each, `0` for capacity and `1` for none. No IO.

It reads outlast's files (`windows`) and files with `metadata` and `data`: windows of the can't-be-late benchmark, where
1 means an outage, and traces published by SkyPilot, whose numbers are counts of machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HINT = (
    'a trace is JSON: {"gap_seconds": 600, "windows": {"0": "000110…"}}, with `0` for capacity and `1` for none, or '
    '{"metadata": {"gap_seconds": 600}, "data": [0, 1, …]}'
)
# Numbers outside the range of a float are invalid.
_LARGEST = 1e308
# The possible meanings of a 1 in files that contain only zeros and ones.
ONES = ("machines", "none")
# Only windows cut out of longer traces, as in the benchmark, have these fields.
_CUT = ("generator", "original_trace")


class NoTrace(ValueError):
    """The file cannot be read as a trace; with the reason and a hint."""

    def __init__(self, why: str, *, hint: str = HINT) -> None:
        super().__init__(why)
        self.hint = hint


def parse_trace(found: object, *, ones: str = "") -> tuple[float, dict[str, str]]:
    """Return the seconds per tick, and the windows. `ones` is for files that do not define the meaning of a 1.

    Raises NoTrace.
    """
    if ones not in ("", *ONES):
        raise NoTrace(f"invalid meaning of a 1: {ones!r}", hint=f"expected {' or '.join(ONES)}")
    if isinstance(found, Mapping) and isinstance(found.get("windows"), Mapping):
        windows = {str(name): _checked(str(name), ticks) for name, ticks in found["windows"].items()}
        if not windows:
            raise NoTrace("the trace is empty: `windows` contains none")
        return _tick_s(found.get("gap_seconds")), windows
    if isinstance(found, Mapping) and isinstance(found.get("data"), list):
        metadata = found.get("metadata")
        gap = metadata.get("gap_seconds") if isinstance(metadata, Mapping) else None
        return _tick_s(gap), {"0": _ticks(found["data"], is_cut(found), ones)}
    raise NoTrace("expected `windows` or `data`, found neither")


def is_cut(found: object) -> bool:
    """Return whether the file is one window of a longer trace."""
    if not isinstance(found, Mapping) or "data" not in found or "windows" in found:
        return False
    metadata = found.get("metadata")
    return any(key in found for key in _CUT) or (isinstance(metadata, Mapping) and "start_time" in metadata)


def _ticks(numbers: Sequence[Any], cut: bool, ones: str) -> str:
    if not numbers:
        raise NoTrace("the trace is empty: `data` contains no ticks")
    for at, number in enumerate(numbers):
        if not _is_number(number) or number < 0 or number % 1:
            raise NoTrace(f"`data` at tick {at}: expected a count of machines, got {number!r}")
    if max(numbers) > 1 or ones == "machines":
        return "".join("0" if number else "1" for number in numbers)
    if not cut and not ones:
        raise NoTrace(
            "`data` does not define whether a 1 is a machine or an outage",
            hint="use `--ones machines`, as in the traces published by SkyPilot, or `--ones none`, as in the "
            "can't-be-late benchmark",
        )
    return "".join("1" if number else "0" for number in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST


def _tick_s(value: Any) -> float:
    if isinstance(value, bool) or not _is_number(value) or value <= 0:
        raise NoTrace(f"`gap_seconds`: expected a number above zero, got {value!r}")
    return float(value)


def _checked(window: str, ticks: Any) -> str:
    if not isinstance(ticks, str) or not ticks:
        raise NoTrace(f"window `{window}`: expected text that is not empty, got {ticks!r}")
    for at, letter in enumerate(ticks):
        if letter not in "01":
            raise NoTrace(f"window `{window}` at tick {at}: expected `0` or `1`, got {letter!r}")
    return ticks
