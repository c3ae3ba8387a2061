"""Text of amounts of money and sizes."""

from __future__ import annotations

import math


def money(usd: float) -> str:
    """Format with cents; small amounts, such as prices of local machines, with two significant digits."""
    if abs(usd) >= 0.1 or usd == 0:
        return f"${usd:.2f}"
    return f"${usd:.{min(7, 1 - math.floor(math.log10(abs(usd))))}f}"


def size(count: int) -> str:
    """`312 B`, `4.2 MB`."""
    number = float(min(count, 10**30))  # a damaged record may have any value
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return ""
