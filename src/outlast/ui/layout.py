"""What every page has around it: the way to the others, how the reading goes, light and dark, keys. And the few parts
that pages are made of, so that they look alike. Text is always text: nothing here takes markup."""

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
from outlast.ui.feed import Feed, FeedState, Status
from outlast.ui.format import clock
from outlast.workspace import Workspace

T = TypeVar("T")

# How long a page may be read for before it is shown. A run with a million points takes seconds, and so does every page
# of a computer that trains; the library would give an error after three.
_BUILD_S = 60.0


@dataclass(frozen=True, slots=True)
class PageInfo:
    """`path` may have `{names}`, which come as `view.params`."""

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
        """Call this with what there is whenever it changes, for as long as the page is open. Elements may be made in
        it: it is called where the page was built."""
        self._live.append(viewer)

    def remember(self, **values: str) -> None:
        """Into the address, so that a copied link shows the same; an empty value is left out."""
        self.query.update(values)
        self.client.run_javascript(f"outlast.remember({_json({k: v for k, v in self.query.items() if v})})")

    async def read(self, work: Callable[..., T], *args: Any) -> T:
        """Something that blocks, in a thread."""
        return await asyncio.get_running_loop().run_in_executor(None, lambda: work(*args))

    def connect(self) -> None:
        """Once the browser is there: subscribe, and leave when it does."""
        slot = self.client.content

        def tell(sight: FeedState) -> None:
            if self.client.is_deleted:
                return
            with slot:
                for viewer in self._live:
                    viewer(sight)

        self.client.on_delete(self.feed.subscribe(tell))


def register(pages: Sequence[PageInfo], feed: Feed) -> None:
    """Tell the library of all pages."""
    for page in pages:
        made = ui.page(page.path, title=f"{page.title} · outlast", response_timeout=_BUILD_S)
        made(_shown(page, pages, feed))


def _shown(page: PageInfo, pages: Sequence[PageInfo], feed: Feed) -> Callable[[Request], Awaitable[None]]:
    async def show(request: Request) -> None:
        client = ui.context.client
        view = PageView(feed, client, dict(request.path_params), dict(request.query_params), request.url.path)
        _header(page, pages, view)
        with ui.element("main").classes("ol-main").props("id=main tabindex=-1"):
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
        ui.link("Skip to the content", "#main").classes("ol-skip")
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
                told = ui.label("reading")
            tool("contrast", "Light, dark, or as your system has it", "outlast.theme()")
            tool("keyboard", "Keys", "outlast.help()")
    with ui.element("div").classes("ol-banner").props("role=alert") as banner:
        argv, hint = ui.label(), ui.label().classes("ol-dim")
    banner.set_visibility(False)
    with ui.element("div").classes("ol-banner ol-gone").props("role=alert id=ol-gone"):
        ui.label("The page's server does not answer. What you see is from then; it is tried again.")
        ui.label("If it was stopped: `outlast ui` starts it, and prints a new link.").classes("ol-dim")

    def tell(sight: FeedState) -> None:
        status = sight.status
        live.props(f"data-condition={status.condition}")
        told.set_text(_condition(status))
        banner.set_visibility(status.condition in ("offline", "error"))
        argv.set_text(_trouble(status, view.workspace.url))
        hint.set_text(status.hint)

    view.watch(tell)


def _condition(status: Status) -> str:
    if status.condition == "loading":
        return "reading"
    return status.condition


def _trouble(status: Status, url: str) -> str:
    if status.condition == "offline":
        return f"{url} does not answer since {clock(status.since)}; what you see is from before. {status.message}"
    if status.condition == "error":
        return f"{url} cannot be read since {clock(status.since)}: {status.message}"
    return ""


def _help(pages: Sequence[PageInfo]) -> None:
    keys = [
        ("/", "search or filter"),
        ("?", "these keys"),
        ("t", "light, dark, as the system"),
        ("1 … 6", "parts of a run"),
        ("Esc", "close"),
    ]
    keys += [(f"g {page.key}", page.title.lower()) for page in pages if page.key]
    with ui.element("dialog").classes("ol-help").props('id=ol-help aria-label="Keys"'):
        ui.label("Keys").classes("ol-h2")
        with ui.element("dl"):
            for key, meaning in keys:
                with ui.element("dt"), ui.element("kbd").classes("ol-kbd"):
                    ui.label(key)
                with ui.element("dd"):
                    ui.label(meaning)
        ui.label(f"outlast {__version__}").classes("ol-dim")


def tool(icon: str, name: str, handler: str) -> None:
    """A small round button whose work is done in the browser."""
    ui.button(icon=icon, color=None).props(f'flat round dense size=sm aria-label="{name}" title="{name}"').classes(
        "ol-tool"
    ).on("click", js_handler=f"() => {handler}")


# Parts of pages


@contextlib.contextmanager
def panel(title: str, *, note: str = "", classes: str = "") -> Iterator[ui.element]:
    """A titled part of a page."""
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


def pill(text: str, tone: str) -> ui.label:
    """A word in its colour; the word says it, too."""
    return ui.label(text).classes(f"ol-pill ol-{tone}")


def empty(text: str, command: str = "") -> None:
    """Nothing is there: what would be here, and the command that makes some."""
    with ui.element("div").classes("ol-empty"):
        ui.label(text)
        if command:
            with ui.element("code"):
                ui.label(command)


def fact(label: str, value: str, *, note: str = "", classes: str = "") -> None:
    with ui.element("div").classes(f"ol-fact {classes}"):
        ui.label(label).classes("ol-dim")
        ui.label(value).classes("ol-value")
        if note:
            ui.label(note).classes("ol-dim")


def complain(message: str, hint: str = "") -> None:
    """What went wrong with something that was asked, as the commands say it."""
    ui.notify(f"{message}{f' – {hint}' if hint else ''}", type="negative", multi_line=True, close_button="Close")


def _json(value: object) -> str:
    import json

    return json.dumps(value).replace("<", "\\u003c")
