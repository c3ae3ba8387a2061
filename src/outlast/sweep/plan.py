"""The decisions about a sweep: from a view of its state to steps. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from outlast.runs.state import RunState
from outlast.sweep.record import Sweep
from outlast.sweep.state import SweepState, Trial


class SweepView(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep at one moment, with its runs. A run that is missing has not been submitted yet."""

    sweep: Sweep
    state: SweepState
    runs: dict[str, RunState] = {}


class Submit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Submit the run of a trial, or of a worker without one. May be repeated."""

    run: str
    trial: Trial | None = None


class RecordResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record the result of a trial whose run has ended."""

    trial: Trial


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    run: str


class SuggestTrial(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Suggest the next trial; `run` is its worker, or empty for a separate run."""

    run: str = ""


class AddWorker(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    run: str


class MoveTrial(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    trial: int
    run: str


class StopSweep(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    why: str


Step = Submit | RecordResult | Cancel | SuggestTrial | AddWorker | MoveTrial | StopSweep


def plan(view: SweepView) -> tuple[Step, ...]:
    """Return the next steps; none for a sweep that is over."""
    why = "" if view.state.stopped else _why_hopeless(view)
    if why:
        return (StopSweep(why=why),)
    return tuple(_plan_workers(view) if view.sweep.packed else _plan_runs(view))


def _why_hopeless(view: SweepView) -> str:
    """Return why further trials would fail, too; empty if they may succeed."""
    state, most = view.state, view.sweep.search.failures
    ended = [state.trials[number] for number in state.ended if state.trials[number].outcome != "cancelled"]
    last = ended[-most:]
    if len(last) == most and all(trial.outcome in ("failed", "unmeasured") for trial in last):
        count = "a trial" if most == 1 else f"{most} trials in a row"
        return f"{count} failed; the last, trial {last[-1].number}: {last[-1].why}"
    if ended and all(trial.outcome == "unmeasured" for trial in ended):
        # The next trial would not log the metric either.
        return f"trial {ended[0].number}: {ended[0].why}"
    useless = [run for run in state.workers if _failed(view, run) and not any(t.run == run for t in ended)]
    if len(useless) >= most:
        return f"{most} workers failed without a result; the last: {view.runs[useless[-1]].why}"
    return ""


def _failed(view: SweepView, run: str) -> bool:
    return run in view.runs and view.runs[run].ending == "failed"


def _plan_runs(view: SweepView) -> Iterator[Step]:
    """Plan for a sweep in which each trial is a run."""
    state = view.state
    for trial in state.trials:
        run = view.runs.get(trial.run)
        if trial.open and (run is None or not run.exists):
            yield RecordResult(trial=trial) if state.abandoned else Submit(run=trial.run, trial=trial)
        elif trial.open and run is not None and run.ending:
            yield RecordResult(trial=trial)
        elif run is not None and run.alive and (state.abandoned or trial.outcome == "pruned"):
            yield Cancel(run=trial.run)
    for _ in range(min(state.left, view.sweep.search.parallel - len(state.open))):
        yield SuggestTrial()


def _plan_workers(view: SweepView) -> Iterator[Step]:
    """Plan for a sweep whose workers execute the trials."""
    state, search = view.state, view.sweep.search
    if state.abandoned:
        yield from (RecordResult(trial=trial) for trial in state.open)
        return
    todo = len(state.open) + state.left
    alive = [run for run in state.workers if run not in view.runs or not view.runs[run].ending]
    if not todo:
        return
    yield from (Submit(run=run) for run in alive if run not in view.runs or not view.runs[run].exists)
    machines = math.ceil(min(search.parallel, todo) / search.per_machine)
    for number in range(len(state.workers) + 1, len(state.workers) + 1 + machines - len(alive)):
        yield AddWorker(run=view.sweep.worker(number))
    load = {run: sum(trial.run == run for trial in state.open) for run in alive}
    for trial in state.open:
        if trial.run not in load and min(load.values(), default=search.per_machine) < search.per_machine:
            yield MoveTrial(trial=trial.number, run=_least_loaded(load))
    for _ in range(min(state.left, search.parallel - len(state.open))):
        if min(load.values(), default=search.per_machine) >= search.per_machine:
            return
        yield SuggestTrial(run=_least_loaded(load))


def _least_loaded(load: dict[str, int]) -> str:
    """Return the worker with the fewest trials, and count one more for it."""
    run = min(load, key=lambda name: load[name])
    load[run] += 1
    return run
