"""What the supervisor sees and what it may do: two unions of values, and nothing that acts."""

from __future__ import annotations

import msgspec

from outlast.billing.limits import Limits
from outlast.clouds.cloud import Machine, Offer
from outlast.records.machines import MachineRecordView
from outlast.runs.state import RunState
from outlast.spec.spec import Spec


class Sibling(msgspec.Struct, frozen=True, kw_only=True):
    """Another run of the same group."""

    run: str
    task: str
    spare: bool = False
    ready: bool = False
    state: RunState = RunState()

    @property
    def waits(self) -> bool:
        """It lives and has no machine."""
        return self.state.alive and (self.state.last is None or self.state.last.phase == "over")


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment."""

    run: str
    spec: Spec
    state: RunState
    # How long this supervisor has itself watched the heartbeat stand still; a laptop that slept has watched nothing.
    silent_s: float = 0.0
    spot_offers: tuple[Offer, ...] = ()
    on_demand_offers: tuple[Offer, ...] = ()
    # Why there can be no offer at all: an unknown type, a zone that does not exist.
    impossible: str = ""
    # Why the offers could not be read just now.
    unsure: str = ""
    hint: str = ""
    # How long this supervisor has known that the run has reached a limit.
    limited_s: float = 0.0
    # The other runs of its group, and whether all of it was asked for.
    siblings: tuple[Sibling, ...] = ()
    sealed: bool = True


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user or of the whole workspace, and what is used of them by all that is over."""

    limits: Limits
    # When the day, the month or everything began.
    since: float = 0.0
    closed_usd: float = 0.0
    closed_s: float = 0.0


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a round decides on. Partial is normal: `unreachable` names the clouds that did not answer."""

    now: float
    workspace_id: str
    # Where the workspace is: data that crosses between clouds costs.
    workspace_url: str = ""
    runs: tuple[RunView, ...] = ()
    machines: dict[str, Machine] = {}
    unreachable: dict[str, str] = {}
    # Offers that were refused lately, by whichever run asked: key → until.
    cooldowns: dict[str, float] = {}
    # Runs whose story cannot be read: what they own is not known, so their machines are nobody's to delete.
    damaged: frozenset[str] = frozenset()
    # Machines that no run owns, with their records; None where there is none. Those that cannot be read are left out.
    machine_records: dict[str, MachineRecordView | None] = {}
    # The machine that this supervisor is on, if it is there for that: it knows itself when to go.
    station: str = ""
    budgets: tuple[Budget, ...] = ()


class PlaceAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Write the intent to launch; the launch follows in the next round."""

    run: str
    attempt: int
    offer: Offer


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Make the machine of a placed attempt, or find it."""

    run: str
    attempt: int
    offer: Offer
    tries: int = 0


class MarkLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give an attempt up."""

    run: str
    attempt: int
    why: str
    preempted: bool


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete the machine of an attempt that is over, with its disks, and record what it cost."""

    run: str
    attempt: int
    cloud: str
    machine: str
    price_usd_per_hour: float
    # How long it ran, if its cloud has told; else 0.
    ran_s: float = 0.0
    disk_usd: float = 0.0
    started_event: int = 0
    over_event: int = 0


class Reap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete a machine that no story knows as the current attempt of a live run, and no record as made by hand."""

    cloud: str
    machine: str
    why: str
    # The id of its record, if it was made by hand.
    machine_record: str = ""


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    run: str
    why: str
    hint: str = ""
    exit_code: int | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The run cannot move; say why, once."""

    run: str
    why: str
    until: float = 0.0


class Warn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A limit is near; say so, once."""

    run: str
    limit: str
    why: str


class Move(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let an attempt save and leave, and the next one start elsewhere: a handoff that no cloud has asked for."""

    run: str
    attempt: int
    why: str
    grace_s: float


class StopAtLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A limit is reached: let the run save and stop."""

    run: str
    limit: str
    why: str
    hint: str = ""
    grace_s: float = 0.0


class ReleaseMember(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """End a run that served others of its group, because they are done."""

    run: str
    why: str


class Finalize(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A run is over and costs nothing: drop its heartbeat, its secrets, and parts that no checkpoint names."""

    run: str
    cloud: str


Step = (
    PlaceAttempt
    | Launch
    | MarkLost
    | Release
    | Reap
    | Fail
    | Wait
    | Move
    | Warn
    | StopAtLimit
    | ReleaseMember
    | Finalize
)


def describe(step: Step) -> str:
    """A step in a sentence, for `outlast plan` and the supervisor's log."""
    match step:
        case PlaceAttempt():
            kind = "spot" if step.offer.spot else "on demand"
            return f"place attempt {step.attempt} of {step.run} on {step.offer.type} in {step.offer.zone} ({kind})"
        case Launch():
            return f"launch the machine of attempt {step.attempt} of {step.run} in {step.offer.zone}"
        case MarkLost():
            return f"give up attempt {step.attempt} of {step.run}: {step.why}"
        case Release():
            return f"delete {step.machine}, the machine of attempt {step.attempt} of {step.run}, and record its cost"
        case Reap():
            return f"delete {step.machine} on {step.cloud}: {step.why}"
        case Fail():
            return f"end {step.run} as failed: {step.why}"
        case Wait():
            return f"hold {step.run}: {step.why}"
        case Move():
            return f"let attempt {step.attempt} of {step.run} save and leave: it {step.why}"
        case Warn():
            return f"warn {step.run}: {step.why}"
        case StopAtLimit():
            return f"let {step.run} save and stop: {step.why}"
        case ReleaseMember():
            return f"end {step.run}, which is not needed any more: {step.why}"
        case Finalize():
            return f"forget the heartbeat and the secrets of {step.run}: it is over"
