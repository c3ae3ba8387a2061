"""Money over days, as bars in the terminal: a row a day, stacked by what it was paid for. Draws; decides nothing."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Mapping

import click

from outlast.billing.ledger import CAUSES, Sum
from outlast.cli.terminal import money

# Each cause has a sign of its own: colour never carries meaning alone.
SIGNS = {"work": "█", "manual": "▓", "disk": "─", "store": "≡", "boot": "·", "lost": "░", "idle": "▒", "stopped": "="}
_COLOURS = {
    "work": "green",
    "manual": "blue",
    "boot": "bright_black",
    "lost": "red",
    "idle": "yellow",
    "stopped": "red",
}
_DAYS_MAX = 31


def per_day(sums: Mapping[str, Sum], *, width: int = 0) -> str:
    """The last days, those on which nothing was spent included; nothing for a single day."""
    if len(sums) < 2:
        return ""
    days = _days(min(sums), max(sums))[-_DAYS_MAX:]
    most = max((sums[day].cost_usd for day in days if day in sums), default=0.0)
    if most <= 0:
        return ""
    columns = width or max(40, min(100, shutil.get_terminal_size().columns))
    cells = columns - len("2026-11-01  ") - len("  $1234.56")
    rows = [f"{day}  {_bar(sums.get(day), most, cells)}  {_sum(sums.get(day))}".rstrip() for day in days]
    seen = [cause for cause in CAUSES if any(day in sums and cause in sums[day].causes for day in days)]
    legend = "  ".join(f"{SIGNS[cause]} {cause}" for cause in seen)
    return "\n".join([*rows, click.style(legend, dim=True)])


def _days(first: str, last: str) -> list[str]:
    begin, end = datetime.date.fromisoformat(first), datetime.date.fromisoformat(last)
    return [(begin + datetime.timedelta(days=n)).isoformat() for n in range((end - begin).days + 1)]


def _sum(one: Sum | None) -> str:
    return ("~" if one.estimated_usd else "") + money(one.cost_usd) if one else ""


def _bar(one: Sum | None, most: float, cells: int) -> str:
    """As long as the day was dear. Ends are rounded, not lengths: what is little of all is not seen as more."""
    if one is None:
        return " " * cells
    text, at, usd = "", 0, 0.0
    for cause in CAUSES:
        usd += one.causes.get(cause, 0.0)
        end = round(usd / most * cells)
        text += click.style(SIGNS[cause] * (end - at), fg=_COLOURS.get(cause))
        at = max(at, end)
    return text + " " * (cells - at)
