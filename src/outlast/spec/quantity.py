"""Sizes, durations and ranges as people write them: `50GB`, `1h30m`, `8+`. Each raises ValueError with a sentence."""

from __future__ import annotations

import math
import re

from outlast.spec.needs import Range

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_UNITS_GB = {"kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3, "kib": 2**10 / 1e9, "mib": 2**20 / 1e9}
_UNITS_GB |= {"gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
# Compiled at their first use: who only tells quantities, and reads none, does without.
_PIECE = r"(\d+(?:\.\d+)?)\s*([a-z]+)"
_SIZE = rf"^{_PIECE}$"


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def duration_s(value: object) -> float:
    """Seconds from `90`, `"90s"`, `"5m"`, `"1h30m"`, `"2d"`."""
    number = _number(value)
    if number is None and isinstance(value, str):
        text = value.strip().lower().replace(" ", "")
        pieces = re.findall(_PIECE, text)
        if pieces and "".join(a + b for a, b in pieces) == text and all(unit in _UNITS_S for _, unit in pieces):
            number = sum(float(amount) * _UNITS_S[unit] for amount, unit in pieces)
    if number is None or not math.isfinite(number):
        raise ValueError(f"{value!r} is no duration; write it like `90s`, `5m`, `12h` or `1h30m`")
    if number <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    return number


def size_gb(value: object) -> float:
    """Gigabytes from `50`, `"50GB"`, `"1.5TB"`, `"512MiB"`."""
    number = _number(value)
    if number is None and isinstance(value, str):
        match = re.match(_SIZE, value.strip().lower())
        if match and match.group(2) in _UNITS_GB:
            number = float(match.group(1)) * _UNITS_GB[match.group(2)]
    if number is None or not math.isfinite(number):
        raise ValueError(f"{value!r} is no size; write it like `50GB` or `512MB`")
    if number <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    return number


def number_range(value: object) -> Range:
    """`8`, `"8+"`, `"4..16"`."""
    return _range(value, _plain, "`8`, `8+` or `4..16`")


def size_range_gb(value: object) -> Range:
    """`32`, `"32GB+"`, `"24GB..80GB"`."""
    return _range(value, size_gb, "`32GB`, `32GB+` or `24GB..80GB`")


def _plain(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str) else _number(value)
    except ValueError:
        number = None
    if number is None or not math.isfinite(number):
        raise ValueError(f"{value!r} is no number")
    if number <= 0:
        raise ValueError(f"{value!r} must be more than zero")
    return number


def _range(value: object, read: object, examples: str) -> Range:
    assert callable(read)
    if not isinstance(value, str):
        number = read(value)
        return Range(low=number, high=number)
    text = value.strip()
    try:
        if text.endswith("+"):
            return Range(low=read(text[:-1]))
        low, dots, high = text.partition("..")
        result = Range(low=read(low), high=read(high if dots else low))
    except ValueError as problem:
        if "more than zero" in str(problem):
            raise
        raise ValueError(f"{value!r} is no range; write it like {examples}") from problem
    if result.high is not None and result.high < result.low:
        raise ValueError(f"{value!r} ends before it begins")
    return result


def gpu_count(value: object) -> tuple[str, int]:
    """`"T4"`, `"T4:2"`."""
    if isinstance(value, str):
        name, colon, count = value.strip().partition(":")
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*", name) and (not colon or (count.isdigit() and int(count) > 0)):
            return name.upper(), int(count) if colon else 1
    raise ValueError(f"{value!r} is no GPU; write it like `T4`, `A100:8`")


def describe_s(seconds: float) -> str:
    """A duration for people: `0.4 s`, `42 s`, `3m 20s`, `2h 5m`, `3d 4h`."""
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
