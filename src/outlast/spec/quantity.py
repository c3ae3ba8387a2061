"""Sizes, durations and ranges as people write them: `50GB`, `1h30m`, `8+`. Each raises ValueError with a sentence."""

from __future__ import annotations

import math
import re

from outlast.spec.duration import PIECE, plain_number
from outlast.spec.duration import describe_s as describe_s
from outlast.spec.duration import duration_s as duration_s
from outlast.spec.requirements import Range

_UNITS_GB = {"kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3, "kib": 2**10 / 1e9, "mib": 2**20 / 1e9}
_UNITS_GB |= {"gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
_SIZE = rf"^{PIECE}$"


def size_gb(value: object) -> float:
    """Gigabytes from `50`, `"50GB"`, `"1.5TB"`, `"512MiB"`."""
    number = plain_number(value)
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
        number = float(value) if isinstance(value, str) else plain_number(value)
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
