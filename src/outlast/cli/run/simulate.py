"""`outlast simulate`: cost and end of a job over many simulated runs. Launches nothing."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.cli.cost.prices import source_text
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import clouds, json_option, ones_option, workspace_option
from outlast.cli.shared.project import load_project, spec_of, typed
from outlast.cli.shared.sanitize import send_sequence
from outlast.cli.shared.terminal import find_workspace, money, table
from outlast.clouds.cloud import Offer
from outlast.clouds.traits import traits_of
from outlast.errors import OutlastError, SpecError, UsageError
from outlast.policy.monte_carlo import POLICIES, Question, from_lives, from_traces, least_usd, play
from outlast.policy.replay import ReplayJob, ReplayZone
from outlast.policy.traces import read_traces
from outlast.policy.view import OnDemand
from outlast.spec.quantity import describe_s, duration_s
from outlast.spec.spec import Spec
from outlast.supervisor.deadline import measured_start_s

if TYPE_CHECKING:
    from outlast.app.types import Outcome, Workspace

# The optimum in hindsight takes as long as a hundred replays, so it is computed for the first runs only.
_FORESEEN = 10
# Ticks of a job with random capacity: fine enough for starts, coarse enough for thousands of runs.
_TICKS, _TICK_MIN_S, _TICK_MAX_S = 500, 1.0, 600.0
# The number of stories from which start times are measured.
_STORIES = 20
# The origins of prices that are named.
_SOURCES_MAX = 4


@command(
    section="runs",
    progress="simulating",
    interrupt=UNCHANGED,
    json_text="the job (`work_s`, `deadline_s` …); `policies`: name → cost, end; `foresight`: the optimum; "
    "`price_sources`",
)
@click.argument("path", metavar="[SPEC]", required=False, default="")
@click.option(
    "--trace", "traces", multiple=True, metavar="PATH", help="Recorded capacity: one file per zone, or a folder."
)
@ones_option
@click.option("--mean-life", default="", metavar="TIME", help="Random capacity: mean life of spot machines (2h).")
@click.option(
    "--mean-outage", default="", metavar="TIME", help="Random capacity: mean time without spot machines (30m)."
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default="outlast",
    show_default=True,
    help="Policy of the histograms.",
)
@click.option("--deadline", default="", metavar="TIME", help="Instead of `[limits] deadline`.")
@click.option("--work", default="", metavar="TIME", help="Instead of `[limits] work`.")
@click.option("--start", default="", metavar="TIME", help="Duration of a start (measured if possible).")
@click.option(
    "--runs",
    metavar="N",
    default=1000,
    show_default=True,
    type=click.IntRange(1, 1_000_000),
    help="Number of simulated runs.",
)
@click.option("--seed", metavar="N", default=0, show_default=True, help="Seed of the simulation.")
@json_option
@workspace_option
def simulate(workspace_url: str, path: str, **options: Any) -> int:
    """Estimate cost, end and the risk of being late before you pay.

    Simulates the job a thousand times. SPEC is the file to use instead of outlast.toml. Nothing is launched.
    """
    project = load_project(path)
    spec = spec_of(project, _limits(options), () if "command" in project.table else ("true",))
    question, sources = _question(find_workspace(workspace_url, project), spec, options)
    rng = random.Random(options["seed"])
    draw, question = _capacity(question, options, rng)
    names = list(dict.fromkeys([options["policy"], *POLICIES]))
    worlds = list(itertools.islice(draw, options["runs"]))
    played: dict[str, list[Outcome]] = {}
    for name in names:
        played[name] = _simulated(question, worlds, name)
    foreseen = _foreseen(question, worlds)
    summary = _summary(question, played, foreseen, seed=options["seed"])
    if options["as_json"]:
        click.echo(json.dumps({**summary, "price_sources": sources}, indent=2))
    else:
        lines = _as_text(question, options["policy"], played, summary)
        click.echo("\n".join([lines[0], f"prices: {'; '.join(sources)}", *lines[1:]]))
    return 0


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: typed(options[name]) for name in ("deadline", "work") if options[name]}
    return {"limits": given} if given else {}


def _question(workspace: Workspace, spec: Spec, options: dict[str, Any]) -> tuple[Question, list[str]]:
    """Return the job and its zones, and the origins of their prices."""
    limits = spec.limits
    if not limits.work_s:
        raise UsageError(
            "the duration of the work is unknown", hint='set it with `--work 8h`, or `work = "8h"` in `[limits]`'
        )
    deadline_s = limits.deadline_at - time.time() if limits.deadline_at else limits.deadline_s or None
    if deadline_s is not None and deadline_s <= 0:
        raise SpecError([f"[limits] deadline: it passed {describe_s(-deadline_s)} ago"])
    start_s = _duration(options, "start", 0.0) or _measured(workspace, spec.machine.cloud)
    if deadline_s is not None and limits.work_s + start_s > deadline_s:
        needs = describe_s(limits.work_s + start_s)
        raise SpecError(
            [f"[limits] deadline: it leaves {describe_s(deadline_s)}, but `work` with one start takes {needs}"],
            hint="set a later deadline",
        )
    on_demand, zones, sources = _prices(spec, start_s)
    job = ReplayJob(work_s=limits.work_s, deadline_s=deadline_s, on_demand=OnDemand(price=on_demand, start_s=start_s))
    tick_s = min(_TICK_MAX_S, max(_TICK_MIN_S, limits.work_s / _TICKS, start_s))
    return Question(job=job, zones=zones, tick_s=tick_s), sources


def _duration(options: dict[str, Any], name: str, default: float) -> float:
    given = options[name.replace("-", "_")]
    if not given:
        return default
    try:
        return duration_s(given)
    except ValueError as problem:
        raise UsageError(f"--{name}: {problem}") from problem


def _prices(spec: Spec, start_s: float) -> tuple[float, tuple[ReplayZone, ...], list[str]]:
    """Return the cheapest on-demand price, the cheapest spot machine of every zone, and the origins of the prices.

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
    sources = list(dict.fromkeys(source_text(offer) for offer in (*offers[True], *offers[False])))
    return min(demands), tuple(sorted(spots.values(), key=lambda zone: zone.price)), sources[:_SOURCES_MAX]


def _known(offer: Offer) -> float:
    if not 0 < offer.price_usd_per_hour < math.inf:
        raise OutlastError(f"the price of {offer.type} is unknown", hint="name another `type`, or other zones")
    return offer.bills_usd_per_hour


def _measured(workspace: Workspace, cloud: str) -> float:
    """Return the duration of starts in the last runs of this workspace."""
    states = [workspace.story(run).refresh() for run in list(workspace.runs())[-_STORIES:]]
    measured = measured_start_s([a for state in states for a in state.attempts if a.cloud == cloud])
    return measured if measured is not None else traits_of(cloud).start_s


def _capacity(
    question: Question, options: dict[str, Any], rng: random.Random
) -> tuple[Iterator[tuple[ReplayZone, ...]], Question]:
    from dataclasses import replace

    if options["traces"]:
        if options["mean_life"] or options["mean_outage"]:
            raise UsageError("`--trace` cannot be combined with `--mean-life` or `--mean-outage`")
        traces = [trace for path in options["traces"] for trace in read_traces(path, ones=options["ones"] or "")]
        ticks = {trace.tick_s for trace in traces}
        if len(ticks) > 1:
            raise UsageError(
                f"the traces have ticks of different lengths: {sorted(ticks)}", hint="use traces with equal ticks"
            )
        question = replace(question, tick_s=traces[0].tick_s)
        return from_traces(question, traces, rng), question
    life_s, outage_s = _duration(options, "mean-life", 7200.0), _duration(options, "mean-outage", 1800.0)
    return from_lives(question, life_s, outage_s, rng), question


def _simulated(question: Question, worlds: Sequence[tuple[ReplayZone, ...]], policy: str) -> list[Outcome]:
    outcomes = []
    for at, zones in enumerate(worlds, 1):
        outcomes.append(play(question, zones, policy))
        _progress(policy, at, len(worlds))
    return outcomes


def _foreseen(question: Question, worlds: Sequence[tuple[ReplayZone, ...]]) -> tuple[list[float], bool]:
    if question.job.deadline_s is None:
        return [], True
    some = worlds[:_FORESEEN]
    return least_usd(question, some, each=lambda done: _progress("foresight", done, len(some)))


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty() and (done % 50 == 0 or done == of):
        send_sequence(f"\r\x1b[K{what}: {done} of {of}" + ("\r" if done < of else "\r\x1b[K"), sys.stderr)


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _summary(
    question: Question, played: dict[str, list[Outcome]], foreseen: tuple[list[float], bool], *, seed: int
) -> dict[str, Any]:
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
        "policies": {name: _one(outcomes) for name, outcomes in played.items()},
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


def _one(outcomes: Sequence[Outcome]) -> dict[str, Any]:
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


def _as_text(question: Question, policy: str, played: dict[str, list[Outcome]], summary: dict[str, Any]) -> list[str]:
    job = question.job
    by = f"by {describe_s(job.deadline_s)} from now" if job.deadline_s is not None else "without a deadline"
    head = f"{describe_s(job.work_s)} of work, {by}; a start takes {describe_s(job.on_demand.start_s)}; "
    head += f"simulated {summary['runs']} times (seed {summary['seed']}, ticks of {describe_s(question.tick_s)})"
    rows = [_line(name, summary["policies"][name]) for name in played]
    if "foresight" in summary:
        least = summary["foresight"]
        share = f"outlast pays {least['ours_of_foresight']:.2f}x" if policy == "outlast" else ""
        rows.append(
            [
                "perfect foresight",
                money(least["cost_usd"]),
                "",
                "",
                "",
                "",
                f"{least['runs']} runs; {share}".rstrip("; "),
            ]
        )
    outcomes = played[policy]
    ends = [outcome.finish_s for outcome in outcomes if math.isfinite(outcome.finish_s)]
    middle = sorted(outcomes, key=lambda outcome: outcome.cost_usd)[len(outcomes) // 2]
    lines = [
        head,
        "",
        table(rows, header=["POLICY", "COST", "10–90 %", "ENDS AFTER", "95 % BY", "LATE", "ON SPOT"]),
        "",
    ]
    lines += histogram(f"cost with {policy}", [outcome.cost_usd for outcome in outcomes], money)
    if ends:
        lines += ["", *histogram("ends after", ends, describe_s)]
    return [*lines, "", *lane(middle, question.tick_s)]


def _line(name: str, one: dict[str, Any]) -> list[str]:
    report: Callable[[float | None], str] = lambda value: describe_s(value) if value is not None else "never"  # noqa: E731
    return [
        name,
        money(one["cost_usd"]),
        f"{money(one['cost_p10_usd'])}–{money(one['cost_p90_usd'])}",
        report(one["finish_s"]),
        report(one["finish_p95_s"]),
        f"{100 * one['late']:.1f} %",
        f"{100 * one['spot_share']:.0f} %",
    ]


_BARS, _WIDTH, _LANE = 8, 40, 72
# Each state has a different character: colour never carries meaning alone.
_SIGNS = {"s": "█", "d": "▒", ".": "·"}


def histogram(title: str, values: Sequence[float], report: Callable[[float], str]) -> list[str]:
    """Draw a histogram, one row per interval."""
    low, high = min(values), max(values)
    if high - low < 1e-9 * max(1.0, abs(high)):
        return [title, f"  {report(low):>10}  always"]
    step = (high - low) / _BARS
    counts = [0] * _BARS
    for value in values:
        counts[min(_BARS - 1, int((value - low) / step))] += 1
    most = max(counts)
    lines = [title]
    for at, count in enumerate(counts):
        share = 100 * count / len(values)
        bar = "█" * max(round(_WIDTH * count / most), 1 if count else 0)
        lines.append(f"  {report(low + at * step):>10}  {bar:<{_WIDTH}}  {share:3.0f} %")
    return lines


def lane(outcome: Outcome, tick_s: float) -> list[str]:
    """Draw one run over time."""
    path = outcome.path
    cells = [path[at * len(path) // _LANE] for at in range(min(_LANE, len(path)))] if len(path) > _LANE else list(path)
    drawn = "".join(_SIGNS[cell] for cell in cells)
    end = describe_s(len(path) * tick_s)
    return [
        f"a run of median cost, {money(outcome.cost_usd)}:",
        f"  {drawn}",
        f"  0{end:>{max(len(drawn) - 1, 1)}}",
        f"  {_SIGNS['s']} spot  {_SIGNS['d']} on demand  {_SIGNS['.']} waiting",
    ]
