"""The metrics tab: curves over all attempts of a run, compared with other runs."""

from __future__ import annotations

import bisect
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from nicegui import background_tasks, ui
from nicegui.events import ValueChangeEventArguments

from outlast.errors import OutlastError
from outlast.runs.metrics import Curves
from outlast.runs.state import Attempt
from outlast.ui.detail import RunDetail
from outlast.ui.files import checked_name
from outlast.ui.layout import PageView, empty, panel, show_error
from outlast.ui.pages.components import Tab
from outlast.ui.views.curves import CurveLine, Plot, plots

_PALETTE = ("#3b5bdb", "#e8590c", "#2f9e5b", "#ae3ec9", "#c2255c", "#1098ad", "#a07400", "#6b7280")
_GREY, _LINE = "#8a93a0", "rgba(128,136,148,.22)"
_MARKED = {"preempted": "#c27c0e", "lost": "#d64545", "crashed": "#d64545", "resumed": "#2f9e5b"}
_PLOTS_MAX, _OTHERS_MAX, _CHOICES_MAX = 24, 7, 500


class MetricsTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.detail = detail
        # The drawn state of each run, and functions that end the subscriptions to compared runs.
        self.seen: dict[str, tuple[int, tuple[Attempt, ...]]] = {}
        self.leaves: dict[str, Callable[[], None]] = {}
        self.others = [name for name in view.query.get("with", "").split(",") if name][:_OTHERS_MAX]
        self.log = view.query.get("scale") == "log"
        self.wanted = view.query.get("metric", "")
        self.by_time = view.query.get("x") == "time"
        self.smoothing = _weight(view.query.get("smooth", ""))
        # The metric that has a large chart.
        self.large = view.query.get("large", "")
        self.charts: list[ui.echart] = []
        self.summaries: list[ui.label] = []
        self.shape: list[tuple[str, int]] = []
        self.busy = self.again = False
        with panel("Metrics", note="drag to zoom; marks are preemptions and resumptions"):
            with ui.element("div").classes("ol-row").style("margin-bottom:8px"):
                known = [run for run in view.feed.snapshot.rows if run != detail.run][-_CHOICES_MAX:]
                ui.select(
                    [*dict.fromkeys([*self.others, *reversed(known)])],
                    value=self.others,
                    multiple=True,
                    label="Compare with",
                    with_input=True,
                    on_change=lambda event: self._compare(list(event.value)),
                ).props("dense outlined use-chips options-dense").classes("ol-select")
                find = ui.input(
                    "Metric", value=self.wanted, on_change=lambda event: self._filter(str(event.value or ""))
                )
                find.props("dense outlined clearable data-search").classes("ol-select")
                ui.switch("Log scale", value=self.log, on_change=lambda event: self._scale(bool(event.value)))
                ui.switch("Time", value=self.by_time, on_change=lambda event: self._axis(bool(event.value)))
                with ui.element("label").classes("ol-row"):
                    ui.label("Smoothing").classes("ol-dim")
                    slider = ui.slider(min=0, max=99, step=1, value=round(100 * self.smoothing), on_change=self._smooth)
                    slider.props("aria-label=Smoothing").classes("ol-slider")
                ui.link("CSV", f"/api/metrics/{quote(detail.run, safe='')}").props("download").classes("ol-toggle")
            self.place = ui.element("div").classes("ol-plots")
        view.client.on_delete(self.leave)
        self._notice_change(detail)

    def update(self, detail: RunDetail) -> None:
        self.detail = detail
        self._notice_change(detail)

    def leave(self) -> None:
        for run in list(self.leaves):
            self.leaves.pop(run)()

    def _notice_change(self, detail: RunDetail) -> None:
        news = (detail.metrics, detail.state.attempts)
        if self.seen.get(detail.run) != news:
            self.seen[detail.run] = news
            self._soon()

    def _compare(self, others: list[str]) -> None:
        self.others = others[:_OTHERS_MAX]
        for run in set(self.leaves) - set(self.others):
            self.leaves.pop(run)()
        self.view.remember(**{"with": ",".join(self.others)})
        self._soon()

    def _scale(self, log: bool) -> None:
        self.log = log
        self.view.remember(scale="log" if log else "")
        self.shape = []
        self._soon()

    def _axis(self, by_time: bool) -> None:
        self.by_time = by_time
        self.view.remember(x="time" if by_time else "")
        self.shape = []
        self._soon()

    def _smooth(self, event: ValueChangeEventArguments[Any]) -> None:
        self.smoothing = float(event.value or 0) / 100
        self.view.remember(smooth=str(self.smoothing) if self.smoothing else "")
        self._soon()

    def _enlarge(self, metric: str) -> None:
        self.large = "" if self.large == metric else metric
        self.view.remember(large=self.large)
        self.shape = []
        self._soon()

    def _filter(self, text: str) -> None:
        self.wanted = text
        self.view.remember(metric=text)
        self._soon()

    def _soon(self) -> None:
        """Draw, one at a time; changes in between are drawn afterwards."""
        self.again = True
        if not self.busy:
            self.busy = True
            background_tasks.create(self._draw())

    async def _draw(self) -> None:
        try:
            while self.again:
                self.again = False
                found = await self._curves()
                if self._gone:
                    return
                marks = found[self.detail.run].marks
                with self.place:
                    self._show(plots(found, marks=marks, smoothing=self.smoothing, by_time=self.by_time))
        finally:
            self.busy = False

    @property
    def _gone(self) -> bool:
        return self.view.client.is_deleted or self.place.is_deleted

    async def _curves(self) -> dict[str, Curves]:
        found: dict[str, Curves] = {}
        for run in [self.detail.run, *self.others]:
            try:
                watch, fresh = self.view.feed.watching(checked_name(run))
                if fresh:
                    await self.view.read(watch.refresh)
                if run in self.others and run not in self.leaves and not self._gone:
                    self.leaves[run] = self.view.feed.follow(watch, self._notice_change)
                found[run] = await self.view.read(watch.metrics.curves, watch.detail.state)
            except OutlastError as problem:
                with self.place:
                    show_error(f"{run}: {problem.message}", problem.hint)
        found.setdefault(self.detail.run, Curves({}, ()))
        return found

    def _show(self, found: list[Plot]) -> None:
        shown = [plot for plot in found if self.wanted.casefold() in plot.metric.casefold()][:_PLOTS_MAX]
        shape = [(plot.metric, len(plot.lines)) for plot in shown]
        if shape == self.shape and shape:
            for chart, plot in zip(self.charts, shown, strict=True):
                chart.options.update(_options(plot, log=self.log, by_time=self.by_time))
                chart.update()
            for summary, plot in zip(self.summaries, shown, strict=True):
                summary.set_text(_summary(plot))
            return
        self.shape, self.charts, self.summaries = shape, [], []
        self.place.clear()
        if not shown:
            empty(
                "No metrics match." if found else "No metrics logged yet.",
                "" if found else "run.log(step, loss=…)",
            )
            return
        for plot in shown:
            large = plot.metric == self.large
            with ui.element("section").classes("ol-plot ol-large" if large else "ol-plot") as section:
                section.props["aria-label"] = plot.metric
                with ui.element("div").classes("ol-row"):
                    with ui.element("h3").classes("ol-h3"):
                        ui.label(plot.metric)
                    self.summaries.append(ui.label(_summary(plot)).classes("ol-dim ol-num ol-grow"))
                    self._enlarge_button(plot.metric, large)
                chart = ui.echart(_options(plot, log=self.log, by_time=self.by_time))
                chart.style("height:560px" if large else "height:260px")
                chart.props["aria-label"] = f"{plot.metric}, over steps"
                chart.props["role"] = "img"
                self.charts.append(chart)

    def _enlarge_button(self, metric: str, large: bool) -> None:
        name = f"{'Small' if large else 'Large'} chart of {metric}"
        icon = "close_fullscreen" if large else "open_in_full"
        button = ui.button(icon=icon, on_click=lambda: self._enlarge(metric), color=None)
        button.props("flat round dense size=sm").classes("ol-tool")
        button.props["aria-label"] = button.props["title"] = name


def _weight(text: str) -> float:
    try:
        return min(0.99, max(0.0, float(text or 0)))
    except ValueError:
        return 0.0


def _summary(plot: Plot) -> str:
    """Return last, lowest and highest value; for several runs they are in the legend."""
    if len(plot.lines) != 1 or not plot.lines[0].points:
        return ""
    line = plot.lines[0]
    return f"last {line.last:.4g} · lowest {line.low:.4g} · highest {line.high:.4g}"


def _options(plot: Plot, *, log: bool, by_time: bool = False) -> dict[str, Any]:
    log = log and all(value > 0 for line in plot.lines for _, value in line.points)
    series: list[dict[str, Any]] = [
        {
            "type": "line",
            "name": line.run,
            "data": [list(point) for point in line.points],
            "showSymbol": len(line.points) < 40,
            "symbolSize": 4,
            "lineStyle": {"width": 1.8},
            "itemStyle": {"color": _PALETTE[number % len(_PALETTE)]},
        }
        for number, line in enumerate(plot.lines)
    ]
    if series:
        series[0]["markLine"] = _mark_line(plot)
    many = len(series) > 1
    series += [_not_finite(line) for line in plot.lines if line.not_finite]
    last = json.dumps({line.run: f"{line.run}  {line.last:.4g}" for line in plot.lines})
    legend = {
        ":formatter": f"name => ({last})[name] || name",
        "top": 0,
        "type": "scroll",
        "textStyle": {"color": _GREY},
        "show": many,
    }
    axis = {
        "axisLabel": {"color": _GREY},
        "axisLine": {"lineStyle": {"color": _LINE}},
        "splitLine": {"lineStyle": {"color": _LINE}},
    }
    return {
        "animation": False,
        "backgroundColor": "transparent",
        "grid": {"left": 4, "right": 18, "top": 34 if many else 22, "bottom": 34, "containLabel": True},
        "legend": legend,
        "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True, ":valueFormatter": "outlast.value"},
        "dataZoom": [
            {"type": "inside"},
            {"type": "slider", "height": 12, "bottom": 4, "showDetail": False, "showDataShadow": False},
        ],
        "toolbox": {
            "right": 0,
            "top": -4,
            "itemSize": 13,
            "feature": {"saveAsImage": {"title": "PNG", "name": plot.metric, "pixelRatio": 2}},
        },
        "xAxis": {
            "type": "value",
            "name": "seconds" if by_time else "",
            "nameLocation": "middle",
            "nameGap": 20,
            "min": "dataMin",
            "max": "dataMax",
            **axis,
        },
        "yAxis": {"type": "log" if log else "value", "scale": True, **axis},
        "series": series,
    }


def _not_finite(line: CurveLine) -> dict[str, Any]:
    """Return a mark for each step with NaN or infinity, at the height of the value before it."""
    steps = [step for step, _ in line.points]
    data = []
    for step in line.not_finite:
        before = max(0, bisect.bisect_left(steps, step) - 1)
        data.append([step, line.points[before][1] if line.points else 0.0])
    return {
        "type": "scatter",
        "name": f"{line.run}: NaN",
        "data": data,
        "symbol": "triangle",
        "symbolSize": 9,
        "itemStyle": {"color": _MARKED["lost"]},
        "label": {"show": True, "position": "top", "formatter": "NaN", "color": _MARKED["lost"], "fontSize": 10},
        "tooltip": {"show": False},
    }


def _mark_line(plot: Plot) -> dict[str, Any]:
    named = plot.named_marks()
    data = [
        {
            "xAxis": mark.step,
            "lineStyle": {
                "color": _MARKED.get(mark.kind, _GREY),
                "type": "dashed" if mark.kind != "resumed" else "dotted",
            },
            "label": {
                "formatter": f"{mark.kind} {mark.attempt}" if mark in named else "",
                "color": _GREY,
                "fontSize": 10,
                "align": "right",
            },
        }
        for mark in plot.marks[-60:]
    ]
    return {"symbol": "none", "silent": True, "animation": False, "data": data}
