"""Elements of several pages: tables that keep their sort order, bars, and problem notes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from nicegui import ui

from outlast.formatting.quantities import money as exact_money
from outlast.ui.detail import RunDetail
from outlast.ui.format import money
from outlast.ui.layout import PageView, empty, prose
from outlast.ui.topics import TopicUpdate

# The rendering of a cell. The row has NAME_href for a `link`, NAME_tone for a `pill`, and NAME_text for `formatted`,
# which sorts numerically and shows text; NAME_exact is its title.
Rendering = Literal["text", "link", "pill", "formatted", "bar", "mono"]

# Constant templates: Vue inserts the values as text.
_INNER: dict[Rendering, str] = {
    "link": """<a v-if="props.row.NAME_href" :href="props.row.NAME_href">{{ props.value }}</a>
<span v-else>{{ props.value }}</span>""",
    "pill": """<span :class="'ol-pill ol-' + props.row.NAME_tone">{{ props.value }}</span>""",
    "formatted": """<span :title="props.row.NAME_exact">{{ props.row.NAME_text }}</span>""",
    "mono": """<span class="ol-mono ol-clip" :title="props.value">{{ props.value }}</span>""",
    "bar": """<div class="ol-cell-bar"><div class="ol-bar"><div
:style="{width: Math.min(100, 100 * props.value) + '%'}"></div></div><span>{{ props.row.NAME_text }}</span></div>""",
}


def amount(name: str, usd: float, *, estimated: bool = False) -> dict[str, Any]:
    """Return the values of a `formatted` cell with an amount of money."""
    exact = f"about {exact_money(usd)}" if estimated else exact_money(usd)
    return {name: usd, f"{name}_text": money(usd, estimated=estimated), f"{name}_exact": exact}


def _slot(column: Column) -> str:
    return f'<q-td :props="props">{_INNER[column.rendering].replace("NAME", column.name)}</q-td>'


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    label: str
    rendering: Rendering = "text"
    right: bool = False

    def definition(self) -> dict[str, Any]:
        align = "right" if self.right else "left"
        return {"name": self.name, "label": self.label, "field": self.name, "align": align, "sortable": True}


class Tab(ABC):
    """One tab of a run's page."""

    @abstractmethod
    def update(self, detail: RunDetail) -> None:
        """Show the new state: called after every change while the tab is open."""

    def leave(self) -> None:  # noqa: B027  most tabs hold no resources
        """Release resources: another tab is opened."""


class Table:
    """A table that is created once and refilled; the viewer's sort order stays."""

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
                columns=[column.definition() for column in columns], rows=[], row_key=key, pagination=pagination
            )
        self.element.props(f'flat dense aria-label="{title}"').classes("ol-qtable")
        for column in columns:
            if column.rendering in _INNER:
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
        """Hide the pagination if all rows fit on one page."""
        if count <= self.rows_shown:
            self.element.props("hide-bottom")
        else:
            self.element.props(remove="hide-bottom")


def search(view: PageView, table: Table, title: str) -> None:
    """Create a field that filters a table, stored in the URL."""
    given = view.query.get("q", "")
    table.element.filter = given

    def typed(text: str) -> None:
        table.element.filter = text
        view.remember(q=text)

    field = ui.input(value=given, placeholder="Filter  /", on_change=lambda event: typed(event.value or ""))
    field.props(f'dense outlined type=search data-search aria-label="{title}"').classes("ol-search")


class Placeholder:
    """A message while data loads, and a note when loading fails."""

    def __init__(self, waiting: str) -> None:
        self.problem_note = ui.element("div")
        self.problem_note.set_visibility(False)
        with ui.element("div") as self.waiting:
            ui.label(f"{waiting} …").classes("ol-dim").props("role=status")

    def show(self, latest: TopicUpdate[Any]) -> bool:
        """Show the problem, if any. Return whether there is a value to show; an earlier value stays."""
        self.waiting.set_visibility(False)
        self.problem_note.clear()
        self.problem_note.set_visibility(bool(latest.problem))
        if latest.problem:
            with self.problem_note:
                problem_note(latest.problem, latest.hint, old=latest.value is not None)
        return latest.value is not None


class FilteredTable:
    """A table with a filter; without rows a message with the command that creates some; before that a placeholder."""

    def __init__(
        self, view: PageView, title: str, columns: Sequence[Column], *, key: str, none: str, command: str = ""
    ) -> None:
        items = title.lower()
        self.placeholder = Placeholder(f"loading {items}")
        with ui.element("div") as self.content:
            above = ui.element("div").classes("ol-row ol-above")
            self.table = Table(title, columns, key=key)
            with above:
                search(view, self.table, f"Filter {items}")
        with ui.element("div") as self.none:
            empty(none, command)
        self.content.set_visibility(False)
        self.none.set_visibility(False)

    def update(self, latest: TopicUpdate[Any], rows: Iterable[dict[str, Any]]) -> None:
        """Show the rows; they are not evaluated without a value."""
        if not self.placeholder.show(latest):
            return
        found = list(rows)
        self.content.set_visibility(bool(found))
        self.none.set_visibility(not found)
        self.table.fill(found)


def problem_note(message: str, hint: str = "", *, old: bool = False) -> None:
    """Show why something could not be read."""
    with ui.element("div").classes("ol-note ol-bad-note").props("role=alert"):
        prose(message + (" The data shown is older." if old else ""))
        if hint:
            with ui.element("div").classes("ol-dim"):
                prose(hint)


def warning(message: str) -> None:
    with ui.element("div").classes("ol-note"):
        prose(message)


def not_found(latest: TopicUpdate[Any], kind: str, back: str) -> None:
    """Show that the target of a link does not exist."""
    empty(latest.problem or f"This {kind} does not exist.", latest.hint)
    with ui.element("div").style("text-align:center"):
        ui.link("Back to the list", back)


def bar(label: str, part: float, text: str, tone: str = "") -> None:
    """Create a bar with a label and a text."""
    with ui.element("div").classes("ol-gauge"):
        ui.label(label).classes("ol-dim")
        with ui.element("div").classes(f"ol-bar {tone}").props("aria-hidden=true"):
            ui.element("div").style(f"width:{100 * max(0.0, min(1.0, part)):.1f}%")
        ui.label(text).classes("ol-num")


def href(*parts: str) -> str:
    """Return a URL path from arbitrary names."""
    return "/" + "/".join(quote(part, safe="") for part in parts)


def code(text: str, *, label: str) -> ui.element:
    """Create a preformatted text that can be scrolled with the keyboard."""
    box = ui.element("pre").classes("ol-pre").props("tabindex=0")
    box.props["aria-label"] = label
    with box:
        ui.label(text).classes("ol-pre-text")
    return box
