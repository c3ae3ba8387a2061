"""The list of images with families and builds, and one image with its recipe and build output."""

from __future__ import annotations

import time
from typing import Any

from nicegui import ui

from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment, money, size
from outlast.ui.layout import PageView, fact, heading, panel, pill, prose
from outlast.ui.pages.components import Column, FilteredTable, amount, code, href, not_found, warning
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.images import FailedBuild, ImageDetail, ImageOverview, ImageReader, ImageTableRow

_COLUMNS = (
    Column("name", "Image", "link"),
    Column("family", "Family"),
    Column("state", "State", "pill"),
    Column("size", "Size", "formatted", right=True),
    Column("age", "Age", "formatted", right=True),
    Column("tests", "Tests", "formatted"),
    Column("took", "Built in", "formatted", right=True),
    Column("cost", "Cost", "formatted", right=True),
    Column("who", "Owner"),
    Column("cloud", "Cloud"),
    Column("note", "Note"),
)


def build(view: PageView) -> None:
    with panel("Images", note="boot images of machines"):
        unreachable = ui.element("div")
        none, command = "No images yet.", "outlast image build"
        table = FilteredTable(view, "Images", _COLUMNS, key="id", none=none, command=command)
    with panel("Failed builds") as failures:
        failed = ui.element("div")
    failures.set_visibility(False)

    def update(latest: TopicUpdate[ImageOverview]) -> None:
        table.update(latest, (_cells(row) for row in latest.value.rows) if latest.value else ())
        if (found := latest.value) is None:
            return
        unreachable.clear()
        with unreachable:
            for cloud, why in found.unreachable.items():
                warning(f"{cloud} is unreachable: {why}")
        failures.set_visibility(bool(found.failed))
        failed.clear()
        with failed, ui.element("ul").classes("ol-list"):
            for one in found.failed:
                _failure(one)

    follow(view, "images", lambda: ImageReader(view.workspace), update, every_s=1.0, remote_s=15.0)


def _cells(row: ImageTableRow) -> dict[str, Any]:
    # Rounded to minutes: otherwise every read would resend the whole table.
    age = max(0.0, time.time() - row.created_at) if row.created_at else 0.0
    age = age if age < 60 else age - age % 60
    return {
        "id": f"{row.cloud} {row.name}",
        "name": row.name,
        "name_href": href("images", row.cloud, row.name),
        "family": row.family,
        "state": row.state,
        "state_tone": row.tone,
        "size": row.bytes,
        "size_text": size(row.bytes) if row.bytes else "",
        "age": age,
        "age_text": describe_s(age) if row.created_at else "",
        "tests": len(row.tests),
        "tests_text": _tests(row),
        "took": row.took_s,
        "took_text": describe_s(row.took_s) if row.took_s else "",
        **(amount("cost", row.cost_usd) if row.took_s else {"cost": 0.0}),
        "who": row.who,
        "cloud": row.cloud,
        "note": row.description,
    }


def _tests(row: ImageTableRow) -> str:
    """Return the number of passed tests: an image with a failed test is never kept."""
    if not row.took_s:
        return ""
    return f"{len(row.tests)} passed" if row.tests else "none"


def _failure(one: FailedBuild) -> None:
    with ui.element("li").classes("ol-finding"):
        pill(one.step or "build", "bad")
        ui.label(one.family or one.digest).classes("ol-question")
        with ui.element("div").classes("ol-grow"):
            prose(one.why)
            prose(" · ".join(word for word in (one.hint, one.who, moment(one.at)) if word)).classes("ol-dim")


async def build_one(view: PageView) -> None:
    try:
        reader = ImageReader(view.workspace)
        found = await view.read(reader.one, view.params["cloud"], view.params["name"])
    except OutlastError as problem:
        not_found(TopicUpdate(problem=problem.message, hint=problem.hint), "image", "/images")
        return
    _head(found)
    if found.recipe or found.script:
        with panel("Recipe", note=found.source):
            with ui.element("dl").classes("ol-terms"):
                for field, value in (("base", found.base), *found.recipe):
                    with ui.element("dt"):
                        ui.label(field)
                    with ui.element("dd"):
                        ui.label(value)
            if found.script:
                code(found.script, label="Script")
    if found.log:
        with panel("Build output"):
            code(found.log, label="Build output")
    if found.scrubbed:
        with panel("Removed before the snapshot"), ui.element("ul").classes("ol-list"):
            for path in found.scrubbed:
                with ui.element("li"):
                    ui.label(path).classes("ol-mono")


def _head(found: ImageDetail) -> None:
    row = found.row
    with ui.element("section").classes("ol-panel").props('aria-label="Image"'):
        with ui.element("div").classes("ol-row"):
            heading(row.name, 1)
            pill(row.state, row.tone)
            if row.family:
                ui.label(f"of {row.family}").classes("ol-dim")
        if row.description:
            ui.label(row.description).classes("ol-dim")
        with ui.element("div").classes("ol-facts ol-below"):
            fact("Cloud", row.cloud)
            if row.bytes:
                fact("Size", size(row.bytes))
            if row.created_at:
                fact("Created", moment(row.created_at))
            if row.took_s:
                fact("Built in", describe_s(row.took_s), note=row.who)
                fact("Cost", money(row.cost_usd), exact=row.cost_usd)
                fact("Tests", _tests(row))
            if row.digest:
                fact("Digest", row.digest)
