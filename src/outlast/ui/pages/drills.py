"""The list of drills, and the report of one with its curve."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from outlast.drill.findings import Finding, Handover
from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment, money
from outlast.ui.layout import PageView, fact, heading, panel, pill, prose
from outlast.ui.pages.components import Column, FilteredTable, Table, href, not_found
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.drills import TONES, DrillDetail, DrillReader, DrillRow, chart, one_drill

_COLUMNS = (
    Column("run", "Drill", "link"),
    Column("state", "Verdict", "pill"),
    Column("findings", "Findings"),
    Column("preemptions", "Preemptions", right=True),
    Column("recovery", "Recovery time", "formatted", right=True),
    Column("lost", "Work lost", "formatted", right=True),
    Column("saving", "Savings", "formatted", right=True),
    Column("who", "Owner"),
    Column("at", "When", "formatted"),
)


def build(view: PageView) -> None:
    none = "No drills yet. A drill takes a minute, costs nothing, and shows whether a job survives preemptions."
    with panel("Drills", note="rehearsed preemptions"):
        table = FilteredTable(view, "Drills", _COLUMNS, key="run", none=none, command="outlast drill")

    def update(latest: TopicUpdate[tuple[DrillRow, ...]]) -> None:
        table.update(latest, (_cells(row) for row in latest.value or ()))

    follow(view, "drills", lambda: DrillReader(view.workspace), update)


def _cells(row: DrillRow) -> dict[str, Any]:
    findings = ", ".join(f"{count} {verdict}" for verdict, count in row.counts.items())
    return {
        "run": row.run,
        "run_href": href("drills", row.run),
        "state": row.unread if row.problem else "passed" if row.passed else "failed",
        "state_tone": "good" if row.passed else "bad",
        "findings": row.problem or findings,
        "preemptions": row.preemptions,
        "recovery": row.recovery_s,
        "recovery_text": describe_s(row.recovery_s) if row.preemptions else "",
        "lost": row.lost_s,
        "lost_text": describe_s(row.lost_s) if row.preemptions else "",
        "saving": row.saving or 0.0,
        "saving_text": "" if row.saving is None else f"{row.saving:.0%}",
        "who": row.who,
        "at": row.at,
        "at_text": moment(row.at),
    }


async def build_one(view: PageView) -> None:
    """Build the page of one drill. A report never changes, so it is read once."""
    try:
        detail = await view.read(one_drill, view.workspace, view.params["run"])
    except OutlastError as problem:
        not_found(TopicUpdate(problem=problem.message, hint=problem.hint), "drill", "/drills")
        return
    _head(detail)
    with panel("Findings"):
        _findings(detail.findings)
    if detail.curves:
        _curve(view, detail)
    if detail.handovers:
        with panel("Handovers", note="from a preempted attempt to the next"):
            _handovers(detail.handovers)


def _head(detail: DrillDetail) -> None:
    row = detail.row
    failed = row.counts.get("fail", 0)
    with ui.element("section").classes("ol-panel").props('aria-label="Drill"'):
        with ui.element("div").classes("ol-row"):
            heading(row.run, 1)
            pill("passed" if row.passed else "failed", "good" if row.passed else "bad")
            if failed:
                ui.label(f"{failed} check{'' if failed == 1 else 's'} failed").classes("ol-dim")
        with ui.element("div").classes("ol-facts ol-below"):
            fact("Preemptions", str(row.preemptions))
            if row.preemptions:
                fact("Recovery time", describe_s(row.recovery_s))
                fact("Work lost", describe_s(row.lost_s))
            if detail.prices is not None:
                useful = detail.prices.spot_usd_per_useful_hour
                fact(
                    "$/hour of progress",
                    "no progress" if useful is None else money(useful),
                    note="on spot",
                    exact=useful,
                )
                fact("On demand", money(detail.prices.on_demand_usd_per_hour), note=f"{detail.prices.saving:.0%} saved")
            fact("When", moment(row.at), note=row.who)
        with ui.element("div").classes("ol-row ol-below"):
            ui.link("the preempted run", href("run", row.run))
            if row.undisturbed:
                ui.link("the undisturbed run", href("run", row.undisturbed))


def _findings(findings: tuple[Finding, ...]) -> None:
    with ui.element("ul").classes("ol-list"):
        for found in findings:
            with ui.element("li").classes("ol-finding"):
                pill(found.verdict, TONES[found.verdict])
                ui.label(found.question).classes("ol-question")
                with ui.element("div").classes("ol-grow"):
                    ui.label(found.answer)
                    if found.hint and found.verdict != "pass":
                        prose(found.hint).classes("ol-dim")


def _curve(view: PageView, detail: DrillDetail) -> None:
    names = list(detail.curves)
    chosen = view.query.get("curve", "")
    chosen = chosen if chosen in detail.curves else names[0]
    with panel("Curve", note="the preempted run over the undisturbed one" if detail.row.undisturbed else ""):
        if len(names) > 1:
            options = {name: name for name in names}
            select = ui.select(options, value=chosen, on_change=lambda event: choose(event.value))
            select.props('dense outlined aria-label="Metric"').classes("ol-select ol-narrow")
        drawn = ui.echart(chart(detail, chosen)).classes("ol-chart").props('role=img aria-label="Curve"')

    def choose(name: str) -> None:
        drawn.options.clear()
        drawn.options.update(chart(detail, name))
        drawn.update()
        view.remember(curve=name)


def _handovers(handovers: tuple[Handover, ...]) -> None:
    columns = (
        Column("attempt", "Attempt", right=True),
        Column("moment", "Preempted"),
        Column("notice", "Notice"),
        Column("last", "Last step", right=True),
        Column("kept", "Saved step", right=True),
        Column("first", "Resumed at", right=True),
        Column("lost", "Work lost", "formatted", right=True),
        Column("recovery", "Recovery time", "formatted", right=True),
        Column("leave", "Shutdown time"),
    )
    table = Table("Handovers", columns, key="attempt")
    table.fill(
        {
            "attempt": one.attempt,
            "moment": one.moment,
            "notice": "yes" if one.notice else "no",
            "last": one.last_step,
            "kept": one.committed_step,
            "first": one.first_step,
            "lost": one.lost_s,
            "lost_text": describe_s(one.lost_s),
            "recovery": one.recovery_s,
            "recovery_text": describe_s(one.recovery_s),
            "leave": "" if one.leave_s is None else describe_s(one.leave_s),
        }
        for one in handovers
    )
