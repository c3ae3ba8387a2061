"""The values of the supervisor's loop: the World that it observes, and the steps that it plans."""

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
        """Return whether it is alive and has no machine."""
        return self.state.alive and (self.state.last is None or self.state.last.phase == "over")


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """One run at one moment."""

    run: str
    spec: Spec
    state: RunState
    # How long this supervisor has observed no new heartbeat; time in which the computer slept does not count.
    silent_s: float = 0.0
    spot_offers: tuple[Offer, ...] = ()
    on_demand_offers: tuple[Offer, ...] = ()
    # Why there can be no offer: an unknown machine type, a zone that does not exist.
    impossible: str = ""
    # Why the offers could not be listed in this round.
    offers_error: str = ""
    hint: str = ""
    # How long this supervisor has known that the run has reached a limit.
    limited_s: float = 0.0
    # The other runs of its group, and whether the group is complete.
    siblings: tuple[Sibling, ...] = ()
    sealed: bool = True


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a user or of the whole workspace, and their use by closed ledger pages."""

    limits: Limits
    # The begin of the day, the month or the whole period.
    since: float = 0.0
    closed_usd: float = 0.0
    closed_s: float = 0.0


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a round. It may be partial: `unreachable` names the clouds that did not answer."""

    now: float
    workspace_id: str
    # Moving data between clouds costs money.
    workspace_url: str = ""
    runs: tuple[RunView, ...] = ()
    machines: dict[str, Machine] = {}
    unreachable: dict[str, str] = {}
    # Recently refused offers of all runs: key → until.
    cooldowns: dict[str, float] = {}
    # Runs whose story cannot be read: their machines must not be deleted.
    damaged: frozenset[str] = frozenset()
    # Machines that no run owns → their records; None without a record. Unreadable records are left out.
    machine_records: dict[str, MachineRecordView | None] = {}
    # The supervisor machine on which this supervisor runs; it deletes itself.
    supervisor_vm: str = ""
    budgets: tuple[Budget, ...] = ()


class PlaceAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append the intent to launch; the launch follows in the next round."""

    run: str
    attempt: int
    offer: Offer


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create the machine of a placed attempt, or find it."""

    run: str
    attempt: int
    offer: Offer
    tries: int = 0


class MarkLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give up an attempt."""

    run: str
    attempt: int
    why: str
    preempted: bool


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete the machine of an attempt that is over, with its disks, and record its cost."""

    run: str
    attempt: int
    cloud: str
    machine: str
    price_usd_per_hour: float
    # How long it ran, if its cloud reports it; else 0.
    ran_s: float = 0.0
    disk_usd: float = 0.0
    started_event: int = 0
    over_event: int = 0


class Reap(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Delete a machine that belongs neither to a current attempt of a live run nor to a record."""

    cloud: str
    machine: str
    why: str
    # The id of its record, if it had one.
    machine_record: str = ""


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    run: str
    why: str
    hint: str = ""
    exit_code: int | None = None


class Wait(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append once why a run cannot proceed."""

    run: str
    why: str
    until: float = 0.0


class Warn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append once that a limit is near."""

    run: str
    limit: str
    why: str


class Move(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let an attempt save and stop while its successor starts elsewhere: a handoff without a preemption."""

    run: str
    attempt: int
    why: str
    grace_s: float


class StopAtLimit(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let a run that has reached a limit save and stop."""

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
    """Delete the heartbeat, the secrets and the unreferenced checkpoint parts of a run that is over."""

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
    """Return a step in words, for `outlast plan` and the supervisor's log."""
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
            return f"let attempt {step.attempt} of {step.run} save and stop: it {step.why}"
        case Warn():
            return f"warn {step.run}: {step.why}"
        case StopAtLimit():
            return f"let {step.run} save and stop: {step.why}"
        case ReleaseMember():
            return f"end {step.run}, not needed any more: {step.why}"
        case Finalize():
            return f"finalize {step.run}: delete its heartbeat and secrets"
