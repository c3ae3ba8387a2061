"""The system tab: what the attempts of a run use of their machines, over time, and advice."""

from __future__ import annotations

from typing import Any

from nicegui import background_tasks, ui

from outlast.errors import OutlastError
from outlast.formatting.utilisation import advice, usage_text
from outlast.runs.usage import read
from outlast.ui.detail import RunDetail
from outlast.ui.layout import PageView, empty, panel, prose, show_error
from outlast.ui.pages.components import Tab, warning
from outlast.ui.views.system import SystemPlot, system_plots

_PALETTE = ("#3b5bdb", "#e8590c", "#2f9e5b", "#ae3ec9", "#1098ad", "#a07400")
_GREY, _LINE = "#8a93a0", "rgba(128,136,148,.22)"
_REFRESH_S = 5.0


class SystemTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.detail = detail
        self.names: list[str] = []
        self.charts: list[ui.echart] = []
        self.busy = False
        with panel("System", note="CPU, memory, disk, network and GPUs of each attempt"):
            self.summary = ui.element("div")
            self.place = ui.element("div").classes("ol-plots")
        self._show_summary()
        self.timer = ui.timer(_REFRESH_S, self._soon)
        self._soon()

    def update(self, detail: RunDetail) -> None:
        changed = detail.state.length != self.detail.state.length
        self.detail = detail
        if changed:
            self._show_summary()
            self._soon()

    def leave(self) -> None:
        self.timer.cancel()

    def _show_summary(self) -> None:
        state = self.detail.state
        self.summary.clear()
        with self.summary:
            if state.ending:
                for text in advice(state):
                    warning(text)
            with ui.element("ul").classes("ol-list"):
                for attempt in state.attempts:
                    if attempt.usage is not None:
                        with ui.element("li"):
                            prose(f"Attempt {attempt.number}: {usage_text(attempt.usage)}")

    def _soon(self) -> None:
        if not self.detail.state.alive:
            self.timer.deactivate()  # nothing more is written
        if not self.busy:
            self.busy = True
            background_tasks.create(self._draw())

    async def _draw(self) -> None:
        try:
            samples = await self.view.read(read, self.view.workspace.bucket, self.detail.run)
            if not (self.view.client.is_deleted or self.place.is_deleted):
                with self.place:
                    self._show(system_plots(samples))
        except OutlastError as problem:
            if not self.view.client.is_deleted:
                with self.place:
                    show_error(problem.message, problem.hint)
        finally:
            self.busy = False

    def _show(self, plots: list[SystemPlot]) -> None:
        names = [plot.title for plot in plots]
        if names == self.names and names:
            for chart, plot in zip(self.charts, plots, strict=True):
                chart.options.update(_options(plot))
                chart.update()
            return
        self.names, self.charts = names, []
        self.place.clear()
        if not plots:
            empty("No samples yet: the first one follows about a second after the start.")
        for plot in plots:
            with ui.element("section").classes("ol-plot") as section:
                section.props["aria-label"] = plot.title
                with ui.element("h3").classes("ol-h3"):
                    ui.label(plot.title)
                chart = ui.echart(_options(plot)).style("height:220px")
                chart.props["aria-label"] = f"{plot.title}, over time"
                chart.props["role"] = "img"
                self.charts.append(chart)


def _options(plot: SystemPlot) -> dict[str, Any]:
    axis = {
        "axisLabel": {"color": _GREY, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": _LINE}},
        "splitLine": {"lineStyle": {"color": _LINE}},
    }
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "grid": {"left": 4, "right": 18, "top": 30 if len(plot.lines) > 1 else 16, "bottom": 8, "containLabel": True},
        "legend": {"top": 0, "type": "scroll", "textStyle": {"color": _GREY}, "show": len(plot.lines) > 1},
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True, ":valueFormatter": "outlast.value"},
        "xAxis": {"type": "time", **axis},
        "yAxis": {"type": "value", "min": 0, **({"max": plot.top} if plot.top else {}), **axis},
        "series": [
            {
                "type": "line",
                "name": line.name,
                "data": [list(point) for point in line.points],
                "showSymbol": len(line.points) < 40,
                "symbolSize": 4,
                "lineStyle": {"width": 1.6},
                "itemStyle": {"color": _PALETTE[number % len(_PALETTE)]},
            }
            for number, line in enumerate(plot.lines)
        ],
    }
