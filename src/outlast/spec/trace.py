"""Recorded spot capacity as a value: windows of ticks, a character each, `0` for capacity and `1` for none. No IO.

Understood are our own files (`windows`), and those with `metadata` and `data`: windows of the can't-be-late benchmark,
in which a 1 is an outage, and the traces that SkyPilot published, whose numbers are counts of machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HINT = (
    'a trace is JSON: {"gap_seconds": 600, "windows": {"0": "000110…"}}, with `0` for capacity and `1` for none, or '
    '{"metadata": {"gap_seconds": 600}, "data": [0, 1, …]}'
)
# A whole number that no float can hold is none for us, either.
_LARGEST = 1e308
# What a 1 among zeros and ones stands for.
ONES = ("machines", "none")
# Only windows that were cut out of longer traces tell so: the benchmark's.
_CUT = ("generator", "original_trace")


class NoTrace(ValueError):
    """The reason, and what to do about it."""

    def __init__(self, why: str, *, hint: str = HINT) -> None:
        super().__init__(why)
        self.hint = hint


def parse_trace(found: object, *, ones: str = "") -> tuple[float, dict[str, str]]:
    """The seconds of a tick, and the windows. Raises NoTrace with the reason. `ones` is for files of numbers that do
    not tell it themselves."""
    if ones not in ("", *ONES):
        raise NoTrace(f"a 1 is no {ones!r}", hint=f"it stands for {' or '.join(ONES)}")
    if isinstance(found, Mapping) and isinstance(found.get("windows"), Mapping):
        windows = {str(name): _checked(str(name), ticks) for name, ticks in found["windows"].items()}
        if not windows:
            raise NoTrace("it is empty: its `windows` holds none")
        return _tick_s(found.get("gap_seconds")), windows
    if isinstance(found, Mapping) and isinstance(found.get("data"), list):
        metadata = found.get("metadata")
        gap = metadata.get("gap_seconds") if isinstance(metadata, Mapping) else None
        return _tick_s(gap), {"0": _ticks(found["data"], is_cut(found), ones)}
    raise NoTrace("it has no `windows` and no `data`")


def is_cut(found: object) -> bool:
    """Is it one of many windows of one place, each in a file of its own?"""
    if not isinstance(found, Mapping) or "data" not in found or "windows" in found:
        return False
    metadata = found.get("metadata")
    return any(key in found for key in _CUT) or (isinstance(metadata, Mapping) and "start_time" in metadata)


def _ticks(numbers: Sequence[Any], cut: bool, ones: str) -> str:
    if not numbers:
        raise NoTrace("its `data` is empty")
    for at, number in enumerate(numbers):
        if not _is_number(number) or number < 0 or number % 1:
            raise NoTrace(f"its `data` has {number!r} at tick {at}, which is no count of machines")
    if max(numbers) > 1 or ones == "machines":
        return "".join("0" if number else "1" for number in numbers)
    if not cut and not ones:
        raise NoTrace(
            "its `data` does not tell whether a 1 is a machine or an outage",
            hint="say `--ones machines`, as in the traces that SkyPilot published, or `--ones none`, as in the "
            "can't-be-late benchmark",
        )
    return "".join("1" if number else "0" for number in numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -_LARGEST <= value <= _LARGEST


def _tick_s(value: Any) -> float:
    if isinstance(value, bool) or not _is_number(value) or value <= 0:
        raise NoTrace(f"`gap_seconds` must be a number above zero, and is {value!r}")
    return float(value)


def _checked(window: str, ticks: Any) -> str:
    if not isinstance(ticks, str) or not ticks:
        raise NoTrace(f"window `{window}` is empty, or no text")
    for at, letter in enumerate(ticks):
        if letter not in "01":
            raise NoTrace(f"window `{window}` has {letter!r} at tick {at}")
    return ticks
