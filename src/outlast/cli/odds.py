"""Pictures of what may happen: how often a run costs how much and ends when, and what one of them looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from outlast.cli.terminal import money
from outlast.policy.replay import Outcome
from outlast.spec.quantity import describe_s

_BARS, _WIDTH, _LANE = 8, 40, 72
# Each cell has a sign of its own: colour never carries meaning alone.
_SIGNS = {"s": "█", "d": "▒", ".": "·"}


def histogram(title: str, values: Sequence[float], report: Callable[[float], str]) -> list[str]:
    """How often: a row a step, as long as it is frequent."""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        return [title, f"  {report(low):>10}  always"]
    step = (high - low) / _BARS
    counts = [0] * _BARS
    for value in values:
        counts[min(_BARS - 1, int((value - low) / step))] += 1
    most = max(counts)
    lines = [title]
    for at, count in enumerate(counts):
        share = 100 * count / len(values)
        bar = "█" * max(round(_WIDTH * count / most), 1 if count else 0)
        lines.append(f"  {report(low + at * step):>10}  {bar:<{_WIDTH}}  {share:3.0f} %")
    return lines


def lane(outcome: Outcome, tick_s: float) -> list[str]:
    """One run over time."""
    path = outcome.path
    cells = [path[at * len(path) // _LANE] for at in range(min(_LANE, len(path)))] if len(path) > _LANE else list(path)
    drawn = "".join(_SIGNS[cell] for cell in cells)
    end = describe_s(len(path) * tick_s)
    return [
        f"a run of median cost, {money(outcome.cost_usd)}:",
        f"  {drawn}",
        f"  0{end:>{max(len(drawn) - 1, 1)}}",
        f"  {_SIGNS['s']} spot  {_SIGNS['d']} on demand  {_SIGNS['.']} waiting",
    ]
