"""The values of the supervisor's loop: the World that it observes, and the steps that it plans."""

from __future__ import annotations

import msgspec

from outlast.billing.limits import Limits
from outlast.clouds.cloud import Machine, Offer, sized_key
from outlast.records.machines import MachineRecordView
from outlast.runs.events import Pool
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
    """The input of a round. It may be partial: `unreachable` names the clouds and zones that did not answer."""

    now: float
    workspace_id: str
    # Moving data between clouds costs money.
    workspace_url: str = ""
    runs: tuple[RunView, ...] = ()
    machines: dict[str, Machine] = {}
    # The machines of placed attempts that this supervisor has seen.
    seen: frozenset[str] = frozenset()
    # `CLOUD` or `CLOUD/ZONE` → the reason.
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

    def is_silent(self, cloud: str, zone: str) -> bool:
        """Return whether a machine there may exist although it is not listed."""
        return cloud in self.unreachable or zone_key(cloud, zone) in self.unreachable


def zone_key(cloud: str, zone: str) -> str:
    return f"{cloud}/{zone}"


class PlaceAttempt(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append the intent to launch; the launch follows in the next round."""

    run: str
    attempt: int
    offer: Offer
    # Of a distributed run: its size, the size with which it can do (0: none), and the machines that it keeps by rank.
    nodes: int = 1
    least: int = 0
    kept: dict[int, str] = {}
    # Other pools of the same region that a cloud may choose instead, if it chooses itself.
    others: tuple[Offer, ...] = ()
    # The run works on, and moves only when this attempt has a machine.
    ahead: bool = False


class Launch(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Create the machine of a placed attempt, or find it."""

    run: str
    attempt: int
    offer: Offer
    # Offers that the cloud may choose instead, as the story names them.
    others: tuple[Offer, ...] = ()
    tries: int = 0
    # Of a distributed run: the machines to create, all or none, by rank.
    members: dict[int, str] = {}


class Locate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Record which of the pools of an attempt the cloud chose."""

    run: str
    attempt: int
    pool: Pool


class MarkLost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give up an attempt."""

    run: str
    attempt: int
    why: str
    preempted: bool
    # The ranks whose machines cannot be kept.
    nodes: tuple[int, ...] = ()


class LoseNode(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Let an attempt save and stop because one of its machines, which does not lead, is lost."""

    run: str
    attempt: int
    node: int
    why: str
    grace_s: float


class RetireNodes(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Give up the machines that survived an attempt; they are released in the next round."""

    run: str
    attempt: int
    why: str


class Bill(msgspec.Struct, frozen=True):
    """A machine to delete and to bill."""

    machine: str
    price_usd_per_hour: float
    ran_s: float = 0.0
    disk_usd: float = 0.0
    address_usd_per_hour: float = 0.0


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
    address_usd_per_hour: float = 0.0
    # Of its traffic between regions or clouds.
    egress_usd: float = 0.0
    started_event: int = 0
    over_event: int = 0
    # The other machines of a distributed attempt.
    others: tuple[Bill, ...] = ()


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
    | Locate
    | MarkLost
    | LoseNode
    | RetireNodes
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


def region_key(offer: Offer) -> str:
    """Return the key of a quota: one region, one kind of GPU, spot or on demand."""
    return f"{offer.cloud}/{offer.region}/*{offer.gpu}/{'spot' if offer.spot else 'on-demand'}"


def gpu_key(offer: Offer) -> str:
    """Return the key of a zone's GPUs, which all its machine types share; empty without a GPU.

    Where eight are not to be had, one may be.
    """
    kind = "spot" if offer.spot else "on-demand"
    return f"{offer.cloud}/{offer.zone}/{offer.gpu}:{offer.gpus}/{kind}" if offer.gpu else ""


def cooldown_until(world: World, offer: Offer, nodes: int = 1) -> float:
    """Return when the cooldowns of an offer end: its own, of its region's quota and of its zone's GPUs."""
    keys = (offer.key, region_key(offer), gpu_key(offer))
    # A zone that refused one machine has no room for several.
    return max(world.cooldowns.get(sized_key(key, count), 0.0) for key in keys for count in {1, nodes})


def describe(step: Step) -> str:
    """Return a step in words, for `outlast plan` and the supervisor's log."""
    match step:
        case PlaceAttempt():
            kind = "spot" if step.offer.spot else "on demand"
            count = f"{step.nodes} × " if step.nodes > 1 else ""
            kept = f", {len(step.kept)} of them kept" if step.kept else ""
            where = f"{count}{step.offer.type} in {step.offer.zone} ({kind}{kept})"
            ahead = ", while the one before works" if step.ahead else ""
            return f"place attempt {step.attempt} of {step.run} on {where}{ahead}"
        case Launch():
            what = f"{len(step.members)} machines" if len(step.members) > 1 else "the machine"
            return f"launch {what} of attempt {step.attempt} of {step.run} in {step.offer.zone}"
        case Locate():
            return f"record that attempt {step.attempt} of {step.run} is in {step.pool.zone}"
        case MarkLost():
            return f"give up attempt {step.attempt} of {step.run}: {step.why}"
        case LoseNode():
            return f"let attempt {step.attempt} of {step.run} save and stop: {step.why}"
        case RetireNodes():
            return f"give up the machines of attempt {step.attempt} of {step.run}: {step.why}"
        case Release():
            return _describe_release(step)
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


def _describe_release(step: Release) -> str:
    names = [name for name in (step.machine, *(bill.machine for bill in step.others)) if name]
    if len(names) == 1:
        return f"delete {names[0]}, the machine of attempt {step.attempt} of {step.run}, and record its cost"
    if not names:
        return f"record attempt {step.attempt} of {step.run}: the next one has its machines"
    return f"delete {', '.join(names)}, the machines of attempt {step.attempt} of {step.run}, and record their cost"
