"""Recorded capacity: reading a trace file, and checking every character of it. Reads files; judges nothing.

A file is JSON: `gap_seconds`, the length of a tick, and `windows`: name → a character a tick, `0` capacity, `1` none.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

from outlast.errors import UsageError

HINT = 'a trace is JSON: {"gap_seconds": 600, "windows": {"0": "000110…"}}, with `0` for capacity and `1` for none'


@dataclass(frozen=True, slots=True)
class Trace:
    """One place over time, in one or more windows."""

    name: str
    tick_s: float
    windows: dict[str, str]

    def ids(self) -> list[str]:
        """The windows in the order of their files' names, which is the benchmark's."""
        return sorted(self.windows, key=lambda window: f"{window}.json")


def read_traces(path: str) -> list[Trace]:
    """The trace in a file, or all in a folder by name. Raises UsageError for what is none, or not there."""
    if os.path.isdir(path):
        names = sorted(name for name in os.listdir(path) if name.endswith(".json"))
        if not names:
            raise UsageError(
                f"the folder `{path}` holds no trace: there is no file in it that ends in `.json`", hint=HINT
            )
        return [read_trace(os.path.join(path, name)) for name in names]
    return [read_trace(path)]


def read_trace(path: str) -> Trace:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except OSError as problem:
        raise UsageError(f"the trace `{path}` cannot be read: {problem.strerror}", hint=HINT) from problem
    except ValueError as problem:
        raise UsageError(f"the trace `{path}` is no JSON: {problem}", hint=HINT) from problem
    if not isinstance(found, dict) or not isinstance(found.get("windows"), dict):
        raise UsageError(f"the trace `{path}` has no `windows`", hint=HINT)
    name = os.path.splitext(os.path.basename(path))[0]
    windows = {str(window): _checked(path, str(window), ticks) for window, ticks in found["windows"].items()}
    if not windows:
        raise UsageError(f"the trace `{path}` is empty: its `windows` holds none", hint=HINT)
    return Trace(name, _tick_s(path, found.get("gap_seconds")), windows)


def _tick_s(path: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"the trace `{path}`: `gap_seconds` must be a number above zero, and is {value!r}", hint=HINT)
    return float(value)


def _checked(path: str, window: str, ticks: Any) -> str:
    if not isinstance(ticks, str) or not ticks:
        raise UsageError(f"the trace `{path}`: window `{window}` is empty, or no text", hint=HINT)
    for at, letter in enumerate(ticks):
        if letter not in "01":
            raise UsageError(f"the trace `{path}`: window `{window}` has {letter!r} at tick {at}", hint=HINT)
    return ticks
