"""Text of amounts of money, sizes and GPUs."""

from __future__ import annotations

import math

from outlast.spec.gpus import gpu_model


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


def gpu_text(kind: str, count: int) -> str:
    """`T4:1 (16 GB)`: kind, number and the memory of each; empty without a GPU."""
    if not count:
        return ""
    model = gpu_model(kind)
    return f"{kind}:{count}" + (f" ({model.memory_gb} GB)" if model is not None else "")
