"""A text plot of two curves: the undisturbed run and the drilled one."""

from __future__ import annotations

from collections.abc import Mapping

_UNDISTURBED, _DRILLED, _BOTH = "·", "×", "•"


def plot(undisturbed: Mapping[int, float], drilled: Mapping[int, float], *, width: int = 64, height: int = 10) -> str:
    """Return a small plot over the steps; empty with too few points."""
    points = [*undisturbed.items(), *drilled.items()]
    if len(points) < 4:
        return ""
    left, right = min(step for step, _ in points), max(step for step, _ in points)
    low, high = min(value for _, value in points), max(value for _, value in points)

    def cells(curve: Mapping[int, float]) -> set[tuple[int, int]]:
        return {
            (
                round((step - left) / max(1, right - left) * (width - 1)),
                round((high - value) / ((high - low) or 1.0) * (height - 1)),
            )
            for step, value in curve.items()
        }

    one, other = cells(undisturbed), cells(drilled)
    rows = []
    for y in range(height):
        label = f"{high:.4g}" if y == 0 else f"{low:.4g}" if y == height - 1 else ""
        signs = [_sign((x, y) in one, (x, y) in other) for x in range(width)]
        rows.append(f"{label:>10} {''.join(signs).rstrip()}".rstrip())
    rows.append(" " * 11 + str(left) + str(right).rjust(width - len(str(left))))
    rows.append(f"{'':11}{_UNDISTURBED} undisturbed  {_DRILLED} drilled  {_BOTH} both")
    return "\n".join(rows)


def _sign(undisturbed: bool, drilled: bool) -> str:
    if undisturbed and drilled:
        return _BOTH
    return _UNDISTURBED if undisturbed else _DRILLED if drilled else " "
