"""The story tab of a run: a timeline, the events, and cost by cause."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from outlast.billing.ledger import CAUSE_LABELS, lines_of, total
from outlast.formatting.event_text import event_text
from outlast.formatting.run_summary import summarize
from outlast.ui.detail import RunDetail
from outlast.ui.format import describe_s, moment, money
from outlast.ui.layout import PageView, empty, fact, panel, prose, titled
from outlast.ui.pages.components import Tab
from outlast.ui.views.timeline import KINDS, Timeline, timeline

_COLOURS = ("#94a3b8", "#2f9e5b", "#d64545", "#e0a02b")
_MARKS = {
    "save": ("checkpoint", "circle", 7, "#3b5bdb"),
    "notice": ("notice", "triangle", 13, "#c27c0e"),
    "warning": ("warning", "diamond", 11, "#c27c0e"),
    "loss": ("lost or preempted", "path://M2 0L5 3L8 0L10 2L7 5L10 8L8 10L5 7L2 10L0 8L3 5L0 2Z", 11, "#b42323"),
    "finish": ("finished", "path://M0 5L2 3L4 5L9 0L11 2L4 9Z", 14, "#1a7f45"),
}
_GREY, _LINE = "#8a93a0", "rgba(128,136,148,.25)"
_CAUSES = {
    "work": "#2f9e5b",
    "lost": "#d64545",
    "boot": "#94a3b8",
    "idle": "#e0a02b",
    "disk": "#7c6fd6",
    "address": "#3b82b8",
    "egress": "#9a5b8f",
}
_REFRESH_S = 2.0


class StoryTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.detail = detail
        self.drawn: Timeline | None = None
        self.chart: ui.echart | None = None
        with panel("Timeline", note="attempts in their zones; drag to zoom"):
            self.place = ui.element("div")
        with ui.element("div").classes("ol-two"):
            with panel("Story"):
                self.story = ui.element("div")
            with panel("Cost by cause"):
                self.cost = ui.element("div")
        self.length = -1
        self.update(detail)
        # Running attempts grow with time.
        ui.timer(_REFRESH_S, self._grow)

    def update(self, detail: RunDetail) -> None:
        changed = detail.state.length != self.length
        self.detail, self.length = detail, detail.state.length
        if changed:
            self._draw()
            self._show_story()
            self._show_cost()

    def _grow(self) -> None:
        if self.detail.state.alive and self.detail.state.attempts:
            self._draw()
            self._show_cost()

    def _draw(self) -> None:
        state = self.detail.state
        if not any(attempt.outcome != "refused" for attempt in state.attempts):
            self.place.clear()
            with self.place:
                empty("No machine yet." if state.alive else "The run never had a machine.")
            return
        drawn = timeline(state, self.detail.events, time.time())
        if self.chart is not None and self.drawn is not None and self.drawn.lanes == drawn.lanes:
            self.chart.options.update(_options(drawn))
            self.chart.update()
        else:
            self.place.clear()
            with self.place:
                self.chart = ui.echart(_options(drawn)).style(f"height:{130 + 40 * len(drawn.lanes)}px")
                self.chart.props["aria-label"] = f"Timeline of {len(state.attempts)} attempts"
                self.chart.props["role"] = "img"
        self.drawn = drawn

    def _show_story(self) -> None:
        begin = self.detail.state.submitted_at
        self.story.clear()
        with self.story, ui.element("ol").classes("ol-list ol-story").props("tabindex=0 aria-label=Story"):
            for since_s, text in event_text(self.detail.events, everything=False):
                with ui.element("li"):
                    ui.label(describe_s(max(0.0, since_s))).classes("ol-dim ol-num ol-when").tooltip(
                        moment(begin + since_s)
                    )
                    prose(text)

    def _show_cost(self) -> None:
        state, now = self.detail.state, time.time()
        whole, sums = total(lines_of(self.detail.run, state, now)), summarize(state, now)
        self.cost.clear()
        with self.cost:
            if not whole.machines:
                empty("No spending.")
                return
            with ui.element("div").classes("ol-stack").props("aria-hidden=true"):
                for cause, usd in whole.causes.items():
                    part = 100 * usd / whole.cost_usd if whole.cost_usd else 0
                    ui.element("div").style(f"width:{part:.2f}%;background:{_CAUSES.get(cause, _GREY)}")
            for cause, usd in whole.causes.items():
                with ui.element("div").classes("ol-cause"):
                    ui.element("span").classes("ol-key").style(f"background:{_CAUSES.get(cause, _GREY)}")
                    ui.label(CAUSE_LABELS.get(cause, cause)).classes("ol-grow")
                    titled(ui.label(money(usd)).classes("ol-num"), usd)
            with ui.element("div").classes("ol-facts").style("margin-top:12px"):
                shown = money(whole.cost_usd, estimated=bool(whole.estimated_usd))
                fact("Total", shown, exact=whole.cost_usd)
                saved = 1 - whole.cost_usd / whole.on_demand_usd if whole.on_demand_usd else 0.0
                fact("On demand", money(whole.on_demand_usd), note=f"{saved:.0%} saved", exact=whole.on_demand_usd)
                fact("Work lost", describe_s(sums.lost_s), note=f"of {describe_s(sums.work_s + sums.lost_s)}")
                if sums.recoveries_s:
                    fact("Recovery time", ", ".join(describe_s(s) for s in sums.recoveries_s[-4:]))


def _options(drawn: Timeline) -> dict[str, Any]:
    series = [*_bars(drawn), _handoffs(drawn), *_marks(drawn)]
    used = [one["name"] for one in series if one["data"]]
    line = {"lineStyle": {"color": _LINE}}
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "grid": {"left": 8, "right": 16, "top": 8, "bottom": 66, "containLabel": True},
        "legend": {
            "bottom": 28,
            "data": used,
            "textStyle": {"color": _GREY},
            "itemHeight": 9,
            "itemWidth": 14,
            "type": "scroll",
        },
        "tooltip": {
            "trigger": "item",
            "renderMode": "richText",
            "confine": True,
            ":formatter": "outlast.timeline.text",
        },
        "dataZoom": [
            {"type": "inside", "filterMode": "none"},
            {
                "type": "slider",
                "height": 14,
                "bottom": 6,
                "filterMode": "none",
                "showDetail": False,
                "showDataShadow": False,
            },
        ],
        "xAxis": {
            "type": "time",
            "min": drawn.begin * 1000,
            "max": drawn.end * 1000,
            "axisLabel": {"color": _GREY, "hideOverlap": True},
            "axisLine": line,
            "splitLine": {"show": True, **line},
        },
        "yAxis": {
            "type": "category",
            "inverse": True,
            "data": list(drawn.lanes),
            "axisLabel": {"color": _GREY},
            "axisTick": {"show": False},
            "axisLine": line,
        },
        "series": series,
    }


def _bars(drawn: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "type": "custom",
            "name": kind,
            ":renderItem": "outlast.timeline.bar",
            "itemStyle": {"color": _COLOURS[number]},
            "encode": {"x": [1, 2], "y": 0},
            "data": [
                [bar.lane, bar.begin * 1000, bar.end * 1000, str(bar.attempt), bar.text]
                for bar in drawn.bars
                if bar.kind == number
            ],
        }
        for number, kind in enumerate(KINDS)
    ]


def _handoffs(drawn: Timeline) -> dict[str, Any]:
    return {
        "type": "custom",
        "name": "handover",
        ":renderItem": "outlast.timeline.handoff",
        "itemStyle": {"color": "#7c6fd6"},
        "encode": {"x": [1, 2], "y": 0},
        "z": 5,
        "data": [
            [one.from_lane, one.from_at * 1000, one.to_at * 1000, one.to_lane, one.text] for one in drawn.handoffs
        ],
    }


def _marks(drawn: Timeline) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "name": name,
            "symbol": symbol,
            "symbolSize": size,
            "itemStyle": {"color": colour, "borderColor": "#fff", "borderWidth": 0.6},
            "data": [[mark.at * 1000, mark.lane, mark.text] for mark in drawn.marks if mark.kind == kind],
            "z": 6,
        }
        for kind, (name, symbol, size, colour) in _MARKS.items()
    ]
