"""The page that compares runs: differences of parameters, metrics and cost, and their curves."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from outlast.app.comparison import Compared, compare_runs
from outlast.errors import OutlastError
from outlast.ui.files import checked_name
from outlast.ui.format import describe_s, money
from outlast.ui.layout import PageView, empty, heading, panel, prose
from outlast.ui.pages.components import href
from outlast.ui.pages.run_metrics import MetricsTab
from outlast.ui.views.comparison import ComparedRow, comparison_rows

_RUNS_MAX = 8


async def build(view: PageView) -> None:
    names = list(dict.fromkeys(name for name in view.query.get("runs", "").split(",") if name))[:_RUNS_MAX]
    heading("Compare runs", 1)
    try:
        for name in names:
            checked_name(name)
        found = await view.read(compare_runs, view.workspace, names)
    except OutlastError as problem:
        empty(problem.message, problem.hint.strip("`") if problem.hint.startswith("`") else "")
        ui.link("All runs", "/")
        return
    with panel("Differences", note="values that differ are bold"):
        _table(found.runs, comparison_rows(found.runs))
        for run, change in found.code.items():
            if change.files:
                with ui.element("div").classes("ol-below ol-dim"):
                    prose(f"code of `{run}`: {len(change.files)} files differ from `{found.runs[0].run}`")
    first, others = found.runs[0].run, [one.run for one in found.runs[1:]]
    watch, _ = view.feed.watching(first)
    await view.read(watch.refresh)
    view.query = {**view.query, "with": ",".join(others)}
    tab = MetricsTab(view, watch.detail)
    view.client.on_delete(view.feed.follow(watch, tab.update))


def _table(runs: tuple[Compared, ...], rows: list[ComparedRow]) -> None:
    with ui.element("div").classes("ol-scroll"), ui.element("table").classes("ol-table").props("tabindex=0"):
        with ui.element("thead"), ui.element("tr"):
            with ui.element("th").props("scope=col"):
                ui.label("run").classes("ol-inline")
            for run in runs:
                with ui.element("th").props("scope=col"):
                    ui.link(run.run, href("run", run.run))
        with ui.element("tbody"):
            with ui.element("tr"):
                _cell("th", "state")
                for run in runs:
                    _cell("td", run.state)
            for row in rows:
                with ui.element("tr"):
                    _cell("th", row.name)
                    for value in row.values:
                        _cell("td", value, strong=row.differs)
            with ui.element("tr"):
                _cell("th", "duration, cost")
                for run in runs:
                    _cell("td", f"{describe_s(run.seconds)}, {money(run.cost_usd)}")
    with ui.element("div").classes("ol-below"):
        ui.link("Outputs as zip", f"/api/outputs.zip?runs={quote(','.join(one.run for one in runs))}")


def _cell(tag: str, text: str, *, strong: bool = False) -> None:
    with ui.element(tag).classes("ol-strong" if strong else "") as cell:
        if tag == "th":
            cell.props("scope=row")
        ui.label(text).classes("ol-inline")
