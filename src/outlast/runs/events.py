"""What can happen to a run: one type an event, frozen, written once.

An event says what happened, never what should be done about it. `at` is the writer's clock and is for people; nothing
is decided by comparing it with another machine's clock.
"""

# No `from __future__ import annotations` here: msgspec would compile each annotation anew in every process.

from typing import Annotated, Literal

import msgspec

# How an attempt ended. `preempted`: the machine was taken away. `killed`: a signal, and no notice.
# `hung`: no sign of progress. `broken`: it never came to running the command. `stopped`: the run was over.
Outcome = Literal["preempted", "crashed", "killed", "hung", "broken", "stopped"]


# Up to the year 33,658, which no clock says: a story with another time was not written by us.
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: Moment = 0.0
    # Whoever writes recognises its own event by it when the answer to the create was lost.
    nonce: str = ""
    by: str = ""


class Submitted(_Event, frozen=True, kw_only=True, tag="submitted"):
    """A user asked for the run."""

    who: str = ""


class Placed(_Event, frozen=True, kw_only=True, tag="placed"):
    """The intent to launch a machine for this attempt; written before the launch, so that no machine is unknown."""

    attempt: int
    cloud: str
    region: str
    zone: str
    type: str
    spot: bool
    price_usd_per_hour: float
    on_demand_usd_per_hour: float = 0.0
    machine: str = ""


class LaunchRefused(_Event, frozen=True, kw_only=True, tag="launch_refused"):
    """The cloud had no machine for this attempt; `offers` are not requested again until `until`."""

    attempt: int
    why: str
    until: float
    offers: tuple[str, ...] = ()


class Started(_Event, frozen=True, kw_only=True, tag="started"):
    """The agent is about to run the command. Fences every earlier attempt."""

    attempt: int
    resumed_from: str = ""
    resumed_step: int | None = None
    code: str = ""


class Saved(_Event, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint is committed: all its bodies and its manifest are in the workspace."""

    attempt: int
    checkpoint: str
    step: int | None = None
    bytes: int = 0
    # What it is judged by if the best are kept; empty if that was not logged, or no number.
    metrics: dict[str, float] = {}


class Noticed(_Event, frozen=True, kw_only=True, tag="noticed"):
    """The machine will be taken away in `grace_s`."""

    attempt: int
    why: str
    grace_s: float
    # The supervisor takes the run to another machine, to be in time or for less; no cloud takes this one away.
    moves: bool = False


class Warned(_Event, frozen=True, kw_only=True, tag="warned"):
    """The cloud thinks that it may soon want the machine back. Nothing ends by it."""

    attempt: int
    why: str


class Stopped(_Event, frozen=True, kw_only=True, tag="stopped"):
    """The attempt is over and the run is not; written by the attempt's own agent."""

    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    why: str = ""
    # The machine stays for debugging for this long.
    keep_s: float = 0.0
    # Why the newest state of the checkpoint folder was not committed; empty if it was.
    unsaved: str = ""


class Finished(_Event, frozen=True, kw_only=True, tag="finished"):
    """The command did what it was asked for. Ends the run."""

    attempt: int
    exit_code: int = 0
    outputs: int = 0


class Lost(_Event, frozen=True, kw_only=True, tag="lost"):
    """The supervisor gave the attempt up. Fences it: if it still breathes it can commit nothing any more."""

    attempt: int
    why: str
    preempted: bool = True


class Released(_Event, frozen=True, kw_only=True, tag="released"):
    """The attempt's machine and disks are gone; what they cost."""

    attempt: int
    cost_usd: float
    seconds: float = 0.0
    # The part of it that was paid for the disk.
    disk_usd: float = 0.0


class Waiting(_Event, frozen=True, kw_only=True, tag="waiting"):
    """The run cannot move now, and why."""

    why: str
    until: float = 0.0


class LimitNear(_Event, frozen=True, kw_only=True, tag="limit_near"):
    """A limit is near; said once a limit, before it is reached."""

    # Which one: `cost_usd`, `deadline`, `max_hours`; of whom: `user cost_usd`, `workspace cost_usd`.
    limit: str
    why: str


class LimitReached(_Event, frozen=True, kw_only=True, tag="limit_reached"):
    """A limit is reached: what runs has `grace_s` to save and leave, nothing else is placed, then the run ends."""

    limit: str
    why: str
    hint: str = ""
    grace_s: float = 0.0


class Failed(_Event, frozen=True, kw_only=True, tag="failed"):
    """Ends the run without success."""

    why: str
    hint: str = ""
    exit_code: int | None = None


class OwnerChanged(_Event, frozen=True, kw_only=True, tag="owner_changed"):
    """From now on the run is this user's: in listings, limits and costs."""

    who: str


class Cancelled(_Event, frozen=True, kw_only=True, tag="cancelled"):
    """Ends the run because somebody asked for it, or because those whom it served are done."""

    who: str = ""
    why: str = ""


Event = (
    Submitted
    | Placed
    | LaunchRefused
    | Started
    | Saved
    | Noticed
    | Warned
    | Stopped
    | Finished
    | Lost
    | Released
    | Waiting
    | LimitNear
    | LimitReached
    | Failed
    | OwnerChanged
    | Cancelled
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(body: bytes) -> Event:
    """Raises msgspec.DecodeError (ValidationError is one) for what is no event."""
    return _decoder.decode(body)
