"""Sweeps: starting, driving and reading them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.background import start_driver
from outlast.app.clouds import clouds
from outlast.errors import OutlastError, StoreUnreachable, WorkspaceError
from outlast.formatting.run_row import unread
from outlast.sweep.record import SweepStory, find, read
from outlast.sweep.record import sweeps as sweeps
from outlast.sweep.state import best as best
from outlast.sweep.state import better as better
from outlast.workspace import RunRequest, Workspace

if TYPE_CHECKING:
    from outlast.spec.spec import Spec
    from outlast.sweep.driver import Driver
    from outlast.sweep.record import Sweep
    from outlast.sweep.state import SweepState, Trial
    from outlast.sweep.study import Search

Report = Callable[[str], None]


class SweepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A sweep in a listing."""

    sweep: str
    # `running`, `over` or `stopped`.
    state: str
    trials: int = 0
    wanted: int = 0
    goals: list[str] = []
    best: list[float] = []


def list_sweeps(workspace: Workspace) -> tuple[list[SweepRow], dict[str, str]]:
    """Return all sweeps, and those that cannot be read with the reason. Raises StoreUnreachable."""
    found: list[SweepRow] = []
    damaged: dict[str, str] = {}
    for name in sweeps(workspace):
        try:
            sweep, state = read(workspace, name), SweepStory(workspace.bucket, name).refresh()
        except StoreUnreachable:
            raise
        except WorkspaceError as problem:
            damaged[name] = problem.message
            found.append(SweepRow(sweep=name, state=unread(problem)))
            continue
        if not state.exists:
            continue
        leaders = best(state, sweep.search.goals)
        found.append(
            SweepRow(
                sweep=name,
                state="stopped" if state.stopped else "over" if state.over else "running",
                trials=len(state.ended),
                wanted=state.wanted,
                goals=list(sweep.search.goals),
                best=list(leaders[0].values) if leaders else [],
            )
        )
    return found, damaged


def find_sweep(workspace: Workspace, name: str) -> tuple[Sweep, SweepState]:
    """Return a sweep by name, prefix or `last`, and its state."""
    sweep = find(workspace, name)
    return sweep, state_of(workspace, sweep)


def state_of(workspace: Workspace, sweep: Sweep) -> SweepState:
    return SweepStory(workspace.bucket, sweep.name).refresh()


def driver_of(workspace: Workspace, sweep: Sweep) -> str:
    """Return the process that drives a sweep; empty if there is none."""
    from outlast.store.lease import Lease

    holder = Lease(workspace.bucket, f"sweep-{sweep.name}", who="", ttl_s=10.0).holder()
    return holder.who if holder else ""


def search_of(sweep: Sweep, state: SweepState) -> Search:
    """Return the study of a sweep after all of its trials."""
    from outlast.sweep.study import Search

    study = Search(sweep.name, sweep.search)
    study.follow(state)
    return study


def best_of(sweep: Sweep, state: SweepState) -> list[Trial]:
    """Return the best trial, or with several goals all Pareto-optimal ones. Raises OutlastError without any."""
    leaders = best(state, sweep.search.goals)
    if not leaders:
        raise OutlastError(f"{sweep.name} has no complete trial yet", hint=f"see `outlast sweep show {sweep.name}`")
    return leaders


def new_sweep(workspace: Workspace, spec: Spec, *, source: str, report: Report) -> Sweep:
    """Record a sweep; a driver starts its trials."""
    from outlast.sweep.create import create_sweep

    return create_sweep(workspace, clouds(workspace), spec, environment=os.environ, source=source, report=report)


def new_driver(workspace: Workspace, sweep: Sweep, *, report: Report, watch: Callable[[SweepState], None]) -> Driver:
    """Return a driver that does nothing yet; its `run` drives the sweep to its end."""
    from outlast.sweep.driver import Driver

    return Driver(workspace, clouds(workspace), sweep, environment=os.environ, report=report, watch=watch)


def reopen_sweep(workspace: Workspace, sweep: Sweep, *, more: int = 0, only_if_needed: bool = False) -> None:
    """Add trials, and let a stopped sweep continue; `only_if_needed` leaves a stopped one as it is."""
    from outlast.sweep.create import extend

    if more or (state_of(workspace, sweep).stopped and not only_if_needed):
        extend(workspace, sweep, more)


def stop_sweep(workspace: Workspace, sweep: Sweep, *, now: bool = False) -> bool:
    """Start no more trials, and with `now` cancel running ones; return False if it is stopped already."""
    from outlast.sweep.create import stop_sweep as stop

    if not stop(workspace, sweep, now=now):
        return False
    # The driver does the rest; start one if there is none.
    start_driver(workspace, sweep.name)
    return True


def rerun_trial(workspace: Workspace, sweep: Sweep, trial: Trial) -> RunRequest:
    """Repeat a trial as a new run with the same parameters, code and image."""
    from outlast.submit.run import resubmit
    from outlast.sweep.trial import trial_spec

    return resubmit(
        workspace,
        clouds(workspace),
        trial_spec(sweep, trial.params),
        sweep.code,
        what=f"trial {trial.number} of {sweep.name}",
        environment=os.environ,
    )


def metrics_of(workspace: Workspace, sweep: Sweep, run: str) -> dict[str, Any]:
    """Return the values of the goals of a run, as the sweep measures them."""
    from outlast.sweep.objective import measured

    return dict(measured(workspace.bucket, run, workspace.story(run).refresh(), sweep.search.metrics))
