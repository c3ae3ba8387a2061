"""Sweeps as rows, a sweep as a table and as lines over its parameters. Values; the pictures of Optuna are beside it."""

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

_TONES = {"running": "good", "over": "done", "halted": "warn", "damaged": "bad", "unreadable": "warn"}
TRIAL_TONES = {"running": "good", "complete": "done", "pruned": "off", "failed": "bad", "cancelled": "off"}


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str
    tone: str
    told: int = 0
    wanted: int = 0
    running: int = 0
    failed: int = 0
    goals: tuple[str, ...] = ()
    best: tuple[float, ...] = ()
    best_run: str = ""
    who: str = ""
    opened_at: float = 0.0
    why: str = ""


class TrialRow(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    state: str
    tone: str
    best: bool
    run: str
    params: dict[str, Any]
    values: tuple[float, ...]
    seconds: float
    why: str


class SweepSight(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep at one moment."""

    row: SweepRow
    params: tuple[str, ...]
    trials: tuple[TrialRow, ...]
    sampler: str
    pruner: str
    parallel: int
    # Who drives it; empty if nobody does, or if it is over.
    driver: str = ""
    # The story's length: what is drawn changes with it.
    length: int = 0


class SweepReader:
    """All sweeps, read again and again: of a story only what is new."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[str, tuple[Sweep, SweepStory]] = {}

    def __call__(self) -> tuple[SweepRow, ...]:
        found = [self._row(name) for name in sweeps(self.workspace)]
        return tuple(sorted((row for row in found if row is not None), key=lambda row: (-row.opened_at, row.name)))

    def _row(self, name: str) -> SweepRow | None:
        try:
            if name not in self._known:
                self._known[name] = read(self.workspace, name), SweepStory(self.workspace.bucket, name)
            sweep, story = self._known[name]
            state = story.refresh()
        except StoreUnreachable:
            raise
        except (WorkspaceError, NoSuchRun) as problem:
            state_word = unread(problem)
            return SweepRow(name=name, state=state_word, tone=_TONES[state_word], why=problem.message)
        return row_of(sweep, state) if state.exists else None


class OneSweep:
    """One sweep, read again and again. Raises NoSuchRun at the first look if there is none."""

    def __init__(self, workspace: Workspace, name: str) -> None:
        self.workspace = workspace
        self.name = name
        self._known: tuple[Sweep, SweepStory] | None = None

    def __call__(self) -> SweepSight:
        sweep, story = self._open()
        state = story.refresh()
        holder = None
        if not state.over:
            holder = Lease(self.workspace.bucket, f"sweep-{sweep.name}", who="", ttl_s=10.0).holder()
        return sight_of(sweep, state, driver=holder.who if holder else "")

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


def row_of(sweep: Sweep, state: SweepState) -> SweepRow:
    leaders = best(state, sweep.search.goals)
    word = "halted" if state.halted else "over" if state.over else "running"
    return SweepRow(
        name=sweep.name,
        state=word,
        tone=_TONES[word],
        told=len(state.told),
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


def sight_of(sweep: Sweep, state: SweepState, *, driver: str) -> SweepSight:
    leaders = {trial.number for trial in best(state, sweep.search.goals)}
    search = sweep.search
    return SweepSight(
        row=row_of(sweep, state),
        params=tuple(search.params),
        trials=tuple(_trial(trial, best=trial.number in leaders, packed=sweep.packed) for trial in state.trials),
        sampler=search.sampler,
        pruner=search.pruner,
        parallel=search.parallel,
        driver=driver,
        length=state.length,
    )


def _trial(trial: Trial, *, best: bool, packed: bool) -> TrialRow:
    word = trial.outcome or "running"
    return TrialRow(
        number=trial.number,
        state=word,
        tone=TRIAL_TONES[word],
        best=best,
        # Several trials on a machine have no runs of their own: the worker's is the one to look at.
        run=trial.run,
        params=trial.params,
        values=trial.values,
        seconds=trial.seconds,
        why=trial.why,
    )


def goal_names(goals: tuple[str, ...]) -> list[str]:
    return [goal.partition(":")[2] for goal in goals]


# Lines over all parameters


def parallel(sweep: Sweep, state: SweepState) -> dict[str, Any]:
    """The complete trials as lines over an axis for each parameter and each goal: options of ECharts."""
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
        # All lines meet where the words are: they need a ground of their own to be read.
        label = {"color": "#fff", "backgroundColor": "rgba(90,100,115,.92)", "padding": [2, 5], "borderRadius": 3}
        return axis | {"type": "category", "data": [str(choice) for choice in dimension.choices], "axisLabel": label}
    return axis | {"type": "log" if dimension.log else "value", "min": dimension.low, "max": dimension.high}


def _point(value: Any) -> Any:
    """Categories are text; truth is one of them."""
    return str(value) if isinstance(value, bool | str) or value is None else value
