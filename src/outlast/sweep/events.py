"""The events of a sweep's story: frozen values, each written once."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from outlast.spec.spec import ParamValue

# `unmeasured`: it succeeded but logged no value for a goal. `cancelled`: another trial takes its place.
Outcome = Literal["complete", "pruned", "failed", "unmeasured", "cancelled"]


class _SweepEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: float = 0.0
    nonce: str = ""
    by: str = ""


class Opened(_SweepEvent, frozen=True, kw_only=True, tag="opened"):
    """A user created the sweep."""

    who: str
    trials: int


class Extended(_SweepEvent, frozen=True, kw_only=True, tag="extended"):
    """A user added `more` trials, and resumed the sweep if it was stopped."""

    who: str
    more: int = 0


class WorkerAdded(_SweepEvent, frozen=True, kw_only=True, tag="worker_added"):
    """The intent to submit a worker: a run that executes several trials at a time."""

    run: str


class TrialSuggested(_SweepEvent, frozen=True, kw_only=True, tag="trial_suggested"):
    """The intent to try these parameters, in this run. Written before the run is submitted."""

    trial: int
    params: dict[str, ParamValue]
    run: str
    # The sampler's state for this trial.
    attrs: dict[str, Any] = {}


class Moved(_SweepEvent, frozen=True, kw_only=True, tag="moved"):
    """A trial moved from a dead worker to another one. Results of the first worker are illegal from now on."""

    trial: int
    run: str


class ResultRecorded(_SweepEvent, frozen=True, kw_only=True, tag="result_recorded"):
    """The result of a trial. Legal once, and only from the run that owns the trial."""

    trial: int
    run: str
    outcome: Outcome
    # In the order of the goals; empty without a measurement.
    values: tuple[float, ...] = ()
    metrics: dict[str, float] = {}
    why: str = ""
    # The goal's values by step that the pruner saw, and the pruner's state.
    reports: dict[str, float] = {}
    attrs: dict[str, Any] = {}
    seconds: float = 0.0


class SweepStopped(_SweepEvent, frozen=True, kw_only=True, tag="sweep_stopped"):
    """No more trials are suggested. With `now`, running trials are cancelled."""

    who: str = ""
    why: str = ""
    now: bool = False


Event = Opened | Extended | WorkerAdded | TrialSuggested | Moved | ResultRecorded | SweepStopped

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(body: bytes) -> Event:
    """Decode an event. Raises msgspec.DecodeError."""
    return _decoder.decode(body)
