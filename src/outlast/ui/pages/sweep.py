"""One sweep: how far it is, Optuna's pictures, its trials as lines over all parameters and as a table. Live."""

from __future__ import annotations

from typing import Any

from nicegui import background_tasks, ui

from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment
from outlast.ui.layout import PageView, empty, fact, heading, panel, pill
from outlast.ui.pages.components import Column, Table, TablePlace, bar, href, not_there, search, trouble
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.optuna_plots import Picture, pictures
from outlast.ui.views.sweeps import OneSweep, SweepSight, TrialRow, goal_names, parallel


def build(view: PageView) -> None:
    name = view.params["name"]
    reader = OneSweep(view.workspace, name)
    with ui.element("div").classes("ol-pile"):
        place = TablePlace("reading the sweep")
        none = ui.element("div")
        with ui.element("div").classes("ol-pile") as there:
            head = ui.element("div")
            lines = _Lines()
            drawn = _Pictures(view)
            trials = _Trials(view)
    there.set_visibility(False)
    none.set_visibility(False)

    def tell(told: TopicUpdate[tuple[SweepSight, OneSweep]]) -> None:
        if told.value is None:
            place.told(TopicUpdate(at=told.at))
            none.clear()
            none.set_visibility(True)
            with none:
                not_there(told, "sweep", "/sweeps")
            return
        none.set_visibility(False)
        place.told(told)
        sight, known = told.value
        there.set_visibility(True)
        head.clear()
        with head:
            _head(sight)
        lines.tell(known)
        trials.tell(sight)
        drawn.tell(known)

    def make() -> Any:
        return lambda: (reader(), reader)

    follow(view, ("sweep", name), make, tell)


def _head(sight: SweepSight) -> None:
    row = sight.row
    with ui.element("section").classes("ol-panel").props('aria-label="Sweep"'):
        with ui.element("div").classes("ol-row"):
            heading(row.name, 1)
            pill(row.state, row.tone)
            if row.why:
                ui.label(row.why).classes("ol-dim")
        with ui.element("div").classes("ol-facts ol-below"):
            best = ", ".join(f"{value:.6g}" for value in row.best)
            fact("Best " + ", ".join(goal_names(row.goals)), best or "none yet")
            if row.best_run:
                with ui.element("div").classes("ol-fact"):
                    ui.label("Best trial").classes("ol-dim")
                    ui.link(row.best_run, href("run", row.best_run)).classes("ol-value")
            fact("Goal", ", ".join(row.goals))
            fact("Sampler", sight.sampler)
            fact("Pruner", sight.pruner)
            fact("At a time", str(sight.parallel))
            fact("Opened", moment(row.opened_at), note=row.who)
            if row.state == "running":
                fact(
                    "Driven by",
                    sight.driver or "nobody",
                    note="" if sight.driver else f"outlast sweep resume {row.name}",
                )
        bar(
            "Trials", row.told / row.wanted if row.wanted else 0.0, f"{row.told} of {row.wanted}, {row.running} running"
        )


class _Lines:
    """Parallel coordinates."""

    def __init__(self) -> None:
        with panel("Parallel coordinates", note="a line a trial; drag along an axis to choose"):
            self.none = ui.label("No complete trial yet.").classes("ol-dim")
            self.chart = (
                ui.echart({"series": []}).classes("ol-chart").props('role=img aria-label="Parallel coordinates"')
            )
        self.shown = -1

    def tell(self, known: OneSweep) -> None:
        complete = len(known.state.complete)
        self.none.set_visibility(not complete)
        self.chart.set_visibility(bool(complete))
        if complete and complete != self.shown:
            self.shown = complete
            self.chart.options.clear()
            self.chart.options.update(parallel(known.sweep, known.state))
            self.chart.update()


class _Pictures:
    """Optuna's own, made in a thread, one after the other; a newer state is drawn when the last picture is done."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        with panel("Pictures", note="by Optuna"):
            with ui.element("div") as self.argv:
                ui.label("No complete trial yet.").classes("ol-dim")
            self.grid = ui.element("div").classes("ol-pictures")
        self.plots: dict[str, Any] = {}
        self.shown = -1
        self.busy = False

    def tell(self, known: OneSweep) -> None:
        if self.busy or not known.state.complete or len(known.state.told) == self.shown:
            return
        if not self.plots:
            self._say("drawing …")
        self.busy = True
        background_tasks.create(self._draw(known), name="pictures")

    async def _draw(self, known: OneSweep) -> None:
        """Until what is drawn is what is there: trials may end while it is drawn."""
        try:
            while len(known.state.told) != self.shown and not self.view.client.is_deleted:
                state = known.state
                self.shown = len(state.told)
                drawn = await self.view.read(pictures, known.sweep, state)
                self._say("")
                with self.grid:
                    for picture in drawn:
                        self._show(picture)
        except OutlastError as problem:
            self._complain(problem)
        finally:
            self.busy = False

    def _show(self, picture: Picture) -> None:
        if picture.name in self.plots:
            self.plots[picture.name].update_figure(picture.figure)
            return
        with ui.element("figure").classes(f"ol-picture ol-picture-{picture.name}"):
            with ui.element("figcaption"):
                ui.label(picture.title).classes("ol-h3")
            plot = ui.plotly(picture.figure).classes("ol-optuna").props("role=img")
            plot.props["aria-label"] = picture.title
            self.plots[picture.name] = plot

    def _say(self, text: str) -> None:
        self.argv.clear()
        if text:
            with self.argv:
                ui.label(text).classes("ol-dim").props("role=status")

    def _complain(self, problem: OutlastError) -> None:
        self.argv.clear()
        with self.argv:
            trouble(problem.message, problem.hint)


class _Trials:
    def __init__(self, view: PageView) -> None:
        self.view = view
        with panel("Trials"):
            self.place = ui.element("div")
            with ui.element("div") as self.none:
                empty("No trial was asked for yet.")
        self.table: Table | None = None

    def tell(self, sight: SweepSight) -> None:
        self.none.set_visibility(not sight.trials)
        if self.table is None:
            with self.place:
                above = ui.element("div").classes("ol-row ol-above")
                self.table = Table("Trials", self._columns(sight), key="number", rows_shown=50, sort="value0")
                with above:
                    search(self.view, self.table, "Filter trials")
        self.table.fill(_cells(row, sight) for row in sight.trials)

    def _columns(self, sight: SweepSight) -> list[Column]:
        goals = [Column(f"value{n}", name, "told", right=True) for n, name in enumerate(goal_names(sight.row.goals))]
        params = [Column(f"param{n}", name, "told", right=True) for n, name in enumerate(sight.params)]
        return [
            Column("number", "Trial", right=True),
            Column("state", "State", "pill"),
            *goals,
            *params,
            Column("seconds", "Time", "told", right=True),
            Column("run", "Run", "link"),
            Column("why", "Remarks"),
        ]


def _cells(row: TrialRow, sight: SweepSight) -> dict[str, Any]:
    cells: dict[str, Any] = {
        "number": row.number,
        "state": "best" if row.best else row.state,
        "state_tone": "good" if row.best else row.tone if row.state != "running" else "busy",
        "seconds": row.seconds,
        "seconds_text": describe_s(row.seconds) if row.seconds else "",
        "run": row.run,
        "run_href": href("run", row.run),
        "why": row.why,
    }
    maximize = bool(sight.row.goals) and sight.row.goals[0].startswith("max:")
    for place in range(len(sight.row.goals)):
        value = row.values[place] if place < len(row.values) else None
        # Those without a value come last, whichever way is up.
        cells[f"value{place}"] = value if value is not None else (-1e308 if maximize else 1e308)
        cells[f"value{place}_text"] = "" if value is None else f"{value:.6g}"
    for place, name in enumerate(sight.params):
        value = row.params.get(name)
        cells[f"param{place}"] = value
        cells[f"param{place}_text"] = f"{value:.5g}" if isinstance(value, float) else str(value)
    return cells
