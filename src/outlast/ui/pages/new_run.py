"""The form of a new run, from a file or from an earlier run, with its price and odds before the start."""

from __future__ import annotations

import os
from urllib.parse import quote

from nicegui import background_tasks, ui

from outlast.app.simulation import Estimate, estimate
from outlast.app.variation import LIMITS, MACHINE, Origin, project_files, texts_of
from outlast.errors import OutlastError
from outlast.ui.files import checked_name
from outlast.ui.format import describe_s, money
from outlast.ui.layout import PageView, empty, fact, panel, prose, show_error
from outlast.ui.pages.components import href, problem_note

_CHOICES_MAX, _SIMULATED = 500, 200
# The estimate follows this long after the last key.
_DELAY_S = 0.6
_LABELS = {
    "cost_usd": "cost_usd: maximum cost in $",
    "work": "work: duration without interruptions, 8h",
    "deadline": "deadline: 12h, or 2026-12-24T18:00:00Z",
    "max_hours": "max_hours: maximum duration",
    "cpus": "cpus: 8+, 4..16",
    "memory": "memory: 32GB+",
    "gpu": "gpu: T4:1",
    "zones": "zones: separated by commas",
}
_SWITCHES = ("spot", "fallback")


async def build(view: PageView) -> None:
    files = await view.read(project_files, os.getcwd())
    run = view.query.get("run", "")
    file = view.query.get("file", "" if run else next(iter(files), ""))
    _choice(view, files, run=run, file=file)
    if not (run or file):
        empty("No project file in the folder of this server. Choose an earlier run, or create a file.", "outlast init")
        return
    try:
        if run:
            checked_name(run)
        origin = await view.read(lambda: Origin(view.workspace, run=run, file=file))
    except OutlastError as problem:
        problem_note(problem.message, problem.hint)
        return
    _Form(view, origin)


def _choice(view: PageView, files: list[str], *, run: str, file: str) -> None:
    """Choose the file or the run that the new one is like."""
    with panel("Start from", note="a project file or an earlier run; change any field"):
        known = list(reversed(view.feed.snapshot.rows))[:_CHOICES_MAX]
        runs = list(dict.fromkeys([*([run] if run else []), *known]))
        with ui.element("div").classes("ol-row"):
            chosen = ui.select(
                [*files], value=file or None, label="File", on_change=lambda e: _open(view, "file", str(e.value))
            )
            chosen.props("dense outlined options-dense").classes("ol-select")
            earlier = ui.select(
                runs, value=run or None, label="Earlier run", with_input=True,
                on_change=lambda e: _open(view, "run", str(e.value)),
            )  # fmt: skip
            earlier.props("dense outlined options-dense").classes("ol-select")


def _open(view: PageView, kind: str, name: str) -> None:
    ui.navigate.to(f"/new?{kind}={quote(name, safe='')}")


class _Form:
    def __init__(self, view: PageView, origin: Origin) -> None:
        self.view = view
        self.origin = origin
        self.fields: dict[str, ui.input | ui.switch] = {}
        self.texts = texts_of(origin.spec)
        with panel("Command"):
            self._inputs(("name", "command"), "")
        if origin.spec.params:
            with panel("Parameters"):
                self._inputs([name for name in self.texts if name.startswith("params.")], "params.")
        with ui.element("div").classes("ol-two"):
            with panel("Machine"):
                self._inputs([f"machine.{name}" for name in MACHINE], "machine.")
            with panel("Limits"):
                self._inputs([f"limits.{name}" for name in LIMITS], "limits.")
        with panel("Price and odds", note="before anything starts"):
            self.place = ui.element("div").props("aria-live=polite")
            with ui.element("div").classes("ol-row ol-below"):
                self.start = ui.button("Start the run", on_click=self._start, color=None)
                self.start.props("unelevated no-caps").classes("ol-alarm")
                ui.label("Its machines are billed.").classes("ol-dim")
        self.timer = ui.timer(_DELAY_S, self._estimate, once=True)

    def _inputs(self, names: list[str] | tuple[str, ...], prefix: str) -> None:
        with ui.element("div").classes("ol-form"):
            for name in names:
                short, text = name.removeprefix(prefix), self.texts[name]
                if short in _SWITCHES and prefix == "machine.":
                    self.fields[name] = ui.switch(short, value=text == "true", on_change=self._changed)
                    continue
                label = _LABELS.get(short, short) if prefix in ("machine.", "limits.") else short
                field = ui.input(label, value=text, on_change=self._changed).props("dense outlined")
                self.fields[name] = field.classes("ol-field ol-wide" if short == "command" else "ol-field")

    def _changed(self) -> None:
        self.timer.cancel()
        with self.place:
            self.timer = ui.timer(_DELAY_S, self._estimate, once=True)

    def _typed(self) -> dict[str, str]:
        return {
            name: str(field.value or "") if isinstance(field, ui.input) else str(bool(field.value)).lower()
            for name, field in self.fields.items()
        }

    def _estimate(self) -> None:
        background_tasks.create(self._show_estimate(self._typed()))

    async def _show_estimate(self, texts: dict[str, str]) -> None:
        def work() -> Estimate:
            return estimate(self.view.workspace, self.origin.varied(texts), runs=_SIMULATED)

        found: Estimate | OutlastError
        try:
            found = await self.view.read(work)
        except OutlastError as problem:
            found = problem
        if self.place.is_deleted or texts != self._typed():
            return
        self.place.clear()
        with self.place:
            if isinstance(found, OutlastError):
                problem_note(found.message, found.hint)
            else:
                _show(found)

    async def _start(self) -> None:
        self.start.disable()
        texts = self._typed()
        try:
            made = await self.view.read(lambda: self.origin.submit(texts))
        except OutlastError as problem:
            show_error(problem.message, problem.hint)
            self.start.enable()
            return
        ui.navigate.to(href("run", made.run))


def _show(found: Estimate) -> None:
    with ui.element("div").classes("ol-facts"):
        if found.runs:
            ours, demand = found.ours, found.on_demand
            low, high = ours["cost_p10_usd"], ours["cost_p90_usd"]
            fact(
                "Cost",
                money(ours["cost_usd"]),
                note=f"{money(low)} to {money(high)} in 8 of 10",
                exact=ours["cost_usd"],
            )
            fact("Ends after", _span(ours["finish_s"]), note=f"95 % within {_span(ours['finish_p95_s'])}")
            fact("Late", f"{100 * ours['late']:.1f} %")
            fact("On spot", f"{100 * ours['spot_share']:.0f} %", note=f"{ours['starts']:.1f} starts")
            fact("On demand", money(demand["cost_usd"]), note="the same work", exact=demand["cost_usd"])
        fact("Spot $/hour", money(found.spot_usd_per_hour), exact=found.spot_usd_per_hour)
        fact("On demand $/hour", money(found.on_demand_usd_per_hour), exact=found.on_demand_usd_per_hour)
    with ui.element("div").classes("ol-dim ol-below"):
        if found.runs:
            prose(
                f"Simulated {found.runs} times with random capacity, as by `outlast simulate`: "
                "spot machines live 2 hours on average, and are missing for 30 minutes."
            )
        else:
            prose("Set `work` for the cost, the end and the risk of being late.")


def _span(seconds: float | None) -> str:
    return describe_s(seconds) if seconds is not None else "never"
