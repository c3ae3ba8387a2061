"""The events of a run: one frozen type each, written once.

An event records a fact, never an instruction. `at` is the writer's clock, for display; nothing is decided by comparing
it with the clock of another machine.
"""

# No `from __future__ import annotations` here: msgspec would have to compile each annotation in every process.

from typing import Annotated, Literal

import msgspec

from outlast.runs.usage import Usage

# How an attempt ended. `preempted`: the cloud took the machine. `killed`: by a signal, without a notice. `hung`: no
# progress. `broken`: the command never started. `stopped`: the run was over.
Outcome = Literal["preempted", "crashed", "killed", "hung", "broken", "stopped"]
# How the command ended: `orderly` by itself; `handled` by its handler of SIGTERM, with a signal's code; `cut` short.
Ending = Literal["orderly", "handled", "cut"]


# Up to the year 33,658: a story with another time was not written by us.
Moment = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class MetricRange(msgspec.Struct, frozen=True, array_like=True):
    """The last value of a metric, and its lowest and highest, lost and repeated work included."""

    last: float
    low: float
    high: float


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: Moment = 0.0
    # A writer recognizes its own event by it after a lost response.
    nonce: str = ""
    by: str = ""


class Submitted(_Event, frozen=True, kw_only=True, tag="submitted"):
    """A user submitted the run."""

    who: str = ""


class Pool(msgspec.Struct, frozen=True, array_like=True):
    """A machine type in a zone that a cloud may choose for a spot machine, with its prices per hour."""

    zone: str
    type: str
    usd: float
    on_demand_usd: float = 0.0


class Placed(_Event, frozen=True, kw_only=True, tag="placed"):
    """The intent to launch a machine for this attempt; written before the launch, so that every machine is known."""

    attempt: int
    cloud: str
    region: str
    zone: str
    type: str
    spot: bool
    price_usd_per_hour: float
    on_demand_usd_per_hour: float = 0.0
    machine: str = ""
    # Of a distributed run: the machines in the order of their ranks. Those of the attempt before are kept.
    members: tuple[str, ...] = ()
    # The number of machines with which the run can do, if that is fewer; 0: it needs them all.
    least: int = 0
    # Of one machine's public address.
    address_usd_per_hour: float = 0.0
    # Other pools of the region that the cloud may choose instead of `zone` and `type`; `Located` says which it was.
    pools: tuple[Pool, ...] = ()
    # The price of a GB that the machine sends to the workspace, and that it receives from there.
    sent_usd_per_gb: float = 0.0
    received_usd_per_gb: float = 0.0
    # Its GPUs, as the cloud names them, and their number; "" and 0 in stories of earlier versions.
    gpu: str = ""
    gpus: int = 0
    # The attempt before works on: it receives its notice only when this one has a machine.
    ahead: bool = False


class Located(_Event, frozen=True, kw_only=True, tag="located"):
    """The cloud chose another one of the pools of `Placed`."""

    attempt: int
    zone: str
    type: str
    price_usd_per_hour: float
    on_demand_usd_per_hour: float


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
    # What the machine has received from the workspace so far: packages, code, data and the checkpoint.
    received_bytes: int = 0


class Saved(_Event, frozen=True, kw_only=True, tag="saved"):
    """A checkpoint is committed: all its bodies and its manifest are in the workspace."""

    attempt: int
    checkpoint: str
    step: int | None = None
    bytes: int = 0
    # When its files were last changed, by the machine's clock; 0 if unknown.
    changed_at: float = 0.0
    # The metric of `keep_best`; empty if it was not logged as a number.
    metrics: dict[str, float] = {}
    # The number of nodes with which it can be resumed; 0: any number.
    nodes: int = 0
    # What the machine has sent to the workspace so far.
    sent_bytes: int = 0


class Noticed(_Event, frozen=True, kw_only=True, tag="noticed"):
    """The cloud takes the machine away in `grace_s` seconds."""

    attempt: int
    why: str
    grace_s: float
    # The supervisor moves the run to another machine, for its deadline or its cost; the cloud did not ask.
    moves: bool = False
    # The rank of the machine. The notice of one ends the attempt on all.
    node: int = 0


class Warned(_Event, frozen=True, kw_only=True, tag="warned"):
    """The cloud warns that a preemption is likely. The attempt continues."""

    attempt: int
    why: str


class Stopped(_Event, frozen=True, kw_only=True, tag="stopped"):
    """The attempt is over and the run is not; written by the agent."""

    attempt: int
    outcome: Outcome
    exit_code: int | None = None
    why: str = ""
    # The machine stays for debugging for this long.
    keep_s: float = 0.0
    # Why the newest state of the checkpoint folder was not committed; empty if it was.
    unsaved: str = ""
    # Whether the command handled SIGTERM or was cut short, which 143 alone does not show.
    ending: Ending | Literal[""] = ""
    # What the machine has sent to the workspace, and received from there.
    sent_bytes: int = 0
    received_bytes: int = 0
    # The last step that the command reported, its metrics, and what it used of the machine.
    step: int | None = None
    metrics: dict[str, MetricRange] = {}
    usage: Usage | None = None


class Finished(_Event, frozen=True, kw_only=True, tag="finished"):
    """The command succeeded. Ends the run."""

    attempt: int
    exit_code: int = 0
    outputs: int = 0
    # What the machine has sent to the workspace, and received from there.
    sent_bytes: int = 0
    received_bytes: int = 0
    # The last step that the command reported, its metrics, and what it used of the machine.
    step: int | None = None
    metrics: dict[str, MetricRange] = {}
    usage: Usage | None = None


class Lost(_Event, frozen=True, kw_only=True, tag="lost"):
    """The supervisor gave up the attempt. Fences it: if it still runs, it can no longer append any event."""

    attempt: int
    why: str
    preempted: bool = True
    # The ranks whose machines the next attempt cannot keep.
    nodes: tuple[int, ...] = ()


class Retired(_Event, frozen=True, kw_only=True, tag="retired"):
    """The next attempt keeps none of the machines that survived this one; written before they are deleted."""

    attempt: int
    why: str = ""


class Released(_Event, frozen=True, kw_only=True, tag="released"):
    """The attempt's machine and disks are deleted, with their cost."""

    attempt: int
    cost_usd: float
    seconds: float = 0.0
    # The parts of the cost for the disk, for public addresses, and for traffic between regions or clouds.
    disk_usd: float = 0.0
    address_usd: float = 0.0
    egress_usd: float = 0.0


class Waiting(_Event, frozen=True, kw_only=True, tag="waiting"):
    """The run cannot proceed now, for this reason."""

    why: str
    until: float = 0.0


class LimitNear(_Event, frozen=True, kw_only=True, tag="limit_near"):
    """A limit is near; written once per limit."""

    # `cost_usd`, `deadline`, `max_hours` of the run, or with an owner: `user cost_usd`, `workspace cost_usd`.
    limit: str
    why: str


class LimitReached(_Event, frozen=True, kw_only=True, tag="limit_reached"):
    """A limit is reached: the attempts have `grace_s` to save and stop, no other is placed, then the run ends."""

    limit: str
    why: str
    hint: str = ""
    grace_s: float = 0.0


class Failed(_Event, frozen=True, kw_only=True, tag="failed"):
    """Ends the run without success."""

    why: str
    hint: str = ""
    exit_code: int | None = None
    # By an agent: the last step that the command reported, its metrics, and what it used of the machine.
    step: int | None = None
    metrics: dict[str, MetricRange] = {}
    usage: Usage | None = None


class OwnerChanged(_Event, frozen=True, kw_only=True, tag="owner_changed"):
    """The run belongs to this user from now on, in listings, limits and costs."""

    who: str


class Cancelled(_Event, frozen=True, kw_only=True, tag="cancelled"):
    """Ends the run because a user cancelled it, or because the runs that it serves have ended."""

    who: str = ""
    why: str = ""


Event = (
    Submitted
    | Placed
    | Located
    | LaunchRefused
    | Started
    | Saved
    | Noticed
    | Warned
    | Stopped
    | Finished
    | Lost
    | Retired
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
    """Parse an event. Raises msgspec.DecodeError (ValidationError is one)."""
    return _decoder.decode(body)
