"""The page of a run: status, actions, and tabs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from urllib.parse import quote

from nicegui import ui

from outlast.errors import OutlastError
from outlast.formatting.remaining import remaining
from outlast.formatting.run_row import newest_step, spent_usd, status_text, why
from outlast.ui.detail import RunDetail
from outlast.ui.files import checked_name
from outlast.ui.format import TONES, describe_s, money
from outlast.ui.layout import PageView, Prose, empty, heading, panel, pill, titled
from outlast.ui.pages import run_failure, run_files, run_metrics, run_spec, run_story, run_system, run_waiting
from outlast.ui.pages.components import Tab, href
from outlast.ui.pages.run_actions import Actions


class LogTab(Tab):
    """The log. The browser fetches windows of it; the server sends only the sizes."""

    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.sizes: tuple[tuple[int, int], ...] = detail.logs
        with panel("Log", classes="ol-log-panel"):
            with ui.element("div").classes("ol-row").style("margin-bottom:8px"):
                ui.element("select").classes("ol-input").props('id=ol-attempt aria-label="Attempt"')
                ui.element("input").classes("ol-input ol-grow").props(
                    'id=ol-log-search data-search type=search placeholder="Search  /" aria-label="Search the log"'
                ).style("max-width:340px")
                with ui.element("button").classes("ol-toggle").props("id=ol-follow type=button aria-pressed=true"):
                    ui.label("Follow")
                ui.element("input").classes("ol-place").props(
                    'id=ol-place type=range min=0 max=1000 value=1000 aria-label="Position in the log"'
                )
                ui.link("Download", f"/api/log/{quote(detail.run, safe='')}").props("download").classes("ol-toggle")
                ui.element("span").props("id=ol-log-where role=status").classes("ol-dim ol-num")
            ui.element("div").props('id=ol-hits hidden role=region aria-label="Lines found"').classes("ol-hits")
            with (
                ui.element("div")
                .props('id=ol-log tabindex=0 role=log aria-label="Output" aria-live=off')
                .classes("ol-log")
            ):
                ui.element("div").props("id=ol-lines").classes("ol-lines")
        self._call("open", json.dumps(detail.run), json.dumps(self.sizes))

    def update(self, detail: RunDetail) -> None:
        if detail.logs != self.sizes:
            self.sizes = detail.logs
            self._call("update", json.dumps(self.sizes))

    def _call(self, function: str, *args: str) -> None:
        self.view.client.run_javascript(f"Vue.nextTick(() => outlastLog.{function}({', '.join(args)}))")


# Name in the URL → title and class.
TABS: dict[str, tuple[str, Callable[[PageView, RunDetail], Tab]]] = {
    "story": ("Story", run_story.StoryTab),
    "metrics": ("Metrics", run_metrics.MetricsTab),
    "log": ("Log", LogTab),
    "system": ("System", run_system.SystemTab),
    "checkpoints": ("Checkpoints", run_files.CheckpointsTab),
    "outputs": ("Outputs", run_files.OutputsTab),
    "spec": ("Spec and code", run_spec.SpecTab),
}


async def build(view: PageView) -> None:
    name = view.params["name"]
    ui.page_title(f"{name} · outlast")
    try:
        watch, _ = view.feed.watching(checked_name(name))
        await view.read(watch.refresh)
        detail = watch.detail
        problem, hint = detail.problem, detail.hint
    except OutlastError as problem_note:
        problem, hint = problem_note.message, problem_note.hint
    if problem:
        heading(name, 1)
        empty(problem, hint.removeprefix("see ").strip("`") if hint.startswith("see `") else "")
        ui.link("All runs", "/")
        return
    shown = _RunPage(view, detail)
    view.client.on_delete(view.feed.follow(watch, shown.update))


class _RunPage:
    def __init__(self, view: PageView, detail: RunDetail) -> None:
        self.view = view
        self.detail = detail
        self.shown_tags: tuple[str, ...] = ()
        self.shown_parent = ""
        self._head()
        chosen = view.query.get("tab", "")
        self.name = chosen if chosen in TABS else "story"
        tabs = ui.tabs().classes("ol-tabs").props("dense no-caps align=left outside-arrows mobile-arrows")
        with tabs:
            for name, (title, _) in TABS.items():
                ui.tab(name, label=title)
        tabs.set_value(self.name)
        tabs.on_value_change(lambda event: self._choose(str(event.value)))
        self.place = ui.element("div").classes("ol-tab")
        self._update_head(detail)
        self.tab = self._build()

    def _head(self) -> None:
        with ui.element("div").classes("ol-run-head"):
            with ui.element("div").classes("ol-grow"):
                with ui.element("div").classes("ol-row"):
                    heading(self.detail.run, 1)
                    self.state = pill("", "off").props("role=status")
                self.parent = ui.element("div").classes("ol-row")
                self.tags = ui.element("div").classes("ol-row")
                self.note = Prose("ol-run-note")
                self.why, self.hint = Prose("ol-why"), Prose("ol-dim")
            self.actions = Actions(self.view, self.detail)
        with ui.element("div").classes("ol-panel ol-facts"):
            self.facts = {
                title: _Fact(title) for title in ("Attempt", "Location", "$/hour", "Step", "Preemptions", "Left")
            }
            self.spent, self.age = _Ticking("Spent"), _Ticking("Duration")
        self.failure = run_failure.Failure(self.view)
        self.waiting = run_waiting.WaitingPanel(self.view)

    def _update_head(self, detail: RunDetail) -> None:
        state, request = detail.state, detail.request
        status = status_text(state)
        self.state.set_text(status)
        self.state.classes(replace=f"ol-pill ol-{TONES.get(status, 'off')}")
        self._show_note(detail)
        self._show_parent(detail)
        self.why.update(why(state))
        self.hint.update(state.hint)
        # An attempt that the cloud refused had no machine, and does not count.
        tried = [attempt for attempt in state.attempts if attempt.outcome != "refused"]
        last, steps = tried[-1] if tried else None, request.spec.limits.steps if request else 0
        row = self.view.feed.snapshot.rows.get(detail.run)
        step = row.step if row and row.step is not None else newest_step(state, None)
        here = last if last and last.phase != "over" else None
        spot = "" if last is None or last.spot else " on demand"
        self.facts["Attempt"].update(str(len(tried)) if tried else "none yet")
        self.facts["Location"].update(f"{last.type} in {last.zone}{spot}" if last else "")
        self.facts["$/hour"].update(money(here.price_usd_per_hour) if here else "")
        if here:
            titled(self.facts["$/hour"].value, here.price_usd_per_hour)
        self.facts["Step"].update("" if step is None else f"{step} of {steps}" if steps else str(step))
        self.facts["Preemptions"].update(str(sum(attempt.preempted for attempt in state.attempts)))
        left = remaining(state, step, steps, time.time())
        self.facts["Left"].update(f"about {describe_s(left.seconds)}, {money(left.cost_usd)}" if left else "")
        billing = [attempt for attempt in state.attempts if not attempt.released]
        since = max((attempt.placed_at for attempt in billing), default=0.0)
        rate = sum(attempt.price_usd_per_hour for attempt in billing)
        self.spent.update(kind="spent", base=spent_usd(state, since), since=since, rate=rate)
        self.age.update(kind="age", base=state.ended_at, since=state.submitted_at, rate=0.0 if state.ending else 1.0)
        self.actions.update(detail)
        self.failure.update(detail)
        self.waiting.update(detail)

    def _show_note(self, detail: RunDetail) -> None:
        self.note.update(detail.note.text)
        if detail.note.tags == self.shown_tags:
            return
        self.shown_tags = detail.note.tags
        self.tags.clear()
        with self.tags:
            for tag in detail.note.tags:
                ui.link(tag, f"/?q={quote(f'tag:{tag}')}").classes("ol-pill ol-off")

    def _show_parent(self, detail: RunDetail) -> None:
        """Link to the group, sweep or drill of this run."""
        if detail.part_of == self.shown_parent:
            return
        self.shown_parent = detail.part_of
        kind, _, name = detail.part_of.partition(":")
        self.parent.clear()
        with self.parent:
            ui.label("part of").classes("ol-dim")
            ui.link(f"{kind} {name}", href(f"{kind}s", name))

    def _choose(self, name: str) -> None:
        self.name = name
        self.view.query = {"tab": name if name != "story" else ""}
        self.view.remember()
        self.tab.leave()
        self.tab = self._build()

    def _build(self) -> Tab:
        self.place.clear()
        with self.place:
            return TABS[self.name][1](self.view, self.detail)

    def update(self, detail: RunDetail) -> None:
        if self.view.client.is_deleted or detail.problem:
            return
        self.detail = detail
        with self.place:
            self._update_head(detail)
            self.tab.update(detail)


class _Fact:
    def __init__(self, title: str) -> None:
        with ui.element("div").classes("ol-fact") as self.box:
            ui.label(title).classes("ol-dim")
            self.value = ui.label().classes("ol-value")

    def update(self, text: str) -> None:
        self.value.set_text(text)
        self.box.set_visibility(bool(text))


class _Ticking(_Fact):
    """A figure that grows with time; the browser counts."""

    def update(
        self, text: str = "", *, kind: str = "", base: float = 0.0, since: float = 0.0, rate: float = 0.0
    ) -> None:
        props = {f"data-{kind}": "1", "data-base": base, "data-since": since, "data-rate": rate}
        if any(self.value.props.get(name) != value for name, value in props.items()):
            self.value.props.update(props)
            self.value.update()
