"""The frame of every page: navigation, status, theme and keys; and elements that pages share. Never renders markup."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nicegui import Client, ui
from starlette.requests import Request

from outlast import __version__
from outlast.errors import OutlastError
from outlast.formatting.quantities import money as exact_money
from outlast.ui.feed import Feed, FeedState, Status
from outlast.ui.format import clock
from outlast.workspace import Workspace

T = TypeVar("T")

# The maximum time to build a page. A run with a million points takes seconds, as does every page on a busy computer;
# NiceGUI's default is three seconds.
_BUILD_S = 60.0


@dataclass(frozen=True, slots=True)
class PageInfo:
    """A page. `{names}` in `path` are passed as `view.params`."""

    path: str
    title: str
    key: str
    build: Callable[[PageView], Awaitable[None] | None]


@dataclass(slots=True)
class PageView:
    """One page in one browser."""

    feed: Feed
    client: Client
    params: Mapping[str, str]
    query: dict[str, str]
    path: str
    _live: list[Callable[[FeedState], None]] = field(default_factory=list)

    @property
    def workspace(self) -> Workspace:
        return self.feed.workspace

    def watch(self, viewer: Callable[[FeedState], None]) -> None:
        """Call `viewer` after every change while the page is open. It may create elements."""
        self._live.append(viewer)

    def remember(self, **values: str) -> None:
        """Store values in the URL, so that a copied link shows the same; empty values are omitted."""
        self.query.update(values)
        self.client.run_javascript(f"outlast.remember({_json({k: v for k, v in self.query.items() if v})})")

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Run blocking work in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: work(*args))

    async def load(self, place: ui.element, work: Callable[..., T], *args: Any) -> T | None:
        """Run blocking work in a thread. None after an error, which it shows, or if `place` is deleted."""
        try:
            found = await self.read(work, *args)
        except OutlastError as problem:
            with place:
                show_error(problem.message, problem.hint)
            return None
        return None if place.is_deleted else found

    def connect(self) -> None:
        """Subscribe once the browser has connected, until it leaves."""
        slot = self.client.content

        def update(snapshot: FeedState) -> None:
            if self.client.is_deleted:
                return
            with slot:
                for viewer in self._live:
                    viewer(snapshot)

        self.client.on_delete(self.feed.subscribe(update))


def register(pages: Sequence[PageInfo], feed: Feed) -> None:
    """Register all pages with NiceGUI."""
    for page in pages:
        made = ui.page(page.path, title=f"{page.title} · outlast", response_timeout=_BUILD_S)
        made(_shown(page, pages, feed))


def _shown(page: PageInfo, pages: Sequence[PageInfo], feed: Feed) -> Callable[[Request], Awaitable[None]]:
    async def show(request: Request) -> None:
        client = ui.context.client
        view = PageView(feed, client, dict(request.path_params), dict(request.query_params), request.url.path)
        _header(page, pages, view)
        # The frame of NiceGUI is the page's `main`.
        with ui.element("div").classes("ol-main").props("id=main tabindex=-1"):
            if page.key:  # other pages have the name of what they show as their heading
                with ui.element("h1").classes("ol-hidden"):
                    ui.label(page.title)
            made = page.build(view)
            if inspect.isawaitable(made):
                await made
        _help(pages)
        client.on_connect(_once(view.connect))

    return show


def _once(work: Callable[[], None]) -> Callable[[], None]:
    done: list[bool] = []

    def first() -> None:
        if not done:
            done.append(True)
            work()

    return first


def _header(page: PageInfo, pages: Sequence[PageInfo], view: PageView) -> None:
    with ui.element("header").classes("ol-header").props(f"data-now={time.time():.3f}"):
        ui.link("Skip to content", "#main").classes("ol-skip")
        with ui.link(target="/").classes("ol-logo").props('aria-label="outlast: overview"'):
            ui.element("span").classes("ol-mark").props("aria-hidden=true")
            ui.label("outlast")
        with ui.element("nav").classes("ol-nav").props('aria-label="Pages"'):
            for other in pages:
                if other.key:
                    below = other.path != "/" and page.path.startswith(other.path + "/")
                    here = " aria-current=page" if other is page else " aria-current=true" if below else ""
                    ui.link(other.title, other.path).props(f'data-key="{other.key}"{here}')
        with ui.element("div").classes("ol-tools"):
            live = ui.element("span").classes("ol-live").props("role=status")
            with live:
                ui.element("span").classes("ol-dot").props("aria-hidden=true")
                condition = ui.label("reading")
            tool("contrast", "Theme: light, dark or system", "outlast.theme()")
            tool("keyboard", "Keyboard shortcuts", "outlast.help()")
    with ui.element("div").classes("ol-banner").props("role=alert") as banner:
        message, hint = Prose(""), Prose("ol-dim")
    banner.set_visibility(False)
    with ui.element("div").classes("ol-banner ol-gone").props("role=alert id=ol-gone"):
        with ui.element("div"):
            ui.label("The dashboard's server has not answered since").classes("ol-inline")
            ui.element("span").props("id=ol-gone-since")
            ui.label(". The data shown is old. Reconnecting …").classes("ol-inline")
        ui.label("If the server was stopped, start “outlast ui” again: it prints a new link.").classes(
            "ol-dim ol-gone-first"
        )
        ui.label("The server was restarted. Open the new link that “outlast ui” printed, or log in again.").classes(
            "ol-gone-again"
        )

    def update(snapshot: FeedState) -> None:
        status = snapshot.status
        live.props(f"data-condition={status.condition}")
        condition.set_text(_condition(status))
        banner.set_visibility(status.condition in ("offline", "error"))
        message.update(_problem(status, view.workspace.url))
        hint.update(status.hint)

    view.watch(update)


def _condition(status: Status) -> str:
    if status.condition == "loading":
        return "reading"
    return status.condition


def _problem(status: Status, url: str) -> str:
    if status.condition == "offline":
        return f"{url} has not answered since {clock(status.since)}; the data shown is older. {status.message}"
    if status.condition == "error":
        return f"{url} has been unreadable since {clock(status.since)}: {status.message}"
    return ""


def _help(pages: Sequence[PageInfo]) -> None:
    keys = [
        ("/", "search or filter"),
        ("?", "keyboard shortcuts"),
        ("+ −", "unfold and fold a group in the table"),
        ("t", "theme: light, dark, system"),
        ("1 … 7", "tabs of a run"),
        ("Esc", "close"),
    ]
    keys += [(f"g {page.key}", page.title.lower()) for page in pages if page.key]
    with ui.element("dialog").classes("ol-help").props('id=ol-help aria-label="Keyboard shortcuts"'):
        ui.label("Keyboard shortcuts").classes("ol-h2")
        with ui.element("dl"):
            for key, meaning in keys:
                with ui.element("dt"), ui.element("kbd").classes("ol-kbd"):
                    ui.label(key)
                with ui.element("dd"):
                    ui.label(meaning)
        ui.label(f"outlast {__version__}").classes("ol-dim")


def tool(icon: str, name: str, handler: str) -> None:
    """Create a small round button that runs JavaScript."""
    ui.button(icon=icon, color=None).props(f'flat round dense size=sm aria-label="{name}" title="{name}"').classes(
        "ol-tool"
    ).on("click", js_handler=f"() => {handler}")


# Elements


@contextlib.contextmanager
def panel(title: str, *, note: str = "", classes: str = "") -> Iterator[ui.element]:
    """Create a titled section."""
    with ui.element("section").classes(f"ol-panel {classes}") as section:
        section.props["aria-label"] = title
        with ui.element("div").classes("ol-panel-head"):
            heading(title)
            if note:
                ui.label(note).classes("ol-dim")
        yield section


def heading(text: str, level: int = 2) -> ui.element:
    with ui.element(f"h{level}").classes(f"ol-h{level}") as made:
        ui.label(text)
    return made


def prose(text: str) -> ui.element:
    """Create a text in which `names` between backticks are set as code."""
    with ui.element("span").classes("ol-prose") as made:
        parts = text.split("`")
        for number, part in enumerate(parts):
            if part:
                with ui.element("code" if number % 2 and number < len(parts) - 1 else "span") as element:
                    element.classes("ol-name" if element.tag == "code" else "")
                    ui.label(part).classes("ol-inline")
    return made


class Prose:
    """A text with `names` that may change."""

    def __init__(self, classes: str) -> None:
        self.place = ui.element("div").classes(classes)
        self.text = ""

    def update(self, text: str) -> None:
        if text == self.text:
            return
        self.text = text
        self.place.set_visibility(bool(text))
        self.place.clear()
        with self.place:
            prose(text)


def pill(text: str, tone: str) -> ui.label:
    """Create a coloured label; the text carries the meaning."""
    return ui.label(text).classes(f"ol-pill ol-{tone}")


def empty(text: str, command: str = "") -> None:
    """Create a message for an empty place, with the command that fills it."""
    with ui.element("div").classes("ol-empty"):
        prose(text)
        if command:
            with ui.element("code"):
                ui.label(command)


def fact(label: str, value: str, *, note: str = "", classes: str = "", exact: float | None = None) -> None:
    """Create a figure with its name; `exact` is the amount of money behind a rounded value."""
    with ui.element("div").classes(f"ol-fact {classes}"):
        ui.label(label).classes("ol-dim")
        shown = ui.label(value).classes("ol-value")
        if exact is not None:
            titled(shown, exact)
        if note:
            ui.label(note).classes("ol-dim")


def titled(element: ui.element, usd: float) -> None:
    """Show an exact amount of money on hover."""
    if element.props.get("title") != exact_money(usd):
        element.props["title"] = exact_money(usd)
        element.update()


def show_error(message: str, hint: str = "") -> None:
    """Show an error of an action, with the text of the command line."""
    ui.notify(f"{message}{f' – {hint}' if hint else ''}", type="negative", multi_line=True, close_button="Close")


def _json(value: object) -> str:
    import json

    return json.dumps(value).replace("<", "\\u003c")
