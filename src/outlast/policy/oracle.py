"""The cost of a job with perfect foresight: the cheapest of all paths, by dynamic programming. Pure.

It proceeds tick by tick. For every machine that may be held (with the rest of its start) it keeps the Pareto-optimal
pairs of work left and cost. It drops a pair if the cheapest conceivable future costs more than a known path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from outlast.policy.decide import decide
from outlast.policy.replay import ReplayJob, ReplayZone, replay

# Index of the on-demand machine, and of none; zones count from 0.
_DEMAND, _NONE = -1, -2
_ROUND = 1e-6

# (machine, rest of its start) → {work left: cost}
Front = dict[tuple[int, float], dict[float, float]]


class TooHard(Exception):
    """The search exceeded its limit of steps."""


def least_cost_path(
    job: ReplayJob, zones: Sequence[ReplayZone], *, tick_s: float, effort_max: float = math.inf
) -> float:
    """Return the least cost in dollars. Raises TooHard after `effort_max` search steps.

    Raises ValueError without a deadline, or if on demand from the first tick would be late.
    """
    if job.deadline_s is None:
        raise ValueError("foresight needs a deadline")
    known = min(
        outcome.cost_usd
        for outcome in (replay(job, zones, decide, tick_s=tick_s), replay(job, (), decide, tick_s=tick_s))
        if not outcome.late
    )
    ticks = int((job.deadline_s + _ROUND) // tick_s) + 1
    bound = _Bound(job, zones, tick_s, ticks)
    front: Front = {(_NONE, 0.0): {job.work_s: 0.0}}
    best, effort = known, 0
    for tick in range(ticks):
        after: Front = {}
        effort += sum(len(pairs) for pairs in front.values()) * (len(zones) + 2)
        if effort > effort_max:
            raise TooHard
        room = min(tick_s, job.deadline_s - tick * tick_s)
        for machine, price, start, move in _machines(job, zones, tick):
            best = _spend(front, after, machine, (price * tick_s / 3600.0, start, move), (room, tick_s, best))
        idle = after.setdefault((_NONE, 0.0), {})
        for pairs in front.values():
            _merge(idle, pairs)
        front = _pruned(_lost(after, zones, tick + 1), bound, tick + 1, best)
        if not front:
            break
    return best


def least_possible(job: ReplayJob, zones: Sequence[ReplayZone], *, tick_s: float) -> float:
    """Return a lower bound of the cost, with free starts. It is fast where `least_cost_path` raises TooHard."""
    assert job.deadline_s is not None
    return _Bound(job, zones, tick_s, int((job.deadline_s + _ROUND) // tick_s) + 1).usd(job.work_s, 0)


def _machines(job: ReplayJob, zones: Sequence[ReplayZone], tick: int) -> list[tuple[int, float, float, float]]:
    """Return the machines that can be held in this tick: machine, price, start, cost of moving there."""
    spots = [(number, zone.price, zone.start_s, zone.move_usd) for number, zone in enumerate(zones) if _up(zone, tick)]
    return [*spots, (_DEMAND, job.on_demand.price, job.on_demand.start_s, 0.0)]


def _spend(
    front: Front,
    after: Front,
    machine: int,
    terms: tuple[float, float, float],
    limits: tuple[float, float, float],
) -> float:
    """Extend all paths by one tick on this machine; return the least cost of a finished path."""
    cost, start, move = terms
    room, tick_s, best = limits
    for (held, start_left), pairs in front.items():
        begins = start if held != machine else start_left
        price = cost + (move if held != machine else 0.0)
        lost = min(begins, tick_s)
        into = after.setdefault((machine, round(begins - lost, 6)), {})
        for left, spent in pairs.items():
            total = spent + price
            if left + lost <= room + _ROUND:
                best = min(best, total)
            elif left > tick_s - lost:
                rest = round(left - (tick_s - lost), 6)
                if total < into.get(rest, math.inf):
                    into[rest] = total
    return best


def _merge(into: dict[float, float], pairs: dict[float, float]) -> None:
    for left, spent in pairs.items():
        if spent < into.get(left, math.inf):
            into[left] = spent


def _lost(front: Front, zones: Sequence[ReplayZone], tick: int) -> Front:
    """Drop spot machines whose zone has no capacity in this tick; their work is kept."""
    kept: Front = {}
    for (machine, start_left), pairs in front.items():
        gone = machine >= 0 and not _up(zones[machine], tick)
        _merge(kept.setdefault((_NONE, 0.0) if gone else (machine, start_left), {}), pairs)
    return kept


class _Bound:
    """A lower bound of the cost of the remaining work: done in the cheapest remaining ticks, without starts."""

    def __init__(self, job: ReplayJob, zones: Sequence[ReplayZone], tick_s: float, ticks: int) -> None:
        assert job.deadline_s is not None
        self.deadline_s, self.tick_s = job.deadline_s, tick_s
        self.on_demand_usd_per_s = job.on_demand.price / 3600.0
        cheapest = [min((zone.price for zone in zones if _up(zone, tick)), default=math.inf) for tick in range(ticks)]
        # For each price below on demand: the capacity that is left at that price at each tick.
        self.classes: list[tuple[float, list[float]]] = []
        for price in sorted({price for price in cheapest if price < job.on_demand.price}):
            left_s = [0.0] * (ticks + 2)
            for tick in range(ticks - 1, -1, -1):
                left_s[tick] = left_s[tick + 1] + (tick_s if cheapest[tick] == price else 0.0)
            self.classes.append((price / 3600.0, left_s))

    def usd(self, left: float, tick: int) -> float:
        if left > self.deadline_s - tick * self.tick_s + _ROUND:
            return math.inf
        total = 0.0
        for price, left_s in self.classes:
            part = min(left, left_s[tick])
            total += part * price
            left -= part
        return total + left * self.on_demand_usd_per_s


def _up(zone: ReplayZone, tick: int) -> bool:
    return tick < len(zone.ticks) and zone.ticks[tick] == "0"


def _beaten(front: Front) -> None:
    """Drop paths without a machine that a path with a machine matches in cost: it can release the machine."""
    idle = front.get((_NONE, 0.0), {})
    for state, pairs in front.items():
        if state[0] != _NONE:
            for left, spent in pairs.items():
                if idle.get(left, -1.0) >= spent:
                    del idle[left]


def _pruned(front: Front, bound: _Bound, tick: int, best: float) -> Front:
    kept: Front = {}
    _beaten(front)
    for state, pairs in front.items():
        rest: dict[float, float] = {}
        least = math.inf
        for left in sorted(pairs):
            spent = pairs[left]
            if spent < least - 1e-12:
                least = spent
                if spent + bound.usd(left, tick) < best - 1e-9:
                    rest[left] = spent
        if rest:
            kept[state] = rest
    return kept
