"""The log tab of a run. The browser fetches windows of the log itself; this module sends only the sizes."""

from __future__ import annotations

import json

from nicegui import ui

from outlast.ui.detail import RunDetail
from outlast.ui.layout import PageView, panel
from outlast.ui.pages.components import Tab


class LogTab(Tab):
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.sizes: tuple[tuple[int, int], ...] = detail.logs
        with panel("Log", classes="ol-log-panel"):
            with ui.element("div").classes("ol-row").style("margin-bottom:8px"):
                ui.element("select").classes("ol-input").props('id=ol-attempt aria-label="Attempt"')
                ui.element("input").classes("ol-input ol-grow").props(
                    'id=ol-log-search data-search type=search placeholder="Search  /" aria-label="Search the log"'
                ).style("max-width:340px")
                with ui.element("button").classes("ol-toggle").props("id=ol-follow type=button aria-pressed=true"):
                    ui.label("Follow")
                ui.element("input").classes("ol-place").props(
                    'id=ol-place type=range min=0 max=1000 value=1000 aria-label="Position in the log"'
                )
                ui.element("span").props("id=ol-log-where role=status").classes("ol-dim ol-num")
            ui.element("div").props('id=ol-hits hidden role=region aria-label="Lines found"').classes("ol-hits")
            with (
                ui.element("div")
                .props('id=ol-log tabindex=0 role=log aria-label="Output" aria-live=off')
                .classes("ol-log")
            ):
                ui.element("div").props("id=ol-lines").classes("ol-lines")
        self._call("open", json.dumps(detail.run), json.dumps(self.sizes))

    def update(self, detail: RunDetail) -> None:
        if detail.logs != self.sizes:
            self.sizes = detail.logs
            self._call("update", json.dumps(self.sizes))

    def _call(self, function: str, *args: str) -> None:
        self.view.client.run_javascript(f"Vue.nextTick(() => outlastLog.{function}({', '.join(args)}))")
