"""The state of a sweep, derived from its events, and the rules for legal events. Pure."""

from __future__ import annotations

from typing import Any, Literal, assert_never

import msgspec

from outlast.errors import InvalidTransition
from outlast.spec.spec import ParamValue
from outlast.sweep import events as ev
from outlast.sweep.events import Event, Outcome


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the search, with Optuna's number."""

    number: int
    params: dict[str, ParamValue]
    run: str
    attrs: dict[str, Any] = {}
    asked_at: float = 0.0
    # Empty while the trial runs.
    outcome: Outcome | Literal[""] = ""
    values: tuple[float, ...] = ()
    metrics: dict[str, float] = {}
    reports: dict[str, float] = {}
    why: str = ""
    ended_at: float = 0.0
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        return not self.outcome


class SweepState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a sweep according to its story."""

    length: int = 0
    who: str = ""
    opened_at: float = 0.0
    wanted: int = 0
    trials: tuple[Trial, ...] = ()
    # Numbers of the trials, in the order in which they ended.
    ended: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()
    stopped: bool = False
    # Running trials are cancelled, too.
    abandoned: bool = False
    why: str = ""

    @property
    def exists(self) -> bool:
        return self.length > 0

    @property
    def open(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.open]

    @property
    def complete(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.outcome == "complete"]

    @property
    def counted(self) -> int:
        """The trials that count towards `wanted`: all but cancelled ones."""
        return sum(trial.outcome != "cancelled" for trial in self.trials)

    @property
    def left(self) -> int:
        """The number of trials still to be suggested."""
        return 0 if self.stopped else max(0, self.wanted - self.counted)

    @property
    def over(self) -> bool:
        return self.exists and not self.left and not self.open


def why_illegal(state: SweepState, event: Event) -> str:
    """Return why the event is illegal in this state; empty if it is legal."""
    if isinstance(event, ev.Opened):
        return "the sweep is already open" if state.exists else ""
    if not state.exists:
        return "the sweep was never opened"
    match event:
        case ev.Extended():
            # A stopped sweep may resume without more trials.
            return "" if event.more > 0 or (state.stopped and not event.more) else "no more trials are wanted"
        case ev.WorkerAdded():
            return f"worker {event.run} was already added" if event.run in state.workers else ""
        case ev.TrialSuggested():
            if event.trial != len(state.trials):
                return f"the next trial is {len(state.trials)}"
            return "" if state.left else "no more trials are wanted"
        case ev.Moved():
            return _not_open(state, event.trial)
        case ev.ResultRecorded():
            problem = _not_open(state, event.trial)
            if problem or state.trials[event.trial].run == event.run:
                return problem
            # Fenced: a worker that counts as dead may still run, but its trial belongs to another one.
            return f"trial {event.trial} belongs to {state.trials[event.trial].run}"
        case ev.SweepStopped():
            return "the sweep is already stopped" if state.stopped and (state.abandoned or not event.now) else ""
        case _:
            assert_never(event)


def _not_open(state: SweepState, number: int) -> str:
    if not 0 <= number < len(state.trials):
        return f"trial {number} does not exist"
    return "" if state.trials[number].open else f"trial {number} has already ended"


def step(state: SweepState, event: Event) -> SweepState:
    """Return the state after one more event. Raises InvalidTransition."""
    problem = why_illegal(state, event)
    if problem:
        raise InvalidTransition(f"illegal event at index {state.length}: {type(event).__name__}: {problem}")
    replace = msgspec.structs.replace
    state = replace(state, length=state.length + 1)
    match event:
        case ev.Opened():
            return replace(state, who=event.who, opened_at=event.at, wanted=event.trials)
        case ev.Extended():
            return replace(state, wanted=state.wanted + event.more, stopped=False, abandoned=False, why="")
        case ev.WorkerAdded():
            return replace(state, workers=(*state.workers, event.run))
        case ev.TrialSuggested():
            trial = Trial(number=event.trial, params=event.params, run=event.run, attrs=event.attrs, asked_at=event.at)
            return replace(state, trials=(*state.trials, trial))
        case ev.Moved():
            return _with(state, replace(state.trials[event.trial], run=event.run))
        case ev.ResultRecorded():
            trial = replace(
                state.trials[event.trial],
                outcome=event.outcome,
                values=event.values,
                metrics=event.metrics,
                reports=event.reports,
                attrs={**state.trials[event.trial].attrs, **event.attrs},
                why=event.why,
                ended_at=event.at,
                seconds=event.seconds,
            )
            return replace(_with(state, trial), ended=(*state.ended, event.trial))
        case ev.SweepStopped():
            return replace(state, stopped=True, abandoned=state.abandoned or event.now, why=event.why or state.why)
        case _:
            assert_never(event)


def _with(state: SweepState, trial: Trial) -> SweepState:
    at = trial.number
    return msgspec.structs.replace(state, trials=(*state.trials[:at], trial, *state.trials[at + 1 :]))


def better(goal: str, one: float, other: float) -> bool:
    return one < other if goal.startswith("min:") else one > other


def best(state: SweepState, goals: tuple[str, ...]) -> list[Trial]:
    """Return the best trial, the first among equals; with several goals the Pareto front."""
    found: list[Trial] = []
    for trial in state.complete:
        if any(_dominates(other, trial, goals) for other in state.complete):
            continue
        if len(goals) > 1 or not found:
            found.append(trial)
    return found


def _dominates(one: Trial, other: Trial, goals: tuple[str, ...]) -> bool:
    pairs = list(zip(goals, one.values, other.values, strict=True))
    return any(better(g, a, b) for g, a, b in pairs) and not any(better(g, b, a) for g, a, b in pairs)
