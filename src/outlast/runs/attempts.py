"""The attempts, checkpoints and limits of a run, as the fold of its story records them."""

from __future__ import annotations

from typing import Literal

import msgspec

from outlast.runs import events as ev
from outlast.runs.events import Outcome
from outlast.runs.usage import Usage

Ending = Literal["", "finished", "failed", "cancelled"]
# placed → started → over, with `noticed` on the way from either.
AttemptPhase = Literal["placed", "started", "noticed", "over"]


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of a run on its machine or machines, as recorded in the story."""

    number: int
    machine: str
    cloud: str
    region: str
    zone: str
    type: str
    spot: bool
    price_usd_per_hour: float
    on_demand_usd_per_hour: float
    placed_at: float
    # The numbers of two events; the store's times of both give the duration by one clock.
    started_event: int = 0
    over_event: int = 0
    phase: AttemptPhase = "placed"
    started_at: float = 0.0
    resumed_from: str = ""
    resumed_step: int | None = None
    noticed_at: float = 0.0
    warned_at: float = 0.0
    notice_event: int = 0
    grace_s: float = 0.0
    over_at: float = 0.0
    # "" while it is not over; "refused", "lost", "finished", "fenced" or the outcome of `Stopped`.
    outcome: Outcome | Literal["", "refused", "lost", "finished", "fenced"] = ""
    why: str = ""
    exit_code: int | None = None
    preempted: bool = False
    # The supervisor itself moved the run.
    moved: bool = False
    # Pools that the cloud may choose instead of `zone` and `type`, until it is known which one it chose.
    pools: tuple[ev.Pool, ...] = ()
    # The GPUs that were requested; unknown in stories of earlier versions.
    gpu: str = ""
    gpus: int = 0
    # The price of its traffic with the workspace, and what its agent has counted; of several machines the leader's.
    sent_usd_per_gb: float = 0.0
    received_usd_per_gb: float = 0.0
    sent_bytes: int = 0
    received_bytes: int = 0
    egress_usd: float = 0.0
    # It was placed while the attempt before worked.
    ahead: bool = False
    keep_s: float = 0.0
    # Why the newest state of the checkpoint folder was not committed; empty if it was.
    unsaved: str = ""
    ending: ev.Ending | Literal[""] = ""
    saves: int = 0
    saved_at: float = 0.0
    released: bool = False
    released_at: float = 0.0
    cost_usd: float = 0.0
    seconds: float = 0.0
    disk_usd: float = 0.0
    address_usd: float = 0.0
    address_usd_per_hour: float = 0.0
    # What it used of its machine; None if nothing was sampled.
    usage: Usage | None = None
    # Of a distributed run: its machines in the order of their ranks, and the ranks that the next attempt must replace.
    members: tuple[str, ...] = ()
    gone: tuple[int, ...] = ()
    # With this number of machines it can do, too; 0: it needs them all.
    least: int = 0
    # The next attempt keeps none of its machines.
    retired: bool = False

    @property
    def machines(self) -> tuple[str, ...]:
        """Its machines in the order of their ranks; the first one leads."""
        return self.members or (self.machine,)

    def asked(self, zone: str, type: str) -> bool:
        """Return whether the request named this pool."""
        return (zone, type) in ((self.zone, self.type), *((pool.zone, pool.type) for pool in self.pools))

    def fits(self, gpu: str, gpus: int) -> bool:
        """Return whether an offer of its type has its GPUs: some types can have different ones."""
        return not self.gpu or (self.gpu, self.gpus) == (gpu, gpus)

    @property
    def nodes(self) -> int:
        return len(self.machines)


def is_spare(attempts: tuple[Attempt, ...], attempt: Attempt) -> bool:
    """Return whether an attempt that was placed ahead has not replaced the one that works, or never did."""
    if not attempt.ahead or attempt.started_at:
        return False
    return attempt.phase == "over" or any(earlier.phase == "started" for earlier in attempts[: attempt.number - 1])


def new_attempt(event: ev.Placed) -> Attempt:
    """Return the attempt of an intent."""
    return Attempt(
        number=event.attempt,
        machine=event.machine,
        members=event.members,
        least=event.least,
        cloud=event.cloud,
        region=event.region,
        zone=event.zone,
        type=event.type,
        spot=event.spot,
        price_usd_per_hour=event.price_usd_per_hour,
        on_demand_usd_per_hour=event.on_demand_usd_per_hour,
        address_usd_per_hour=event.address_usd_per_hour,
        placed_at=event.at,
        pools=event.pools,
        gpu=event.gpu,
        gpus=event.gpus,
        sent_usd_per_gb=event.sent_usd_per_gb,
        received_usd_per_gb=event.received_usd_per_gb,
        ahead=event.ahead,
    )


def located(attempt: Attempt, event: ev.Located) -> Attempt:
    """Return the attempt in the pool that the cloud chose."""
    return msgspec.structs.replace(
        attempt,
        zone=event.zone,
        type=event.type,
        price_usd_per_hour=event.price_usd_per_hour,
        on_demand_usd_per_hour=event.on_demand_usd_per_hour,
        pools=(),
    )


def released(attempt: Attempt, event: ev.Released) -> Attempt:
    """Return the attempt with its final cost."""
    names = ("cost_usd", "disk_usd", "address_usd", "egress_usd", "seconds")
    paid = {name: getattr(event, name) for name in names}
    return msgspec.structs.replace(attempt, released=True, released_at=event.at, **paid)


def with_traffic(attempt: Attempt, event: ev.Stopped | ev.Finished) -> Attempt:
    """Return the attempt with the traffic that its end reports; less than before means that nothing was counted."""
    sent = max(attempt.sent_bytes, event.sent_bytes)
    received = max(attempt.received_bytes, event.received_bytes)
    return msgspec.structs.replace(attempt, sent_bytes=sent, received_bytes=received)


class LimitBreach(msgspec.Struct, frozen=True, kw_only=True):
    """A limit that was reached, and the time that the attempts have to save and stop."""

    name: str
    why: str
    hint: str
    grace_s: float
    at: float


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    attempt: int
    step: int | None
    at: float
    bytes: int
    changed_at: float = 0.0
    metrics: dict[str, float] = {}
    # The number of nodes with which it can be resumed; 0: any number.
    nodes: int = 0
