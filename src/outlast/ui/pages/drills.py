"""Drills: the list, and the report of one with its curve."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from outlast.drill.findings import Finding, Handover
from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment, money
from outlast.ui.layout import PageView, fact, heading, panel, pill
from outlast.ui.pages.components import Column, Listing, Table, href, not_there
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.drills import TONES, DrillReader, DrillRow, DrillSight, chart, one_drill

_COLUMNS = (
    Column("run", "Drill", "link"),
    Column("state", "Verdict", "pill"),
    Column("findings", "Findings"),
    Column("preemptions", "Preemptions", right=True),
    Column("recovery", "To recover", "told", right=True),
    Column("lost", "Work lost", "told", right=True),
    Column("saving", "Saves", "told", right=True),
    Column("who", "User"),
    Column("at", "When", "told"),
)


def build(view: PageView) -> None:
    none = "No drill yet. One takes a minute, costs nothing, and says what would not survive."
    with panel("Drills", note="rehearsals: would it survive?"):
        listing = Listing(view, "Drills", _COLUMNS, key="run", none=none, command="outlast drill")

    def tell(told: TopicUpdate[tuple[DrillRow, ...]]) -> None:
        listing.tell(told, (_cells(row) for row in told.value or ()))

    follow(view, "drills", lambda: DrillReader(view.workspace), tell)


def _cells(row: DrillRow) -> dict[str, Any]:
    told = ", ".join(f"{count} {verdict}" for verdict, count in row.counts.items())
    return {
        "run": row.run,
        "run_href": href("drills", row.run),
        "state": row.unread if row.problem else "passed" if row.passed else "failed",
        "state_tone": "good" if row.passed else "bad",
        "findings": row.problem or told,
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
    """A report never changes: it is read once."""
    try:
        sight = await view.read(one_drill, view.workspace, view.params["run"])
    except OutlastError as problem:
        not_there(TopicUpdate(problem=problem.message, hint=problem.hint), "drill", "/drills")
        return
    _head(sight)
    with panel("What it asked"):
        _findings(sight.findings)
    if sight.curves:
        _curve(view, sight)
    if sight.handovers:
        with panel("Handovers", note="from an attempt that was taken away to the next"):
            _handovers(sight.handovers)


def _head(sight: DrillSight) -> None:
    row = sight.row
    failed = row.counts.get("fail", 0)
    with ui.element("section").classes("ol-panel").props('aria-label="Drill"'):
        with ui.element("div").classes("ol-row"):
            heading(row.run, 1)
            pill("passed" if row.passed else "failed", "good" if row.passed else "bad")
            if failed:
                ui.label(f"{failed} thing{'' if failed == 1 else 's'} would not survive").classes("ol-dim")
        with ui.element("div").classes("ol-facts ol-below"):
            fact("Preemptions", str(row.preemptions))
            if row.preemptions:
                fact("To recover", describe_s(row.recovery_s))
                fact("Work lost", describe_s(row.lost_s))
            if sight.prices is not None:
                useful = sight.prices.spot_usd_per_useful_hour
                fact("An hour of progress", "never ends" if useful is None else money(useful), note="on spot")
                fact("On demand", money(sight.prices.on_demand_usd_per_hour), note=f"{sight.prices.saving:.0%} saved")
            fact("When", moment(row.at), note=row.who)
        with ui.element("div").classes("ol-row ol-below"):
            ui.link("the run that was struck", href("run", row.run))
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
                        ui.label(found.hint).classes("ol-dim")


def _curve(view: PageView, sight: DrillSight) -> None:
    names = list(sight.curves)
    chosen = view.query.get("curve", "")
    chosen = chosen if chosen in sight.curves else names[0]
    with panel("Curve", note="the run that was struck over the undisturbed one" if sight.row.undisturbed else ""):
        if len(names) > 1:
            options = {name: name for name in names}
            select = ui.select(options, value=chosen, on_change=lambda event: choose(event.value))
            select.props('dense outlined aria-label="Which number"').classes("ol-select ol-narrow")
        drawn = ui.echart(chart(sight, chosen)).classes("ol-chart").props('role=img aria-label="Curve"')

    def choose(name: str) -> None:
        drawn.options.clear()
        drawn.options.update(chart(sight, name))
        drawn.update()
        view.remember(curve=name)


def _handovers(handovers: tuple[Handover, ...]) -> None:
    columns = (
        Column("attempt", "Attempt", right=True),
        Column("moment", "Struck"),
        Column("notice", "Notice"),
        Column("last", "Last step", right=True),
        Column("kept", "Kept", right=True),
        Column("first", "Went on at", right=True),
        Column("lost", "Work lost", "told", right=True),
        Column("recovery", "To recover", "told", right=True),
        Column("leave", "To leave"),
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
