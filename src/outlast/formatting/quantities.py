"""Numbers told for people: sums of money, sizes."""

from __future__ import annotations

import math


def money(usd: float) -> str:
    """Cents where they are seen; two digits that mean something for the little that a local machine costs."""
    if abs(usd) >= 0.1 or usd == 0:
        return f"${usd:.2f}"
    return f"${usd:.{min(7, 1 - math.floor(math.log10(abs(usd))))}f}"


def size(count: int) -> str:
    """`312 B`, `4.2 MB`."""
    number = float(min(count, 10**30))  # a record may say anything
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return ""
