"""A job a thousand times: capacity drawn from traces or from lives, each run replayed. Pure: the dice are handed in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outlast.errors import UsageError
from outlast.policy.baselines import greedy, on_demand_only, uniform_progress
from outlast.policy.decide import decide
from outlast.policy.oracle import TooHard, least_cost_path, least_possible
from outlast.policy.replay import Outcome, Policy, ReplayJob, ReplayZone, replay
from outlast.policy.traces import Trace

POLICIES: dict[str, Callable[[ReplayJob], Policy]] = {
    "outlast": lambda job: decide,
    "uniform-progress": uniform_progress,
    "greedy": lambda job: greedy,
    "on-demand": lambda job: on_demand_only,
}
# A job without a deadline is given up after so many times its work.
_PATIENCE = 20
# Steps of paths that perfect foresight looks at in one run: about a second's worth.
_EFFORT_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is played: the job, and its zones without their ticks."""

    job: ReplayJob
    zones: tuple[ReplayZone, ...]
    tick_s: float

    @property
    def ticks(self) -> int:
        """How many ticks of capacity a run may need."""
        starts = 2 * max([self.job.on_demand.start_s, *(zone.start_s for zone in self.zones)])
        longest = self.job.deadline_s if self.job.deadline_s is not None else self.job.work_s * _PATIENCE
        return int((longest + starts) / self.tick_s) + 2


def from_traces(question: Question, traces: Sequence[Trace], dice: random.Random) -> Iterator[tuple[ReplayZone, ...]]:
    """Capacity as it was recorded: a window that all traces have, from any tick on, and around its end."""
    common = [window for window in traces[0].ids() if all(window in trace.windows for trace in traces)]
    if not common:
        raise UsageError("the traces have no window in common", hint="give traces that were recorded at the same time")
    while True:
        window = dice.choice(common)
        begin = dice.randrange(min(len(trace.windows[window]) for trace in traces))
        yield tuple(
            replace(zone, name=trace.name, ticks=_around(trace.windows[window], begin, question.ticks))
            for zone, trace in zip(_as_many(question.zones, len(traces)), traces, strict=True)
        )


def from_lives(
    question: Question, life_s: float, outage_s: float, dice: random.Random
) -> Iterator[tuple[ReplayZone, ...]]:
    """Capacity that comes and goes at random, with these means, in every zone by itself."""
    while True:
        yield tuple(replace(zone, ticks=_weather(dice, question, life_s, outage_s)) for zone in question.zones)


def play(question: Question, zones: tuple[ReplayZone, ...], policy: str) -> Outcome:
    make = POLICIES[policy]
    return replay(question.job, zones, make(question.job), tick_s=question.tick_s, ticks_max=question.ticks)


def least_usd(
    question: Question, worlds: Sequence[tuple[ReplayZone, ...]], *, each: Callable[[int], None]
) -> tuple[list[float], bool]:
    """What foresight would have paid in each, and whether it is exact; else nobody can stay below it. What is too hard
    is told by steps and not by the clock: the same question has the same answer everywhere."""
    job, tick_s = question.job, question.tick_s
    costs: list[float] = []
    for zones in worlds:
        try:
            costs.append(least_cost_path(job, zones, tick_s=tick_s, effort_max=_EFFORT_MAX))
        except TooHard:
            return [least_possible(job, zones, tick_s=tick_s) for zones in worlds], False
        each(len(costs))
    return costs, True


def _around(ticks: str, begin: int, count: int) -> str:
    turned = ticks[begin:] + ticks[:begin]
    return (turned * (count // len(turned) + 1))[:count]


def _as_many(zones: tuple[ReplayZone, ...], count: int) -> tuple[ReplayZone, ...]:
    """A zone for each trace: the cheapest ones, and the dearest again if there are more traces."""
    return (zones + (zones[-1],) * count)[:count]


def _weather(dice: random.Random, question: Question, life_s: float, outage_s: float) -> str:
    up = dice.random() < life_s / (life_s + outage_s)
    ticks: list[str] = []
    left = 0.0
    for at in range(question.ticks):
        while at * question.tick_s >= left:
            left += dice.expovariate(1.0 / (life_s if up else outage_s))
            up = not up
        ticks.append("1" if up else "0")
    return "".join(ticks)
