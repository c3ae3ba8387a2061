"""Cost and end of a job over many simulated runs, for `outlast simulate` and the dashboard. Launches nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from outlast.app.clouds import clouds
from outlast.billing.egress import egress_text
from outlast.clouds.cloud import Offer
from outlast.clouds.location import bucket_location, with_location
from outlast.clouds.traits import traits_of
from outlast.errors import OutlastError, SpecError, UsageError
from outlast.policy.monte_carlo import POLICIES as POLICIES
from outlast.policy.monte_carlo import Question as Question
from outlast.policy.monte_carlo import from_lives, from_traces, least_usd
from outlast.policy.monte_carlo import play as play
from outlast.policy.replay import Outcome, ReplayJob, ReplayZone
from outlast.policy.traces import read_traces
from outlast.policy.view import OnDemand
from outlast.spec.quantity import describe_s
from outlast.supervisor.deadline import measured_start_s

if TYPE_CHECKING:
    from outlast.spec.spec import Spec
    from outlast.workspace import Workspace

# The mean life of spot machines and the mean time without any, unless the user knows better.
MEAN_LIFE_S, MEAN_OUTAGE_S = 7200.0, 1800.0
# Ticks of a job with random capacity: fine enough for starts, coarse enough for thousands of runs.
_TICKS, _TICK_MIN_S, _TICK_MAX_S = 500, 1.0, 600.0
# The number of stories from which start times are measured.
_STORIES = 20


# The optimum in hindsight takes as long as a hundred replays, so it is computed for the first runs only.
_FORESEEN = 10


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may cost and when it may end."""

    spot_usd_per_hour: float
    on_demand_usd_per_hour: float
    # `[limits] work` is set: the job was simulated this often.
    runs: int = 0
    # The figures of `outlast simulate` for our policy and for on-demand machines.
    ours: dict[str, Any] = {}
    on_demand: dict[str, Any] = {}


def estimate(workspace: Workspace, spec: Spec, *, runs: int) -> Estimate:
    """Return the prices of a run and, if its work is known, its simulated cost and end. Raises OutlastError."""
    spec = with_location(spec, workspace.url, clouds())
    if not spec.limits.work_s:
        demand, zones, _ = prices_of(spec, 0.0)
        return Estimate(spot_usd_per_hour=zones[0].price, on_demand_usd_per_hour=demand)
    question, _ = question_of(workspace, spec)
    draw = from_lives(question, MEAN_LIFE_S, MEAN_OUTAGE_S, random.Random(0))
    worlds = list(itertools.islice(draw, runs))
    played = {name: [play(question, zones, name) for zones in worlds] for name in ("outlast", "on-demand")}
    return Estimate(
        spot_usd_per_hour=question.zones[0].price,
        on_demand_usd_per_hour=question.job.on_demand.price,
        runs=runs,
        ours=figures_of(played["outlast"]),
        on_demand=figures_of(played["on-demand"]),
    )


def question_of(workspace: Workspace, spec: Spec, *, start_s: float = 0.0) -> tuple[Question, list[Offer]]:
    """Return the job with its zones, and the offers that have their prices. `start_s`: 0 to measure it."""
    limits = spec.limits
    if not limits.work_s:
        raise UsageError(
            "the duration of the work is unknown", hint='set it with `--work 8h`, or `work = "8h"` in `[limits]`'
        )
    deadline_s = limits.deadline_at - time.time() if limits.deadline_at else limits.deadline_s or None
    if deadline_s is not None and deadline_s <= 0:
        raise SpecError([f"[limits] deadline: it passed {describe_s(-deadline_s)} ago"])
    start_s = start_s or _measured(workspace, spec.machine.cloud)
    if deadline_s is not None and limits.work_s + start_s > deadline_s:
        needs = describe_s(limits.work_s + start_s)
        raise SpecError(
            [f"[limits] deadline: it leaves {describe_s(deadline_s)}, but `work` with one start takes {needs}"],
            hint="set a later deadline",
        )
    on_demand, zones, offers = prices_of(with_location(spec, workspace.url, clouds()), start_s)
    job = ReplayJob(work_s=limits.work_s, deadline_s=deadline_s, on_demand=OnDemand(price=on_demand, start_s=start_s))
    tick_s = min(_TICK_MAX_S, max(_TICK_MIN_S, limits.work_s / _TICKS, start_s))
    return Question(job=job, zones=zones, tick_s=tick_s), offers


def prices_of(spec: Spec, start_s: float) -> tuple[float, tuple[ReplayZone, ...], list[Offer]]:
    """Return the cheapest on-demand price, the cheapest spot machine of every zone, and all offers.

    A public address is part of the price.
    """
    try:
        cloud = clouds()[spec.machine.cloud]
    except KeyError as problem:
        raise UsageError(f"unknown cloud `{spec.machine.cloud}`", hint="use local, gcp or aws") from problem
    offers = {spot: cloud.offers(spec.machine.needs_on(cloud.name, spot=spot)) for spot in (True, False)}
    spots: dict[str, ReplayZone] = {}
    for offer in offers[True]:
        zone = ReplayZone(name=offer.zone, ticks="", price=_known(offer), start_s=start_s)
        spots.setdefault(offer.zone, zone)
    demands = [_known(offer) for offer in offers[False]]
    if not spots or not demands:
        raise OutlastError(f"no machine of `{spec.machine.cloud}` matches `[machine]`", hint="reduce the requirements")
    zones = tuple(sorted(spots.values(), key=lambda zone: zone.price))
    return min(demands), zones, [*offers[True], *offers[False]]


def _known(offer: Offer) -> float:
    if not 0 < offer.price_usd_per_hour < math.inf:
        raise OutlastError(f"the price of {offer.type} is unknown", hint="name another `type`, or other zones")
    return offer.bills_usd_per_hour


def _measured(workspace: Workspace, cloud: str) -> float:
    """Return the duration of starts in the last runs of this workspace."""
    states = [workspace.story(run).refresh() for run in list(workspace.runs())[-_STORIES:]]
    measured = measured_start_s([a for state in states for a in state.attempts if a.cloud == cloud])
    return measured if measured is not None else traits_of(cloud).start_s


def capacity_of(
    question: Question,
    rng: random.Random,
    *,
    traces: Sequence[str] = (),
    ones: str = "",
    life_s: float,
    outage_s: float,
) -> tuple[Iterator[tuple[ReplayZone, ...]], Question]:
    """Return simulated worlds, from recorded traces or from random lives, and the question with their ticks."""
    if not traces:
        return from_lives(question, life_s, outage_s, rng), question
    read = [trace for path in traces for trace in read_traces(path, ones=ones)]
    ticks = {trace.tick_s for trace in read}
    if len(ticks) > 1:
        why = f"the traces have ticks of different lengths: {sorted(ticks)}"
        raise UsageError(why, hint="use traces with equal ticks")
    question = dataclasses.replace(question, tick_s=read[0].tick_s)
    return from_traces(question, read, rng), question


def foreseen(
    question: Question, worlds: Sequence[tuple[ReplayZone, ...]], *, each: Callable[[int, int], None]
) -> tuple[list[float], bool]:
    """Return the least costs in hindsight of the first worlds; nothing without a deadline. `each`: done, of."""
    if question.job.deadline_s is None:
        return [], True
    some = worlds[:_FORESEEN]
    return least_usd(question, some, each=lambda done: each(done, len(some)))


def traffic_texts(url: str, offers: Sequence[Offer]) -> list[str]:
    """Describe the price of traffic with the workspace, which depends on the amount of data and is not simulated."""
    near = bucket_location(url, clouds())
    found = {text for one in offers if (text := egress_text(url, near, one.cloud, one.region))}
    return [f"without traffic: {text}" for text in sorted(found)[:1]]


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def summarize(
    question: Question, played: dict[str, list[Outcome]], foreseen: tuple[list[float], bool], *, seed: int
) -> dict[str, Any]:
    """Return the figures of all policies; the first one is compared with perfect foresight."""
    chosen = next(iter(played))
    summary: dict[str, Any] = {
        "runs": len(played[chosen]),
        "seed": seed,
        "work_s": question.job.work_s,
        "deadline_s": question.job.deadline_s,
        "start_s": question.job.on_demand.start_s,
        "tick_s": question.tick_s,
        "on_demand_usd_per_hour": question.job.on_demand.price,
        "policy": chosen,
        "policies": {name: figures_of(outcomes) for name, outcomes in played.items()},
    }
    costs, exact = foreseen
    if costs:
        ours, least = statistics.fmean(o.cost_usd for o in played[chosen][: len(costs)]), statistics.fmean(costs)
        summary["foresight"] = {
            "runs": len(costs),
            "exact": exact,
            "cost_usd": least,
            "ours_of_foresight": ours / least,
        }
    return summary


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the mean and the spread of cost and end, and the share of late runs."""
    costs = [outcome.cost_usd for outcome in outcomes]
    ends = [outcome.finish_s for outcome in outcomes if math.isfinite(outcome.finish_s)]
    billed = sum(outcome.spot_s + outcome.on_demand_s for outcome in outcomes)
    return {
        "cost_usd": statistics.fmean(costs),
        "cost_p10_usd": _quantile(costs, 0.1),
        "cost_p90_usd": _quantile(costs, 0.9),
        "finish_s": statistics.fmean(ends) if ends else None,
        "finish_p95_s": _quantile(ends, 0.95) if ends else None,
        "late": sum(outcome.late or not math.isfinite(outcome.finish_s) for outcome in outcomes) / len(outcomes),
        "spot_share": sum(outcome.spot_s for outcome in outcomes) / billed if billed else 0.0,
        "starts": statistics.fmean(outcome.starts for outcome in outcomes),
    }
