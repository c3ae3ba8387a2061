"""The list of sweeps, and one sweep with its progress, parallel coordinates, plots and trials."""

from __future__ import annotations

from typing import Any

from nicegui import background_tasks, ui

from outlast.errors import OutlastError
from outlast.ui.format import describe_s, moment
from outlast.ui.layout import PageView, empty, fact, heading, panel, pill, prose
from outlast.ui.pages.components import (
    Column,
    FilteredTable,
    Placeholder,
    Table,
    bar,
    href,
    not_found,
    problem_note,
    search,
)
from outlast.ui.topics import TopicUpdate, follow
from outlast.ui.views.optuna_plots import OptunaPlot, draw_plots
from outlast.ui.views.sweeps import (
    SweepDetail,
    SweepDetailReader,
    SweepReader,
    SweepTableRow,
    TrialTableRow,
    goal_names,
    parallel,
)

_COLUMNS = (
    Column("name", "Sweep", "link"),
    Column("state", "State", "pill"),
    Column("trials", "Trials", "bar"),
    Column("running", "Running", right=True),
    Column("failed", "Failed", right=True),
    Column("goal", "Goal"),
    Column("best", "Best", "formatted", right=True),
    Column("run", "Best trial", "link"),
    Column("who", "Owner"),
    Column("opened", "Opened", "formatted"),
    Column("why", "Remarks"),
)


def build(view: PageView) -> None:
    command = "outlast sweep --param lr=log(1e-4..1e-1) --goal min:loss -- python train.py"
    with panel("Sweeps", note="hyperparameter search"):
        table = FilteredTable(view, "Sweeps", _COLUMNS, key="name", none="No sweeps yet.", command=command)

    def update(latest: TopicUpdate[tuple[SweepTableRow, ...]]) -> None:
        table.update(latest, (_cells(row) for row in latest.value or ()))

    follow(view, "sweeps", lambda: SweepReader(view.workspace), update)


def _cells(row: SweepTableRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "name_href": href("sweeps", row.name),
        "state": row.state,
        "state_tone": row.tone,
        "trials": row.ended / row.wanted if row.wanted else 0.0,
        "trials_text": f"{row.ended}/{row.wanted}",
        "running": row.running,
        "failed": row.failed,
        "goal": ", ".join(row.goals),
        "best": row.best[0] if row.best else None,
        "best_text": ", ".join(f"{value:.6g}" for value in row.best),
        "run": row.best_run,
        "run_href": href("run", row.best_run) if row.best_run else "",
        "who": row.who,
        "opened": row.opened_at,
        "opened_text": moment(row.opened_at),
        "why": row.why,
        "names": " ".join(goal_names(row.goals)),
    }


def build_one(view: PageView) -> None:
    name = view.params["name"]
    reader = SweepDetailReader(view.workspace, name)
    with ui.element("div").classes("ol-pile"):
        place = Placeholder("loading the sweep")
        none = ui.element("div")
        with ui.element("div").classes("ol-pile") as content:
            head = ui.element("div")
            lines = _Lines()
            drawn = _Plots(view)
            trials = _Trials(view)
    content.set_visibility(False)
    none.set_visibility(False)

    def update(latest: TopicUpdate[tuple[SweepDetail, SweepDetailReader]]) -> None:
        if latest.value is None:
            place.show(TopicUpdate(at=latest.at))
            none.clear()
            none.set_visibility(True)
            with none:
                not_found(latest, "sweep", "/sweeps")
            return
        none.set_visibility(False)
        place.show(latest)
        detail, known = latest.value
        content.set_visibility(True)
        head.clear()
        with head:
            _head(detail)
        lines.update(known)
        trials.update(detail)
        drawn.update(known)

    def make() -> Any:
        return lambda: (reader(), reader)

    follow(view, ("sweep", name), make, update)


def _head(detail: SweepDetail) -> None:
    row = detail.row
    with ui.element("section").classes("ol-panel").props('aria-label="Sweep"'):
        with ui.element("div").classes("ol-row"):
            heading(row.name, 1)
            pill(row.state, row.tone)
            if row.why:
                prose(row.why).classes("ol-dim")
        with ui.element("div").classes("ol-facts ol-below"):
            best = ", ".join(f"{value:.6g}" for value in row.best)
            fact("Best " + ", ".join(goal_names(row.goals)), best or "none yet")
            if row.best_run:
                with ui.element("div").classes("ol-fact"):
                    ui.label("Best trial").classes("ol-dim")
                    ui.link(row.best_run, href("run", row.best_run)).classes("ol-value")
            fact("Goal", ", ".join(row.goals))
            fact("Sampler", detail.sampler)
            fact("Pruner", detail.pruner)
            fact("Parallel", str(detail.parallel))
            fact("Opened", moment(row.opened_at), note=row.who)
            if row.state == "running":
                fact(
                    "Driven by",
                    detail.driver or "no process",
                    note="" if detail.driver else f"outlast sweep resume {row.name}",
                )
        bar(
            "Trials",
            row.ended / row.wanted if row.wanted else 0.0,
            f"{row.ended} of {row.wanted}, {row.running} running",
        )


class _Lines:
    """Parallel coordinates."""

    def __init__(self) -> None:
        with panel("Parallel coordinates", note="one line per trial; drag along an axis to select"):
            self.none = ui.label("No complete trial yet.").classes("ol-dim")
            self.chart = (
                ui.echart({"series": []}).classes("ol-chart").props('role=img aria-label="Parallel coordinates"')
            )
        self.shown = -1

    def update(self, known: SweepDetailReader) -> None:
        complete = len(known.state.complete)
        self.none.set_visibility(not complete)
        self.chart.set_visibility(bool(complete))
        if complete and complete != self.shown:
            self.shown = complete
            self.chart.options.clear()
            self.chart.options.update(parallel(known.sweep, known.state))
            self.chart.update()


class _Plots:
    """Optuna's plots, drawn in a thread one after the other; a newer state is drawn afterwards."""

    def __init__(self, view: PageView) -> None:
        self.view = view
        with panel("Plots", note="by Optuna"):
            with ui.element("div") as self.message:
                ui.label("No complete trial yet.").classes("ol-dim")
            self.grid = ui.element("div").classes("ol-pictures")
        self.plots: dict[str, Any] = {}
        self.shown = -1
        self.busy = False

    def update(self, known: SweepDetailReader) -> None:
        if self.busy or not known.state.complete or len(known.state.ended) == self.shown:
            return
        if not self.plots:
            self._show_message("drawing …")
        self.busy = True
        background_tasks.create(self._draw(known), name="plots")

    async def _draw(self, known: SweepDetailReader) -> None:
        """Draw until the plots show the current state: trials may end meanwhile."""
        try:
            while len(known.state.ended) != self.shown and not self.view.client.is_deleted:
                state = known.state
                self.shown = len(state.ended)
                drawn = await self.view.read(draw_plots, known.sweep, state)
                self._show_message("")
                with self.grid:
                    for plot in drawn:
                        self._show(plot)
        except OutlastError as problem:
            self._show_problem(problem)
        finally:
            self.busy = False

    def _show(self, plot: OptunaPlot) -> None:
        if plot.name in self.plots:
            self.plots[plot.name].update_figure(plot.figure)
            return
        with ui.element("figure").classes(f"ol-picture ol-picture-{plot.name}"):
            with ui.element("figcaption"):
                ui.label(plot.title).classes("ol-h3")
            element = ui.plotly(plot.figure).classes("ol-optuna").props("role=group")
            element.props["aria-label"] = plot.title
            self.plots[plot.name] = element

    def _show_message(self, text: str) -> None:
        self.message.clear()
        if text:
            with self.message:
                ui.label(text).classes("ol-dim").props("role=status")

    def _show_problem(self, problem: OutlastError) -> None:
        self.message.clear()
        with self.message:
            problem_note(problem.message, problem.hint)


class _Trials:
    def __init__(self, view: PageView) -> None:
        self.view = view
        with panel("Trials"):
            self.place = ui.element("div")
            with ui.element("div") as self.none:
                empty("No trials yet.")
        self.table: Table | None = None

    def update(self, detail: SweepDetail) -> None:
        self.none.set_visibility(not detail.trials)
        if self.table is None:
            with self.place:
                above = ui.element("div").classes("ol-row ol-above")
                self.table = Table("Trials", self._columns(detail), key="number", rows_shown=50, sort="value0")
                with above:
                    search(self.view, self.table, "Filter trials")
        self.table.fill(_trial_cells(row, detail) for row in detail.trials)

    def _columns(self, detail: SweepDetail) -> list[Column]:
        goals = [
            Column(f"value{n}", name, "formatted", right=True) for n, name in enumerate(goal_names(detail.row.goals))
        ]
        params = [Column(f"param{n}", name, "formatted", right=True) for n, name in enumerate(detail.params)]
        return [
            Column("number", "Trial", right=True),
            Column("state", "State", "pill"),
            *goals,
            *params,
            Column("seconds", "Duration", "formatted", right=True),
            Column("run", "Run", "link"),
            Column("why", "Remarks"),
        ]


def _trial_cells(row: TrialTableRow, detail: SweepDetail) -> dict[str, Any]:
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
    maximize = bool(detail.row.goals) and detail.row.goals[0].startswith("max:")
    for place in range(len(detail.row.goals)):
        value = row.values[place] if place < len(row.values) else None
        # Trials without a value come last in both directions.
        cells[f"value{place}"] = value if value is not None else (-1e308 if maximize else 1e308)
        cells[f"value{place}_text"] = "" if value is None else f"{value:.6g}"
    for place, name in enumerate(detail.params):
        value = row.params.get(name)
        cells[f"param{place}"] = value
        cells[f"param{place}_text"] = f"{value:.5g}" if isinstance(value, float) else str(value)
    return cells
