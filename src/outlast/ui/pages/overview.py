"""The overview: runs, machines, spending, and the supervisor's next steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from nicegui import ui

from outlast.ui.feed import FeedState
from outlast.ui.format import clock, money
from outlast.ui.layout import PageView, empty, panel, pill, prose, titled
from outlast.ui.overview_data import OverviewData
from outlast.ui.pages.components import href
from outlast.ui.pages.selection import SelectedRuns
from outlast.ui.views.runs import RunTableRow
from outlast.ui.views.spend import Gauge, gauges

_STATES = (("all", "All"), ("active", "Active"), ("waiting", "Waiting"), ("ended", "Ended"), ("failed", "Failed"))

_MACHINES, _FAILURES = 8, 5
_RECENT_S = 86400.0
_NO_ROWS = '<span class="ol-empty">No runs match. <code>outlast run</code> starts one.</span>'


def build(view: PageView) -> None:
    _cards(view)
    _failures(view)
    _runs(view)
    with ui.element("div").classes("ol-two ol-lesser-first"):
        _next(view)
        _machines(view)


def _cards(view: PageView) -> None:
    with ui.element("div").classes("ol-cards"):
        runs, machines, today, month = (_Card(title) for title in ("Runs", "Machines", "Spent today", "This month"))

    def update(snapshot: FeedState) -> None:
        rows = snapshot.rows.values()
        alive = sum(row.alive for row in rows)
        waiting = sum(row.state == "waiting" for row in rows)
        runs.update(f"{alive} active", f"{waiting} waiting, {_count(snapshot)}" if rows else "none yet")
        overview = snapshot.overview
        if not overview.read_at:
            return
        on = [machine for machine in overview.machines if machine.status != "stopped"]
        idle = [machine for machine in overview.machines if machine.idle]
        rate = sum(machine.usd_per_hour for machine in overview.machines)
        stopped = f", {len(idle)} stopped, still billed" if idle else ""
        machines.update(f"{len(on)} running", f"{money(rate)}/hour{stopped}")
        today_gauges, month_gauges = gauges(overview.limits, "day"), gauges(overview.limits, "month", "total")
        today.update(
            money(overview.today_usd), "" if today_gauges else "no daily limit", today_gauges, exact=overview.today_usd
        )
        month.update(
            money(overview.month_usd),
            "" if month_gauges else "no monthly limit",
            month_gauges,
            exact=overview.month_usd,
        )

    view.watch(update)


def _count(snapshot: FeedState) -> str:
    return f"newest {len(snapshot.rows)} shown" if snapshot.status.more else f"{len(snapshot.rows)} in total"


class _Card:
    def __init__(self, title: str) -> None:
        with ui.element("div").classes("ol-card").props(f'role=group aria-label="{title}"'):
            ui.label(title).classes("ol-dim")
            self.value = ui.label("…").classes("ol-value")
            self.note = ui.label("").classes("ol-dim")
            self.bars = ui.element("div")
        self.shown: tuple[Gauge, ...] = ()

    def update(self, value: str, note: str, bars: tuple[Gauge, ...] = (), *, exact: float | None = None) -> None:
        self.value.set_text(value)
        if exact is not None:
            titled(self.value, exact)
        self.note.set_text(note)
        if bars == self.shown:
            return
        self.shown = bars
        self.bars.clear()
        with self.bars:
            for bar in bars:
                with ui.element("div").classes(f"ol-bar {bar.tone}"):
                    ui.element("div").style(f"width:{bar.percent}%")
                ui.label(bar.text).classes("ol-dim")


def _failures(view: PageView) -> None:
    """The failures of the last day, newest first, with their reasons: midnight hides none."""
    with panel("Failed in the last 24 hours") as section:
        place = ui.element("ul").classes("ol-list")
    section.set_visibility(False)
    shown: list[RunTableRow] = []

    def update(snapshot: FeedState) -> None:
        since = time.time() - _RECENT_S
        failed = [row for row in snapshot.rows.values() if row.tone == "bad" and row.ended_at >= since]
        failed.sort(key=lambda row: row.ended_at, reverse=True)
        if failed == shown:
            return
        shown[:] = failed
        section.set_visibility(bool(failed))
        place.clear()
        with place:
            for row in failed[:_FAILURES]:
                with ui.element("li").classes("ol-row"):
                    ui.link(row.run, href("run", row.run))
                    prose(row.why).classes("ol-grow")
                    ui.label(f"{row.user} · {clock(row.ended_at)}".removeprefix(" · ")).classes("ol-dim ol-num")
            if len(failed) > _FAILURES:
                with ui.element("li"):
                    ui.link(f"and {len(failed) - _FAILURES} more", "/?show=failed")

    view.watch(update)


def _next(view: PageView) -> None:
    with panel("Next", note="planned steps of the supervisor"):
        place = ui.element("div").props("aria-live=polite")

    def draw(snapshot: FeedState) -> None:
        overview = snapshot.overview
        with ui.element("ul").classes("ol-list"):
            for step in overview.steps[:20]:
                with ui.element("li").classes("ol-row"):
                    pill(step.kind, "busy" if step.kind in ("place", "launch", "move") else "off")
                    prose(step.text).classes("ol-grow")
            for problem in overview.problems:
                prose(problem)
        if len(overview.steps) > 20:
            ui.label(f"and {len(overview.steps) - 20} more").classes("ol-dim")
        if not overview.steps:
            empty("No planned steps.")
        prose(_supervisor(overview.supervisor)).classes("ol-dim")

    _redraw(view, place, draw, lambda o: [o.steps, o.supervisor, o.problems, o.unreachable])


def _redraw(
    view: PageView,
    place: ui.element,
    draw: Callable[[FeedState], None],
    facts: Callable[[OverviewData], list[object]],
) -> None:
    """Draw `place` again whenever these facts change."""
    shown: list[object] = []

    def update(snapshot: FeedState) -> None:
        now = [*facts(snapshot.overview), bool(snapshot.overview.read_at)]
        if now == shown:
            return
        shown[:] = now
        place.clear()
        with place:
            if snapshot.overview.read_at:
                draw(snapshot)
            else:
                ui.label("loading").classes("ol-dim")

    view.watch(update)


def _supervisor(who: str) -> str:
    if who == "none":
        return "No supervisor is running. If runs wait, start `outlast supervise`."
    return f"Supervised by {who}" if who else ""


def _machines(view: PageView) -> None:
    with panel("Machines", note="on all clouds"):
        place = ui.element("div").classes("ol-scroll")

    def draw(snapshot: FeedState) -> None:
        overview = snapshot.overview
        for cloud, why in overview.unreachable.items():
            prose(f"{cloud} is unreachable: {why}").classes("ol-pill ol-warn").style("white-space:normal")
        if overview.machines:
            _machine_table(snapshot)
        else:
            empty("No machines; nothing is billed.", "outlast machine create NAME")

    _redraw(view, place, draw, lambda o: [o.machines, o.unreachable])


def _machine_table(snapshot: FeedState) -> None:
    machines = sorted(snapshot.overview.machines, key=lambda one: (not one.idle, -one.usd_per_hour, one.name))
    columns = [
        {"name": "name", "label": "Machine", "field": "name", "align": "left"},
        {"name": "status", "label": "Status", "field": "status", "align": "left"},
        {"name": "where", "label": "Location", "field": "where", "align": "left"},
        {"name": "whose", "label": "Owner", "field": "whose", "align": "left"},
        {"name": "price", "label": "$/hour", "field": "price", "align": "right"},
        {"name": "cost", "label": "Cost", "field": "cost", "align": "right"},
    ]
    rows = [
        {
            "name": one.name,
            "status": "stopped, still billed" if one.idle else one.status,
            "where": f"{one.zone} {one.type}{'' if one.spot else ' on demand'}",
            "whose": one.whose,
            "price": money(one.usd_per_hour),
            "cost": money(one.cost_usd),
        }
        for one in machines
    ]
    few = len(rows) <= _MACHINES
    table = ui.table(columns=columns, rows=rows, row_key="name", pagination=0 if few else _MACHINES)
    table.props(f'flat dense aria-label="Machines"{" hide-bottom" if few else ""}').classes("ol-qtable")


def _column(name: str, title: str, **more: Any) -> dict[str, Any]:
    return {"colId": name, "field": name, "headerName": title, "sortable": True, "resizable": True, **more}


def _columns() -> list[dict[str, Any]]:
    right = {"type": "rightAligned"}

    def drawn(how: str) -> dict[str, str]:
        return {":cellRenderer": f"outlast.cell.{how}"}

    def formatted(value: str, formatter: str) -> dict[str, str]:
        return {":valueGetter": f"p => {value}", ":valueFormatter": formatter, **right}

    return [
        _column("alive", "Active", hide=True, sort="desc", sortIndex=0),
        _column("submitted_at", "Submitted", hide=True, sort="desc", sortIndex=1),
        _column("run", "Run", minWidth=150, flex=2, **drawn("run")),
        _column("state", "State", minWidth=112, width=118, **drawn("state")),
        _column(
            "why", "Why", minWidth=120, flex=3, **{":valueGetter": "p => p.data.why || p.data.note"}, **drawn("why")
        ),
        _column("step", "Progress", minWidth=90, width=150, **drawn("progress")),
        _column("attempts", "Attempts", width=96, **{":valueFormatter": "p => p.value || ''"}, **right),
        _column("where", "Location", minWidth=120, flex=2, **drawn("where")),
        _column("user", "Owner", width=90),
        _column("price", "$/hour", width=95, **drawn("money"), **right),
        _column(
            "spent", "Spent", width=90, **{":valueGetter": "p => outlast.spent(p.data)"}, **drawn("money"), **right
        ),
        _column("age", "Duration", width=96, **formatted("outlast.age(p.data)", "p => outlast.span(p.value)")),
    ]


def _runs(view: PageView) -> None:
    with panel("Runs"):
        with ui.element("div").classes("ol-row").style("margin-bottom:10px"):
            ui.element("input").classes("ol-input").props(
                'id=ol-filter data-search type=search placeholder="Filter  /   lr>0.01 state:failed" '
                'aria-label="Filter runs"'
            )
            with ui.element("div").classes("ol-chips").props('role=group aria-label="State"'):
                for name, title in _STATES:
                    button = ui.element("button").props(f"type=button data-show={name} aria-pressed=false")
                    with button.on("click", js_handler=f"() => outlast.runs.choose('{name}')"):
                        ui.label(title)
            for menu in ("Columns", "Views"):
                with ui.element("details").classes("ol-menu").props(f"id=ol-{menu.lower()}-menu"):
                    with ui.element("summary").classes("ol-toggle"):
                        ui.label(menu)
                    ui.element("div").props(f"id=ol-{menu.lower()}").classes("ol-menu-body")
            with (
                ui.element("button")
                .classes("ol-toggle")
                .props('type=button title="The shown columns and rows as a file"')
                .on("click", js_handler="() => outlast.runs.csv()")
            ):
                ui.label("CSV")
            ui.element("span").props("id=ol-count role=status").classes("ol-dim")
        selected = SelectedRuns(view)
        grid = (
            ui.aggrid(
                {
                    "columnDefs": _columns(),
                    ":getRowId": "p => p.data.key || p.data.run",
                    ":onGridReady": "p => outlast.runs.ready(p)",
                    ":onCellKeyDown": "p => outlast.runs.key(p)",
                    ":onRowDoubleClicked": "p => outlast.runs.open(p)",
                    ":onModelUpdated": "() => outlast.runs.count()",
                    ":onRowDataUpdated": "() => outlast.runs.refilter()",
                    ":isExternalFilterPresent": "() => true",
                    ":postSortRows": "p => outlast.runs.fold(p.nodes)",
                    ":doesExternalFilterPass": "n => outlast.runs.passes(n)",
                    "rowSelection": {"mode": "multiRow", "enableClickSelection": False},
                    "selectionColumnDef": {"width": 44, "minWidth": 44, "maxWidth": 44, "resizable": False},
                    "rowData": [],
                    "loading": True,
                    "rowHeight": 36,
                    "headerHeight": 36,
                    "suppressCellFocus": False,
                    "overlayNoRowsTemplate": _NO_ROWS,
                },
                auto_size_columns=False,
            )
            .classes("ol-grid")
            .props('aria-label="Runs"')
        )
        selected.grid = grid
        more = ui.button("Show more ended runs", on_click=view.feed.more, color=None)
        more.props("outline no-caps dense").classes("ol-button").style("margin-top:10px")

        def update(snapshot: FeedState) -> None:
            more.set_visibility(snapshot.status.more)

        view.watch(update)
    _keep_filled(view, grid)


def _keep_filled(view: PageView, grid: ui.aggrid) -> None:
    """Send only the rows that changed since the last update."""
    had: set[str] = set()
    sent = [0]

    def update(snapshot: FeedState) -> None:
        fresh = view.feed.changed_since(sent[0])
        sent[0] = snapshot.number
        if snapshot.status.condition != "loading" or had:
            grid.run_grid_method("setGridOption", "loading", False)
        gone = had - snapshot.shown.keys()
        if not fresh and not gone:
            return
        parts = {
            "add": [msgspec.to_builtins(row) for row in fresh if row.id not in had],
            "update": [msgspec.to_builtins(row) for row in fresh if row.id in had],
        }
        if gone:
            parts["remove"] = [{"key": key} for key in gone]
            had.difference_update(gone)
        had.update(row.id for row in fresh)
        grid.run_grid_method("applyTransaction", parts)

    view.watch(update)
