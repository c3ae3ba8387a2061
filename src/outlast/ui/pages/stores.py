"""Volumes and databases: what there is, how full, who uses it, what it costs."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from outlast.ui.format import moment, money
from outlast.ui.layout import PageView, empty, panel
from outlast.ui.pages.components import Column, Table, TablePlace
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.stores import StoreReader, StoreRow, Stores

_VOLUMES = (
    Column("name", "Volume"),
    Column("state", "State", "pill"),
    Column("size", "Size", "told", right=True),
    Column("used", "Used", "bar"),
    Column("users", "Used by"),
    Column("zone", "From"),
    Column("where", "Mounts", "mono"),
    Column("month", "A month", "told", right=True),
    Column("who", "User"),
    Column("made", "Made", "told"),
    Column("cloud", "Cloud"),
    Column("why", "Remarks"),
)
_DATABASES = (
    Column("name", "Database"),
    Column("state", "State", "pill"),
    Column("engine", "Engine"),
    Column("where", "Address", "mono"),
    Column("allowed", "Allowed"),
    Column("month", "A month", "told", right=True),
    Column("who", "User"),
    Column("made", "Made", "told"),
    Column("cloud", "Cloud"),
    Column("why", "Remarks"),
)


def build(view: PageView) -> None:
    with panel("Volumes", note="file systems that many machines mount at once"):
        place = TablePlace("looking for volumes")
        volumes = _Kind("Volumes", _VOLUMES, "No volume yet.", "outlast volume create NAME --size 100GB")
    with panel("Databases", note="servers that a team shares"):
        waiting = TablePlace("looking for databases")
        databases = _Kind("Databases", _DATABASES, "No database yet.", "outlast db create NAME")
    total = ui.label("").classes("ol-dim")

    def tell(told: TopicUpdate[Stores]) -> None:
        waiting.told(TopicUpdate(at=told.at))
        if not place.told(told) or told.value is None:
            return
        volumes.fill([_volume(row) for row in told.value.volumes])
        databases.fill([_database(row) for row in told.value.databases])
        cost = told.value.usd_per_month
        total.set_text(f"Together {money(cost)} a month, whether they are used or not." if cost else "")

    follow(view, "stores", lambda: StoreReader(view.workspace), tell, every_s=1.0, far_s=15.0)


class _Kind:
    def __init__(self, title: str, columns: tuple[Column, ...], nothing: str, command: str) -> None:
        with ui.element("div") as self.there:
            self.table = Table(title, columns, key="name")
        with ui.element("div") as self.none:
            empty(nothing, command)
        self.there.set_visibility(False)
        self.none.set_visibility(False)

    def fill(self, rows: list[dict[str, Any]]) -> None:
        self.there.set_visibility(bool(rows))
        self.none.set_visibility(not rows)
        self.table.fill(rows)


def _shared(row: StoreRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state,
        "state_tone": row.tone,
        "where": row.where,
        "month": row.usd_per_month,
        "month_text": money(row.usd_per_month),
        "who": row.who,
        "made": row.made_at,
        "made_text": moment(row.made_at),
        "cloud": row.cloud,
        "why": row.why,
    }


def _volume(row: StoreRow) -> dict[str, Any]:
    filled = row.filled
    return _shared(row) | {
        "size": row.size_gb,
        "size_text": f"{row.size_gb:g} GB",
        "used": filled or 0.0,
        "used_text": "not known" if row.used_gb is None else f"{row.used_gb:.3g} GB",
        "users": ", ".join(row.users) or "no run",
        "zone": row.zone,
    }


def _database(row: StoreRow) -> dict[str, Any]:
    version = row.version.partition(" ")[0]
    return _shared(row) | {
        "engine": f"{row.engine} {version}".strip(),
        "allowed": ", ".join(row.allowed) or "only machines of its cloud",
    }
