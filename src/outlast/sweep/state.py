"""From a sweep's events to its state, and which event is legal when. Pure."""

from __future__ import annotations

from typing import Any, Literal, assert_never

import msgspec

from outlast.errors import InvalidTransition
from outlast.spec.spec import ParamValue
from outlast.sweep import events as ev
from outlast.sweep.events import Event, Outcome


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the search. Its number is the one that Optuna gives it."""

    number: int
    params: dict[str, ParamValue]
    run: str
    attrs: dict[str, Any] = {}
    asked_at: float = 0.0
    # Empty while it is under way.
    outcome: Outcome | Literal[""] = ""
    values: tuple[float, ...] = ()
    metrics: dict[str, float] = {}
    reports: dict[str, float] = {}
    why: str = ""
    told_at: float = 0.0
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        return not self.outcome


class SweepState(msgspec.Struct, frozen=True, kw_only=True):
    """All that the story of a sweep says."""

    length: int = 0
    who: str = ""
    opened_at: float = 0.0
    wanted: int = 0
    trials: tuple[Trial, ...] = ()
    # Numbers in the order in which they ended.
    told: tuple[int, ...] = ()
    workers: tuple[str, ...] = ()
    halted: bool = False
    # Those under way are given up, too.
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
        """Trials that count towards those that are wanted: all but the cancelled."""
        return sum(trial.outcome != "cancelled" for trial in self.trials)

    @property
    def left(self) -> int:
        """How many are still to be asked."""
        return 0 if self.halted else max(0, self.wanted - self.counted)

    @property
    def over(self) -> bool:
        return self.exists and not self.left and not self.open


def why_illegal(state: SweepState, event: Event) -> str:
    """Why the event is no legal step; empty if it is one."""
    if isinstance(event, ev.Opened):
        return "it is opened already" if state.exists else ""
    if not state.exists:
        return "it was never opened"
    match event:
        case ev.Extended():
            # One that is over and not halted is extended by more; one that was halted may simply go on.
            return "" if event.more > 0 or (state.halted and not event.more) else "nothing more is wanted"
        case ev.WorkerAdded():
            return f"{event.run} is hired already" if event.run in state.workers else ""
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
            # Fenced: a worker that was given up may still breathe, and its trial is another's now.
            return f"trial {event.trial} belongs to {state.trials[event.trial].run}"
        case ev.SweepStopped():
            return "it is halted already" if state.halted and (state.abandoned or not event.now) else ""
        case _:
            assert_never(event)


def _not_open(state: SweepState, number: int) -> str:
    if not 0 <= number < len(state.trials):
        return f"there is no trial {number}"
    return "" if state.trials[number].open else f"trial {number} has ended already"


def step(state: SweepState, event: Event) -> SweepState:
    """The state after one more event. Raises InvalidTransition."""
    problem = why_illegal(state, event)
    if problem:
        raise InvalidTransition(f"{type(event).__name__} is no legal event number {state.length + 1}: {problem}")
    replace = msgspec.structs.replace
    state = replace(state, length=state.length + 1)
    match event:
        case ev.Opened():
            return replace(state, who=event.who, opened_at=event.at, wanted=event.trials)
        case ev.Extended():
            return replace(state, wanted=state.wanted + event.more, halted=False, abandoned=False, why="")
        case ev.WorkerAdded():
            return replace(state, workers=(*state.workers, event.run))
        case ev.TrialSuggested():
            asked = Trial(number=event.trial, params=event.params, run=event.run, attrs=event.attrs, asked_at=event.at)
            return replace(state, trials=(*state.trials, asked))
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
                told_at=event.at,
                seconds=event.seconds,
            )
            return replace(_with(state, trial), told=(*state.told, event.trial))
        case ev.SweepStopped():
            return replace(state, halted=True, abandoned=state.abandoned or event.now, why=event.why or state.why)
        case _:
            assert_never(event)


def _with(state: SweepState, trial: Trial) -> SweepState:
    at = trial.number
    return msgspec.structs.replace(state, trials=(*state.trials[:at], trial, *state.trials[at + 1 :]))


def better(goal: str, one: float, other: float) -> bool:
    return one < other if goal.startswith("min:") else one > other


def best(state: SweepState, goals: tuple[str, ...]) -> list[Trial]:
    """The best trial; with several goals all that no other beats in everything. Of equals the first."""
    found: list[Trial] = []
    for trial in state.complete:
        if any(_beats(other, trial, goals) for other in state.complete):
            continue
        if len(goals) > 1 or not found:
            found.append(trial)
    return found


def _beats(one: Trial, other: Trial, goals: tuple[str, ...]) -> bool:
    pairs = list(zip(goals, one.values, other.values, strict=True))
    return any(better(g, a, b) for g, a, b in pairs) and not any(better(g, b, a) for g, a, b in pairs)
