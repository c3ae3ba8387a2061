"""Durations such as `90s` and `1h30m`. Imports no other module: the trainer library loads it into user processes."""

from __future__ import annotations

import math
import re

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
# Compiled at first use: a process that only prints durations does not pay for it.
PIECE = r"(\d+(?:\.\d+)?)\s*([a-z]+)"


def plain_number(value: object) -> float | None:
    """Return the value if it is a number; a bool does not count as one."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def duration_s(value: object) -> float:
    """Return the seconds in `90`, `"90s"`, `"5m"`, `"1h30m"`, `"2d"`."""
    number = plain_number(value)
    if number is None and isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        pieces = re.findall(PIECE, text)
        if pieces and "".join(a + b for a, b in pieces) == text and all(unit in _UNITS_S for _, unit in pieces):
            number = sum(float(amount) * _UNITS_S[unit] for amount, unit in pieces)
    if number is None or not math.isfinite(number):
        raise ValueError(f"invalid duration {value!r}: expected e.g. `90s`, `5m`, `12h` or `1h30m`")
    if number <= 0:
        raise ValueError(f"expected a duration above zero, got {value!r}")
    return number


def describe_s(seconds: float) -> str:
    """Format a duration: `0.4 s`, `42 s`, `3m 20s`, `2h 5m`, `3d 4h`."""
    if not math.isfinite(seconds):
        return "unlimited" if seconds > 0 else "unknown"
    if seconds < 0.0005:
        return "0 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600}h"
