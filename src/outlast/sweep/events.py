"""What can happen to a sweep: one type an event, frozen, written once. As of runs, an event says what happened."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from outlast.spec.spec import ParamValue

# `unmeasured`: it ended well and said nothing of a goal. `cancelled`: nobody's fault, and another takes its place.
Outcome = Literal["complete", "pruned", "failed", "unmeasured", "cancelled"]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: float = 0.0
    nonce: str = ""
    by: str = ""


class Opened(_Event, frozen=True, kw_only=True, tag="opened"):
    """A user asked for the sweep, and for so many trials."""

    who: str
    trials: int


class Extended(_Event, frozen=True, kw_only=True, tag="extended"):
    """So many trials more are wanted. One that was halted goes on, also with none more."""

    who: str
    more: int = 0


class WorkerAdded(_Event, frozen=True, kw_only=True, tag="worker_added"):
    """The intent to submit a worker: a run that carries out trials, several at a time."""

    run: str


class TrialSuggested(_Event, frozen=True, kw_only=True, tag="trial_suggested"):
    """The intent to try these parameters, in this run. Written before the run is submitted."""

    trial: int
    params: dict[str, ParamValue]
    run: str
    # What the sampler has to remember of it.
    attrs: dict[str, Any] = {}


class Moved(_Event, frozen=True, kw_only=True, tag="moved"):
    """The worker of a trial is no more; another one has it now, and the first can tell nothing of it any more."""

    trial: int
    run: str


class ResultRecorded(_Event, frozen=True, kw_only=True, tag="result_recorded"):
    """How a trial ended. Legal once, and only from the run that has it: there is one result a trial."""

    trial: int
    run: str
    outcome: Outcome
    # In the order of the goals; empty if there are none.
    values: tuple[float, ...] = ()
    metrics: dict[str, float] = {}
    why: str = ""
    # The goal's values on the way, by step, that a pruner judged; and what it has to remember.
    reports: dict[str, float] = {}
    attrs: dict[str, Any] = {}
    seconds: float = 0.0


class SweepStopped(_Event, frozen=True, kw_only=True, tag="sweep_stopped"):
    """No more trials are asked. `now`: those under way are given up, too."""

    who: str = ""
    why: str = ""
    now: bool = False


Event = Opened | Extended | WorkerAdded | TrialSuggested | Moved | ResultRecorded | SweepStopped

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(body: bytes) -> Event:
    """Raises msgspec.DecodeError for what is no event."""
    return _decoder.decode(body)
