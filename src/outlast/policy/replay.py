"""A replay of a job over recorded capacity, tick by tick, under any policy. Pure.

The rules are those of the public can't-be-late benchmark. At each tick the machine of the previous tick is billed for
all of it, and its work counts: the tick minus the rest of its start. A spot machine is lost if its zone has no capacity
in this tick; its work is kept. Then the policy decides, and a new machine begins with its start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outlast.policy.view import ON_DEMAND, Choice, OnDemand, PolicyView, Spot

Policy = Callable[[PolicyView], Choice]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """The work and the deadline of a replay; None: no deadline."""

    work_s: float
    deadline_s: float | None
    on_demand: OnDemand
    unsaved_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayZone:
    """A zone over time: one character per tick, `0` with capacity, `1` without; none after the last."""

    name: str
    ticks: str
    price: float
    start_s: float
    move_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a replay. `finish_s` is the time of the last work, not the end of its tick."""

    cost_usd: float
    finish_s: float
    spot_s: float
    on_demand_s: float
    waited_s: float
    starts: int
    late: bool
    # One letter per tick: `.` waiting, `s` spot, `d` on demand.
    path: str = ""


class _ZoneHistory:
    """The observations of one zone until now."""

    __slots__ = ("age", "last", "up_ticks", "ups", "zone")

    def __init__(self, zone: ReplayZone) -> None:
        self.zone, self.last, self.age, self.ups, self.up_ticks = zone, False, 0, 0, 0

    def see(self, tick: int, tick_s: float) -> Spot:
        zone = self.zone
        up = tick < len(zone.ticks) and zone.ticks[tick] == "0"
        if tick and up == self.last:
            self.age += 1
        else:
            self.age = 0
            # Capacity at the first tick began earlier.
            self.ups += up and tick > 0
        self.up_ticks += up
        self.last = up
        return Spot(
            name=zone.name,
            price=zone.price,
            up=up,
            age_s=self.age * tick_s,
            start_s=zone.start_s,
            ups=self.ups,
            up_s=self.up_ticks * tick_s,
            seen_s=(tick + 1) * tick_s,
            move_usd=zone.move_usd,
        )


def replay(
    job: ReplayJob, zones: Sequence[ReplayZone], policy: Policy, *, tick_s: float, ticks_max: int = 100_000
) -> Outcome:
    """Replay the job to its end. A policy that does not finish it in `ticks_max` ticks is late."""
    histories = [_ZoneHistory(zone) for zone in zones]
    prices = {zone.name: zone.price for zone in zones} | {ON_DEMAND: job.on_demand.price}
    starts = {zone.name: zone.start_s for zone in zones} | {ON_DEMAND: job.on_demand.start_s}
    moves = {zone.name: zone.move_usd for zone in zones} | {ON_DEMAND: 0.0}
    left, held, start_left, cost, started = job.work_s, "", 0.0, 0.0, 0
    path: list[str] = []
    finish = 0.0
    for tick in range(ticks_max):
        if held:
            cost += prices[held] * tick_s / 3600.0
            path.append("d" if held == ON_DEMAND else "s")
            lost = min(start_left, tick_s)
            start_left -= lost
            if left <= tick_s - lost + 1e-6:
                finish, left = (tick - 1) * tick_s + lost + left, 0.0
                break
            left -= tick_s - lost
        elif tick:
            path.append(".")
        spots = tuple([history.see(tick, tick_s) for history in histories])
        if held and held != ON_DEMAND and not next(spot.up for spot in spots if spot.name == held):
            held = ""
        choice = policy(
            PolicyView(
                work_left_s=left,
                time_left_s=None if job.deadline_s is None else job.deadline_s - tick * tick_s,
                on_demand=job.on_demand,
                spots=spots,
                held=held,
                start_left_s=start_left if held else 0.0,
                interval_s=tick_s,
                unsaved_s=job.unsaved_s,
            )
        )
        now = choice.held
        if now and now != held:
            start_left, started = starts[now], started + 1
            cost += moves[now]
        held = now
    else:
        finish = float("inf")
    return Outcome(
        cost_usd=cost,
        finish_s=finish,
        spot_s=path.count("s") * tick_s,
        on_demand_s=path.count("d") * tick_s,
        waited_s=path.count(".") * tick_s,
        starts=started,
        late=job.deadline_s is not None and finish > job.deadline_s + 1e-6,
        path="".join(path),
    )
