"""Spending by day, user and cause, compared with on demand, from the ledger's lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from outlast.billing.ledger import CAUSES, DAY_S, WASTE, By, LedgerLine, Sum, after, grouped, total

# Smaller amounts are not shown.
_SEEN_USD = 5e-8
PERIODS = {"today": "Today", "7d": "7 days", "30d": "30 days", "all": "All"}
MEANINGS = {
    "work": "time that became progress",
    "manual": "interactive machines",
    "disk": "disks of running machines",
    "store": "volumes and databases",
    "boot": "from the request to the start of the command",
    "lost": "work after the last checkpoint",
    "idle": "after the end of the command",
    "stopped": "disks of stopped machines",
}
COLOURS = {
    "work": "#0d9488",
    "manual": "#6366f1",
    "disk": "#7c8ea6",
    "store": "#8b5cf6",
    "boot": "#eab308",
    "lost": "#be123c",
    "idle": "#ea580c",
    "stopped": "#78716c",
}


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the spending: of a user, a run, a cloud."""

    name: str
    cost_usd: float
    on_demand_usd: float
    wasted_usd: float
    seconds: float
    goodput: float | None
    estimated: bool
    # It has a page: runs do, machines of users do not.
    is_run: bool = False

    @property
    def saved(self) -> float:
        return 1 - self.cost_usd / self.on_demand_usd if self.on_demand_usd else 0.0


class CauseRow(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    meaning: str
    usd: float
    part: float
    waste: bool


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    whole: Share
    days: dict[str, dict[str, float]]
    # Day → cost on demand.
    on_demand: dict[str, float]
    users: tuple[Share, ...]
    runs: tuple[Share, ...]
    clouds: tuple[Share, ...]
    causes: tuple[CauseRow, ...]
    runs_left: int = 0


def begin_of_period(period: str, now: float) -> float:
    match period:
        case "today":
            return now - now % DAY_S
        case "7d":
            return now - now % DAY_S - 6 * DAY_S
        case "30d":
            return now - now % DAY_S - 29 * DAY_S
        case _:
            return 0.0


def users_of(lines: Iterable[LedgerLine]) -> list[str]:
    return sorted({line.who for line in lines if line.who})


def spending(lines: Sequence[LedgerLine], *, period: str, who: str, now: float, runs_max: int = 50) -> Spending:
    begin = begin_of_period(period, now)
    chosen = [line for line in lines if not who or line.who == who]
    pieces = [piece for line in chosen if (piece := after(line, begin)) is not None]
    days = grouped(pieces, "day")
    names = {piece.name for piece in pieces if piece.kind == "run"}
    runs = [msgspec.structs.replace(share, is_run=share.name in names) for share in _shares(pieces, "run")]
    whole = total(pieces)
    return Spending(
        whole=_share("all", whole),
        days={day: one.causes for day, one in days.items()},
        on_demand={day: one.on_demand_usd for day, one in days.items()},
        users=tuple(_shares(pieces, "user")),
        runs=tuple(runs[:runs_max]),
        runs_left=max(0, len(runs) - runs_max),
        clouds=tuple(_shares(pieces, "cloud")),
        causes=tuple(
            CauseRow(
                cause=cause,
                meaning=MEANINGS[cause],
                usd=whole.causes[cause],
                part=whole.causes[cause] / whole.cost_usd if whole.cost_usd else 0.0,
                waste=cause in WASTE,
            )
            for cause in sorted(whole.causes, key=lambda one: -whole.causes[one])
            if whole.causes[cause] >= _SEEN_USD
        ),
    )


def _shares(lines: Sequence[LedgerLine], by: By) -> list[Share]:
    return [_share(name, one) for name, one in grouped(lines, by).items()]


def _share(name: str, one: Sum) -> Share:
    return Share(
        name=name,
        cost_usd=one.cost_usd,
        on_demand_usd=one.on_demand_usd,
        wasted_usd=one.wasted_usd,
        seconds=one.seconds,
        goodput=one.goodput,
        estimated=one.estimated_usd > 0,
    )


def per_day(spent: Spending) -> dict[str, Any]:
    """Return ECharts options: a bar per day, divided by cause, and the cost on demand."""
    days = list(spent.days)
    causes = [cause for cause in CAUSES if any(cause in day for day in spent.days.values())]
    grey, faint = "rgba(128,138,153,.9)", "rgba(128,138,153,.2)"
    series: list[dict[str, Any]] = [
        {
            "name": cause,
            "type": "bar",
            "stack": "spent",
            "barMaxWidth": 44,
            "itemStyle": {"color": COLOURS[cause]},
            "data": [round(spent.days[day].get(cause, 0.0), 9) for day in days],
        }
        for cause in causes
    ]
    series.append(
        {
            "name": "on demand",
            "type": "line",
            "symbol": "rect",
            "symbolSize": [26, 3],
            "lineStyle": {"type": "dashed", "width": 1, "color": grey},
            "itemStyle": {"color": grey},
            "data": [round(spent.on_demand[day], 9) for day in days],
        }
    )
    return {
        "animation": False,
        "grid": {"left": 72, "right": 16, "top": 40, "bottom": 40},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "axisPointer": {"type": "shadow"}},
        "legend": {"textStyle": {"color": grey}, "top": 4, "type": "scroll"},
        "xAxis": {"type": "category", "data": days, "axisLabel": {"color": grey}},
        "yAxis": {
            "type": "value",
            "axisLabel": {"color": grey, "formatter": "${value}"},
            "splitLine": {"lineStyle": {"color": faint}},
        },
        "series": series,
    }
