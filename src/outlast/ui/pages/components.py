"""Parts that several pages are made of: tables that keep their order while they change, bars, what went wrong."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from nicegui import ui

from outlast.ui.detail import Detail
from outlast.ui.layout import PageView, empty
from outlast.ui.topics import TopicUpdate

# How a cell is shown. Beside the value of a `link` the row has NAME_href, of a `pill` NAME_tone, of a `told` NAME_text,
# by which numbers are sorted as numbers and told in words.
How = Literal["text", "link", "pill", "told", "bar", "mono"]

# Constant templates: Vue puts the values in, as text.
_INNER: dict[How, str] = {
    "link": """<a v-if="props.row.NAME_href" :href="props.row.NAME_href">{{ props.value }}</a>
<span v-else>{{ props.value }}</span>""",
    "pill": """<span :class="'ol-pill ol-' + props.row.NAME_tone">{{ props.value }}</span>""",
    "told": """{{ props.row.NAME_text }}""",
    "mono": """<span class="ol-mono ol-clip" :title="props.value">{{ props.value }}</span>""",
    "bar": """<div class="ol-cell-bar"><div class="ol-bar"><div
:style="{width: Math.min(100, 100 * props.value) + '%'}"></div></div><span>{{ props.row.NAME_text }}</span></div>""",
}


def _slot(column: Column) -> str:
    return f'<q-td :props="props">{_INNER[column.how].replace("NAME", column.name)}</q-td>'


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    label: str
    how: How = "text"
    right: bool = False

    def told(self) -> dict[str, Any]:
        align = "right" if self.right else "left"
        return {"name": self.name, "label": self.label, "field": self.name, "align": align, "sortable": True}


class Tab(ABC):
    """One part of a run, as it is shown."""

    @abstractmethod
    def tell(self, detail: Detail) -> None:
        """What it is now: called after every change while this part is shown."""

    def leave(self) -> None:  # noqa: B027  most parts have nothing to give back
        """Another part is shown now."""


class Table:
    """A table that is made once and filled again and again: what the viewer has sorted stays sorted."""

    def __init__(
        self,
        title: str,
        columns: Sequence[Column],
        *,
        key: str,
        rows_shown: int = 25,
        sort: str = "",
        down: bool = False,
    ) -> None:
        self.columns = tuple(columns)
        self.key = key
        pagination: dict[str, Any] = {"rowsPerPage": rows_shown}
        if sort:
            pagination |= {"sortBy": sort, "descending": down}
        with ui.element("div").classes("ol-scroll"):
            self.element = ui.table(
                columns=[column.told() for column in columns], rows=[], row_key=key, pagination=pagination
            )
        self.element.props(f'flat dense aria-label="{title}"').classes("ol-qtable")
        for column in columns:
            if column.how in _INNER:
                self.element.add_slot(f"body-cell-{column.name}", _slot(column))
        self.rows_shown = rows_shown
        self._hide_bottom(0)

    def fill(self, rows: Iterable[dict[str, Any]]) -> None:
        found = list(rows)
        if found == self.element.rows:
            return
        self._hide_bottom(len(found))
        self.element.rows = found
        self.element.update()

    def _hide_bottom(self, count: int) -> None:
        """Where all rows are on one page there is nothing to turn."""
        if count <= self.rows_shown:
            self.element.props("hide-bottom")
        else:
            self.element.props(remove="hide-bottom")


def search(view: PageView, table: Table, title: str) -> None:
    """A field that filters a table, and is part of the address."""
    given = view.query.get("q", "")
    table.element.filter = given

    def typed(text: str) -> None:
        table.element.filter = text
        view.remember(q=text)

    field = ui.input(value=given, placeholder="Filter  /", on_change=lambda event: typed(event.value or ""))
    field.props(f'dense outlined type=search data-search aria-label="{title}"').classes("ol-search")


class TablePlace:
    """A part of a page that is drawn anew when its value changes, and says what it waits for until then."""

    def __init__(self, waiting: str) -> None:
        self.trouble = ui.element("div")
        self.trouble.set_visibility(False)
        with ui.element("div") as self.waiting:
            ui.label(f"{waiting} …").classes("ol-dim").props("role=status")

    def told(self, told: TopicUpdate[Any]) -> bool:
        """Whether there is something to show; what went wrong is told, and what was there before stays."""
        self.waiting.set_visibility(False)
        self.trouble.clear()
        self.trouble.set_visibility(bool(told.problem))
        if told.problem:
            with self.trouble:
                trouble(told.problem, told.hint, old=told.value is not None)
        return told.value is not None


class Listing:
    """A table with a filter above it; or what would be there, and the command that makes some; or what it waits for."""

    def __init__(
        self, view: PageView, title: str, columns: Sequence[Column], *, key: str, none: str, command: str = ""
    ) -> None:
        what = title.lower()
        self.place = TablePlace(f"looking for {what}")
        with ui.element("div") as self.there:
            above = ui.element("div").classes("ol-row ol-above")
            self.table = Table(title, columns, key=key)
            with above:
                search(view, self.table, f"Filter {what}")
        with ui.element("div") as self.none:
            empty(none, command)
        self.there.set_visibility(False)
        self.none.set_visibility(False)

    def tell(self, told: TopicUpdate[Any], rows: Iterable[dict[str, Any]]) -> None:
        """The rows of what is told; they are not looked at if there is nothing."""
        if not self.place.told(told):
            return
        found = list(rows)
        self.there.set_visibility(bool(found))
        self.none.set_visibility(not found)
        self.table.fill(found)


def trouble(message: str, hint: str = "", *, old: bool = False) -> None:
    """What could not be read, in its place on the page."""
    with ui.element("div").classes("ol-note ol-bad-note").props("role=alert"):
        ui.label(message + (" What you see is from before." if old else ""))
        if hint:
            ui.label(hint).classes("ol-dim")


def warning(message: str) -> None:
    with ui.element("div").classes("ol-note"):
        ui.label(message)


def not_there(told: TopicUpdate[Any], what: str, back: str) -> None:
    """A link to something that is not there any more, or never was."""
    empty(told.problem or f"There is no such {what}.", told.hint)
    with ui.element("div").style("text-align:center"):
        ui.link("Back to the list", back)


def bar(label: str, part: float, text: str, tone: str = "") -> None:
    """A labelled bar; the words beside it say what it shows."""
    with ui.element("div").classes("ol-gauge"):
        ui.label(label).classes("ol-dim")
        with ui.element("div").classes(f"ol-bar {tone}").props("aria-hidden=true"):
            ui.element("div").style(f"width:{100 * max(0.0, min(1.0, part)):.1f}%")
        ui.label(text).classes("ol-num")


def href(*parts: str) -> str:
    """A path of this page, from names of any kind."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def code(text: str, *, label: str) -> ui.element:
    """Lines as they are; a box that can be scrolled with keys."""
    box = ui.element("pre").classes("ol-pre").props("tabindex=0")
    box.props["aria-label"] = label
    with box:
        ui.label(text).classes("ol-pre-text")
    return box
