"""Readers of sizes, durations, deadlines and ranges: `50GB`, `1h30m`, `8+`. Each raises ValueError."""

from __future__ import annotations

import datetime
import math
import re

from outlast.spec.duration import PIECE, plain_number
from outlast.spec.duration import describe_s as describe_s
from outlast.spec.duration import duration_s as duration_s
from outlast.spec.gpus import GpuChoice
from outlast.spec.requirements import Range

_UNITS_GB = {"kb": 1e-6, "mb": 1e-3, "gb": 1.0, "tb": 1e3, "kib": 2**10 / 1e9, "mib": 2**20 / 1e9}
_UNITS_GB |= {"gib": 2**30 / 1e9, "tib": 2**40 / 1e9}
_SIZE = rf"^{PIECE}$"


def deadline(value: object) -> tuple[float, float]:
    """Return seconds since the submission for `12h`, or seconds since 1970 for `2026-12-24T18:00:00Z`; the other is 0.

    Does not check whether the deadline has passed.
    """
    moment = value if isinstance(value, datetime.datetime) else None
    if isinstance(value, str) and re.match(r"\s*\d{4}-", value):
        try:
            moment = datetime.datetime.fromisoformat(value.strip())
        except ValueError as problem:
            raise ValueError(f"invalid time {value!r}: expected e.g. `2026-12-24T18:00:00Z`") from problem
    if moment is None:
        return duration_s(value), 0.0
    if moment.tzinfo is None:
        raise ValueError(f"expected a time zone in {value!s}, as in `2026-12-24T18:00:00Z` or `…+01:00`")
    at = moment.timestamp()
    if at <= 0:
        raise ValueError(f"expected a time in the future, got {value!s}")
    return 0.0, at


def size_gb(value: object) -> float:
    """Return the gigabytes in `50`, `"50GB"`, `"1.5TB"`, `"512MiB"`."""
    number = plain_number(value)
    if number is None and isinstance(value, str):
        match = re.match(_SIZE, value.strip().lower())
        if match and match.group(2) in _UNITS_GB:
            number = float(match.group(1)) * _UNITS_GB[match.group(2)]
    if number is None or not math.isfinite(number):
        raise ValueError(f"invalid size {value!r}: expected e.g. `50GB` or `512MB`")
    if number <= 0:
        raise ValueError(f"expected a size above zero, got {value!r}")
    return number


def number_range(value: object) -> Range:
    """Read `8`, `"8+"` or `"4..16"`."""
    return _range(value, _plain, "`8`, `8+` or `4..16`")


def size_range_gb(value: object) -> Range:
    """Read `32`, `"32GB+"` or `"24GB..80GB"`."""
    return _range(value, size_gb, "`32GB`, `32GB+` or `24GB..80GB`")


def _plain(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str) else plain_number(value)
    except ValueError:
        number = None
    if number is None or not math.isfinite(number):
        raise ValueError(f"expected a number, got {value!r}")
    if number <= 0:
        raise ValueError(f"expected a number above zero, got {value!r}")
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
        if "above zero" in str(problem):
            raise
        raise ValueError(f"invalid range {value!r}: expected e.g. {examples}") from problem
    if result.high is not None and result.high < result.low:
        raise ValueError(f"invalid range {value!r}: its end is below its start")
    return result


def gpu_choices(value: object) -> tuple[GpuChoice, ...]:
    """Read one kind of GPU, or alternatives in the order of preference: `["H100", "A100-80GB:2"]`, `"H100,L4"`."""
    if not isinstance(value, list | tuple):
        value = value.split(",") if isinstance(value, str) else [value]
    found = tuple(GpuChoice(*gpu_count(item)) for item in value)
    if not found:
        raise ValueError("expected at least one GPU such as `T4` or `A100:8`, got an empty list")
    if len(set(found)) < len(found):
        raise ValueError(f"expected each alternative once, got {', '.join(map(str, found))}")
    return found


def gpu_count(value: object) -> tuple[str, int]:
    """Read `"T4"`, `"T4:2"`, or by memory `"24GB+"`."""
    if isinstance(value, str):
        name, colon, count = value.strip().partition(":")
        if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]*|[1-9][0-9]{0,3}[Gg][Bb]\+", name) and (
            not colon or (count.isdigit() and int(count) > 0)
        ):
            return name.upper(), int(count) if colon else 1
    raise ValueError(f"invalid GPU {value!r}: expected e.g. `T4`, `A100:8` or `24GB+`")
