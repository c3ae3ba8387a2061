"""Monte Carlo replays of a job over capacity drawn from traces or from lifetimes. Pure: the RNG is an argument."""

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
# A job without a deadline is given up after this multiple of its work.
_PATIENCE = 20
# The search steps of the oracle for one replay: about one second.
_EFFORT_MAX = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The job to replay, and its zones without their ticks."""

    job: ReplayJob
    zones: tuple[ReplayZone, ...]
    tick_s: float

    @property
    def ticks(self) -> int:
        """The number of ticks of capacity that a replay may need."""
        starts = 2 * max([self.job.on_demand.start_s, *(zone.start_s for zone in self.zones)])
        longest = self.job.deadline_s if self.job.deadline_s is not None else self.job.work_s * _PATIENCE
        return int((longest + starts) / self.tick_s) + 2


def from_traces(question: Question, traces: Sequence[Trace], rng: random.Random) -> Iterator[tuple[ReplayZone, ...]]:
    """Yield recorded capacity: a window that all traces share, from a random tick on, wrapped around its end."""
    common = [window for window in traces[0].ids() if all(window in trace.windows for trace in traces)]
    if not common:
        raise UsageError("the traces have no window in common", hint="give traces that were recorded at the same time")
    while True:
        window = rng.choice(common)
        begin = rng.randrange(min(len(trace.windows[window]) for trace in traces))
        yield tuple(
            replace(zone, name=trace.name, ticks=_around(trace.windows[window], begin, question.ticks))
            for zone, trace in zip(_as_many(question.zones, len(traces)), traces, strict=True)
        )


def from_lives(
    question: Question, life_s: float, outage_s: float, rng: random.Random
) -> Iterator[tuple[ReplayZone, ...]]:
    """Yield random capacity with these means, independent in every zone."""
    while True:
        yield tuple(replace(zone, ticks=_random_ticks(rng, question, life_s, outage_s)) for zone in question.zones)


def play(question: Question, zones: tuple[ReplayZone, ...], policy: str) -> Outcome:
    make = POLICIES[policy]
    return replay(question.job, zones, make(question.job), tick_s=question.tick_s, ticks_max=question.ticks)


def least_usd(
    question: Question, worlds: Sequence[tuple[ReplayZone, ...]], *, each: Callable[[int], None]
) -> tuple[list[float], bool]:
    """Return the cost with perfect foresight in each world, and whether it is exact or only a lower bound.

    The effort is limited by steps rather than by the clock, so every computer gives the same answer.
    """
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
    """Return one zone per trace: the cheapest ones, and the most expensive again if there are more traces."""
    return (zones + (zones[-1],) * count)[:count]


def _random_ticks(rng: random.Random, question: Question, life_s: float, outage_s: float) -> str:
    up = rng.random() < life_s / (life_s + outage_s)
    ticks: list[str] = []
    left = 0.0
    for at in range(question.ticks):
        while at * question.tick_s >= left:
            left += rng.expovariate(1.0 / (life_s if up else outage_s))
            up = not up
        ticks.append("1" if up else "0")
    return "".join(ticks)
