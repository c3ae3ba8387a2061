"""Limits as bars with the used fraction."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.app.limit_usage import LimitUsage
from outlast.ui.format import money

_NEAR = 0.8


class Gauge(msgspec.Struct, frozen=True, kw_only=True):
    # "a day", "a month" or "in total".
    period: str
    percent: float
    tone: str
    text: str


def gauges(standings: Iterable[LimitUsage], *periods: str) -> tuple[Gauge, ...]:
    """Return a bar for each limit of these periods, in money and in hours."""
    found = []
    for one in standings:
        limits = one.limits
        if limits.per not in periods:
            continue
        whose = "" if not limits.who else f" by {limits.who}"
        if limits.cost_usd:
            text = f"{money(one.used_usd)} of {money(limits.cost_usd)}{whose}"
            found.append(_gauge(limits.per, one.used_usd / limits.cost_usd, text))
        if limits.max_hours:
            text = f"{one.used_hours:.3g} of {limits.max_hours:g} machine hours{whose}"
            found.append(_gauge(limits.per, one.used_hours / limits.max_hours, text))
    return tuple(found)


def _gauge(per: str, part: float, text: str) -> Gauge:
    period = "in total" if per == "total" else f"a {per}"
    tone = "ol-over" if part >= 1 else "ol-near" if part >= _NEAR else ""
    return Gauge(period=period, percent=round(100 * min(1.0, part), 1), tone=tone, text=text)
