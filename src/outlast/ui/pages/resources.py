"""The page of volumes and databases: size, usage, users and cost."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from outlast.ui.format import moment, money
from outlast.ui.layout import PageView, empty, panel
from outlast.ui.pages.components import Column, Placeholder, Table, amount
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.resources import ResourceReader, ResourceTableRow, ResourceTables

_VOLUMES = (
    Column("name", "Volume"),
    Column("state", "State", "pill"),
    Column("size", "Size", "formatted", right=True),
    Column("used", "Used", "bar"),
    Column("users", "Used by"),
    Column("zone", "Zone"),
    Column("where", "Mount source", "mono"),
    Column("month", "$/month", "formatted", right=True),
    Column("who", "Owner"),
    Column("made", "Created", "formatted"),
    Column("cloud", "Cloud"),
    Column("why", "Remarks"),
)
_DATABASES = (
    Column("name", "Database"),
    Column("state", "State", "pill"),
    Column("engine", "Engine"),
    Column("where", "Address", "mono"),
    Column("allowed", "Allowed"),
    Column("month", "$/month", "formatted", right=True),
    Column("who", "Owner"),
    Column("made", "Created", "formatted"),
    Column("cloud", "Cloud"),
    Column("why", "Remarks"),
)


def build(view: PageView) -> None:
    with panel("Volumes", note="file systems that machines share"):
        place = Placeholder("loading volumes")
        volumes = _ResourceTable("Volumes", _VOLUMES, "No volumes yet.", "outlast volume create NAME --size 100GB")
    with panel("Databases", note="servers that runs share"):
        waiting = Placeholder("loading databases")
        databases = _ResourceTable("Databases", _DATABASES, "No databases yet.", "outlast db create NAME")
    total = ui.label("").classes("ol-dim")

    def update(latest: TopicUpdate[ResourceTables]) -> None:
        waiting.show(TopicUpdate(at=latest.at))
        if not place.show(latest) or latest.value is None:
            return
        volumes.fill([_volume(row) for row in latest.value.volumes])
        databases.fill([_database(row) for row in latest.value.databases])
        cost = latest.value.usd_per_month
        total.set_text(f"Total {money(cost)}/month, independent of use." if cost else "")

    follow(view, "stores", lambda: ResourceReader(view.workspace), update, every_s=1.0, remote_s=15.0)


class _ResourceTable:
    def __init__(self, title: str, columns: tuple[Column, ...], nothing: str, command: str) -> None:
        with ui.element("div") as self.content:
            self.table = Table(title, columns, key="name")
        with ui.element("div") as self.none:
            empty(nothing, command)
        self.content.set_visibility(False)
        self.none.set_visibility(False)

    def fill(self, rows: list[dict[str, Any]]) -> None:
        self.content.set_visibility(bool(rows))
        self.none.set_visibility(not rows)
        self.table.fill(rows)


def _shared(row: ResourceTableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state,
        "state_tone": row.tone,
        "where": row.where,
        **amount("month", row.usd_per_month),
        "who": row.who,
        "made": row.made_at,
        "made_text": moment(row.made_at),
        "cloud": row.cloud,
        "why": row.why,
    }


def _volume(row: ResourceTableRow) -> dict[str, Any]:
    filled = row.filled
    return _shared(row) | {
        "size": row.size_gb,
        "size_text": f"{row.size_gb:g} GB",
        "used": filled or 0.0,
        "used_text": "unknown" if row.used_gb is None else f"{row.used_gb:.3g} GB",
        "users": ", ".join(row.users) or "no run",
        "zone": row.zone,
    }


def _database(row: ResourceTableRow) -> dict[str, Any]:
    version = row.version.partition(" ")[0]
    return _shared(row) | {
        "engine": f"{row.engine} {version}".strip(),
        "allowed": ", ".join(row.allowed) or "machines of its cloud only",
    }
