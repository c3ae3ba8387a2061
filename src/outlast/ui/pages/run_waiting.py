"""Why a run waits: prices and refusals by zone, when it is tried next, and what would help."""

from __future__ import annotations

import time

from nicegui import background_tasks, ui

from outlast.app.waiting import WaitingPlace, WaitingReport, waiting_of
from outlast.errors import OutlastError
from outlast.formatting.run_row import status_text
from outlast.ui.detail import RunDetail
from outlast.ui.format import clock, money
from outlast.ui.layout import PageView, panel, prose, titled

# Prices are asked again this often, and after each event of the run.
_EVERY_S = 30.0
_TITLES = ("Zone", "Cheapest machine", "$/hour", "Last time", "Next request")


class WaitingPanel:
    """The panel of a run without a machine; hidden for others."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        self.read_at = 0.0
        self.length = -1
        with panel("Why it waits", classes="ol-waiting") as self.section:
            self.place = ui.element("div")
        self.section.set_visibility(False)

    def update(self, detail: RunDetail) -> None:
        waits = status_text(detail.state) == "waiting"
        self.section.set_visibility(waits)
        stale = time.monotonic() - self.read_at > _EVERY_S
        if waits and (stale or self.length != detail.state.length):
            self.read_at, self.length = time.monotonic(), detail.state.length
            background_tasks.create(self._show(detail.run))

    async def _show(self, run: str) -> None:
        try:
            found: WaitingReport | str = await self.view.read(waiting_of, self.view.feed.workspace, run)
        except OutlastError as problem:
            found = problem.message
        if self.view.client.is_deleted or self.place.is_deleted:
            return
        self.place.clear()
        with self.place:
            if isinstance(found, str):
                prose(found)
            else:
                _report(found)


def _report(found: WaitingReport) -> None:
    waits = found.next_at > time.time()
    prose(f"The next request is due at {clock(found.next_at)}." if waits else "The next request is due now.")
    if found.places:
        with ui.element("div").classes("ol-scroll"), ui.element("table").classes("ol-table").props("tabindex=0"):
            with ui.element("thead"), ui.element("tr"):
                for title in _TITLES:
                    with ui.element("th").props("scope=col"):
                        ui.label(title).classes("ol-inline")
            with ui.element("tbody"):
                for place in found.places:
                    _row(place)
    for text in found.advice:
        with ui.element("div").classes("ol-below"):
            prose(f"What would help: {text}.")


def _row(place: WaitingPlace) -> None:
    with ui.element("tr"):
        _cell(place.zone)
        _cell(place.type if place.spot else f"{place.type} on demand")
        with ui.element("td"):
            titled(ui.label(money(place.price_usd_per_hour)).classes("ol-inline"), place.price_usd_per_hour)
        _cell(f"{place.news}, {clock(place.news_at)}" if place.news else "")
        _cell(clock(place.until) if place.until else "now")


def _cell(text: str) -> None:
    with ui.element("td"):
        ui.label(text).classes("ol-inline")
