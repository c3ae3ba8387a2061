"""Deadlines as people write them: a while from now, or a moment. Asks no clock whether it has passed."""

from __future__ import annotations

import datetime
import re

from outlast.spec.duration import duration_s


def deadline(value: object) -> tuple[float, float]:
    """`12h` from the submit on, or a moment with its time zone: `2026-12-24T18:00:00Z`. Seconds, one of them 0."""
    moment = value if isinstance(value, datetime.datetime) else None
    if isinstance(value, str) and re.match(r"\s*\d{4}-", value):
        try:
            moment = datetime.datetime.fromisoformat(value.strip())
        except ValueError as problem:
            raise ValueError(f"{value!r} is no moment; write it like `2026-12-24T18:00:00Z`") from problem
    if moment is None:
        return duration_s(value), 0.0
    if moment.tzinfo is None:
        raise ValueError(f"{value!s}: of which time zone? Write it like `2026-12-24T18:00:00Z` or `…+01:00`")
    at = moment.timestamp()
    if at <= 0:
        raise ValueError(f"{value!s} lies in the past")
    return 0.0, at
