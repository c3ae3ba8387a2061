"""Sweeps as table rows, and one sweep with its trials and parallel coordinates, as values."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.errors import NoSuchRun, StoreUnreachable, WorkspaceError
from outlast.formatting.run_row import unread
from outlast.spec.spec import Dimension
from outlast.store.lease import Lease
from outlast.sweep.record import Sweep, SweepStory, find, read, sweeps
from outlast.sweep.state import SweepState, Trial, best
from outlast.workspace import Workspace

_TONES = {"running": "good", "over": "done", "stopped": "warn", "damaged": "bad", "unreadable": "warn"}
TRIAL_TONES = {"running": "good", "complete": "done", "pruned": "off", "failed": "bad", "cancelled": "off"}


class SweepTableRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    tone: str
    ended: int = 0
    wanted: int = 0
    running: int = 0
    failed: int = 0
    goals: tuple[str, ...] = ()
    best: tuple[float, ...] = ()
    best_run: str = ""
    who: str = ""
    opened_at: float = 0.0
    why: str = ""


class TrialTableRow(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    state: str
    tone: str
    best: bool
    run: str
    params: dict[str, Any]
    values: tuple[float, ...]
    seconds: float
    why: str


class SweepDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep at one moment."""

    row: SweepTableRow
    params: tuple[str, ...]
    trials: tuple[TrialTableRow, ...]
    sampler: str
    pruner: str
    parallel: int
    # The process that drives the sweep; empty if there is none or the sweep is over.
    driver: str = ""
    # The length of the story: plots change with it.
    length: int = 0


class SweepReader:
    """The repeated reader of all sweeps; of a story it reads only new events."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[str, tuple[Sweep, SweepStory]] = {}

    def __call__(self) -> tuple[SweepTableRow, ...]:
        found = [self._row(name) for name in sweeps(self.workspace)]
        return tuple(sorted((row for row in found if row is not None), key=lambda row: (-row.opened_at, row.name)))

    def _row(self, name: str) -> SweepTableRow | None:
        try:
            if name not in self._known:
                self._known[name] = read(self.workspace, name), SweepStory(self.workspace.bucket, name)
            sweep, story = self._known[name]
            state = story.refresh()
        except StoreUnreachable:
            raise
        except (WorkspaceError, NoSuchRun) as problem:
            status = unread(problem)
            return SweepTableRow(name=name, state=status, tone=_TONES[status], why=problem.message)
        return row_of(sweep, state) if state.exists else None


class SweepDetailReader:
    """The repeated reader of one sweep. The first call raises NoSuchRun if there is none."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self.workspace = workspace
        self.name = name
        self._known: tuple[Sweep, SweepStory] | None = None

    def __call__(self) -> SweepDetail:
        sweep, story = self._open()
        state = story.refresh()
        holder = None
        if not state.over:
            holder = Lease(self.workspace.bucket, f"sweep-{sweep.name}", who="", ttl_s=10.0).holder()
        return detail_of(sweep, state, driver=holder.who if holder else "")

    def _open(self) -> tuple[Sweep, SweepStory]:
        if self._known is None:
            sweep = find(self.workspace, self.name)
            self._known = sweep, SweepStory(self.workspace.bucket, sweep.name)
        return self._known

    @property
    def sweep(self) -> Sweep:
        return self._open()[0]

    @property
    def state(self) -> SweepState:
        return self._open()[1].state


def row_of(sweep: Sweep, state: SweepState) -> SweepTableRow:
    leaders = best(state, sweep.search.goals)
    status = "stopped" if state.stopped else "over" if state.over else "running"
    return SweepTableRow(
        name=sweep.name,
        state=status,
        tone=_TONES[status],
        ended=len(state.ended),
        wanted=state.wanted,
        running=len(state.open),
        failed=sum(trial.outcome == "failed" for trial in state.trials),
        goals=sweep.search.goals,
        best=leaders[0].values if leaders else (),
        best_run=leaders[0].run if leaders else "",
        who=sweep.who,
        opened_at=sweep.opened_at,
        why=state.why,
    )


def detail_of(sweep: Sweep, state: SweepState, *, driver: str) -> SweepDetail:
    leaders = {trial.number for trial in best(state, sweep.search.goals)}
    search = sweep.search
    return SweepDetail(
        row=row_of(sweep, state),
        params=tuple(search.params),
        trials=tuple(_trial(trial, best=trial.number in leaders) for trial in state.trials),
        sampler=search.sampler,
        pruner=search.pruner,
        parallel=search.parallel,
        driver=driver,
        length=state.length,
    )


def _trial(trial: Trial, *, best: bool) -> TrialTableRow:
    status = trial.outcome or "running"
    return TrialTableRow(
        number=trial.number,
        state=status,
        tone=TRIAL_TONES[status],
        best=best,
        # For trials that share a machine this is the run of the worker.
        run=trial.run,
        params=trial.params,
        values=trial.values,
        seconds=trial.seconds,
        why=trial.why,
    )


def goal_names(goals: tuple[str, ...]) -> list[str]:
    return [goal.partition(":")[2] for goal in goals]


# Parallel coordinates


def parallel(sweep: Sweep, state: SweepState) -> dict[str, Any]:
    """Return ECharts options: complete trials as lines over axes for all parameters and goals."""
    search = sweep.search
    names, goals = list(search.params), goal_names(search.goals)
    axes = [_axis(place, name, search.params[name]) for place, name in enumerate(names)]
    axes += [{"dim": len(names) + place, "name": goal, "scale": True} for place, goal in enumerate(goals)]
    lines = [[*(_point(trial.params.get(name)) for name in names), *trial.values] for trial in state.complete]
    values = [trial.values[0] for trial in state.complete]
    grey = "rgba(128,128,128,.75)"
    shared = {
        "nameTextStyle": {"color": grey},
        "axisLine": {"lineStyle": {"color": grey}},
        "axisLabel": {"color": grey},
    }
    minimize = not search.goals or search.goals[0].startswith("min:")
    colours = ["#0d9488", "#7c8ea6", "#c2410c"]
    return {
        "animation": False,
        "parallel": {"left": 56, "right": 76, "top": 40, "bottom": 28, "parallelAxisDefault": shared},
        "parallelAxis": [{**shared, **axis, "z": 5} for axis in axes],
        "visualMap": {
            "show": False,
            "dimension": len(names),
            "min": min(values, default=0.0),
            "max": max(values, default=1.0),
            "inRange": {"color": colours if minimize else colours[::-1]},
        },
        "series": [{"type": "parallel", "lineStyle": {"width": 2, "opacity": 0.65}, "smooth": 0.15, "data": lines}],
    }


def _axis(place: int, name: str, dimension: Dimension) -> dict[str, Any]:
    axis: dict[str, Any] = {"dim": place, "name": name}
    if dimension.kind == "choice":
        # Lines meet at the labels, which need a background to be readable.
        label = {"color": "#fff", "backgroundColor": "rgba(90,100,115,.92)", "padding": [2, 5], "borderRadius": 3}
        return axis | {"type": "category", "data": [str(choice) for choice in dimension.choices], "axisLabel": label}
    return axis | {"type": "log" if dimension.log else "value", "min": dimension.low, "max": dimension.high}


def _point(value: Any) -> Any:
    """Return a value for a category axis: text, also for booleans."""
    return str(value) if isinstance(value, bool | str) or value is None else value
