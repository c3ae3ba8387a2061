"""`outlast simulate`: cost and end of a job over many simulated runs. Launches nothing."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from outlast.app.simulation import (
    MEAN_LIFE_S,
    MEAN_OUTAGE_S,
    POLICIES,
    Question,
    capacity_of,
    foreseen,
    play,
    question_of,
    summarize,
    traffic_texts,
)
from outlast.cli.cost.prices import source_text
from outlast.cli.shared.command import UNCHANGED, command
from outlast.cli.shared.options import json_option, ones_option, workspace_option
from outlast.cli.shared.project import load_project, spec_of, typed
from outlast.cli.shared.sanitize import send_sequence
from outlast.cli.shared.terminal import find_workspace, money, table
from outlast.errors import UsageError
from outlast.spec.quantity import describe_s, duration_s

if TYPE_CHECKING:
    from outlast.app.types import Outcome, ReplayZone

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
    workspace = find_workspace(workspace_url, project)
    question, offers = question_of(workspace, spec, start_s=_duration(options, "start", 0.0))
    sources = list(dict.fromkeys(map(source_text, offers)))[:_SOURCES_MAX] + traffic_texts(workspace.url, offers)
    rng = random.Random(options["seed"])
    draw, question = _capacity(question, options, rng)
    names = list(dict.fromkeys([options["policy"], *POLICIES]))
    worlds = list(itertools.islice(draw, options["runs"]))
    played: dict[str, list[Outcome]] = {}
    for name in names:
        played[name] = _simulated(question, worlds, name)
    known = foreseen(question, worlds, each=lambda done, of: _progress("foresight", done, of))
    summary = summarize(question, played, known, seed=options["seed"])
    if options["as_json"]:
        click.echo(json.dumps({**summary, "price_sources": sources}, indent=2))
    else:
        lines = _as_text(question, options["policy"], played, summary)
        click.echo("\n".join([lines[0], f"prices: {'; '.join(sources)}", *lines[1:]]))
    return 0


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    given = {name: typed(options[name]) for name in ("deadline", "work") if options[name]}
    return {"limits": given} if given else {}


def _duration(options: dict[str, Any], name: str, default: float) -> float:
    given = options[name.replace("-", "_")]
    if not given:
        return default
    try:
        return duration_s(given)
    except ValueError as problem:
        raise UsageError(f"--{name}: {problem}") from problem


def _capacity(
    question: Question, options: dict[str, Any], rng: random.Random
) -> tuple[Iterator[tuple[ReplayZone, ...]], Question]:
    if options["traces"] and (options["mean_life"] or options["mean_outage"]):
        raise UsageError("`--trace` cannot be combined with `--mean-life` or `--mean-outage`")
    return capacity_of(
        question,
        rng,
        traces=options["traces"],
        ones=options["ones"] or "",
        life_s=_duration(options, "mean-life", MEAN_LIFE_S),
        outage_s=_duration(options, "mean-outage", MEAN_OUTAGE_S),
    )


def _simulated(question: Question, worlds: Sequence[tuple[ReplayZone, ...]], policy: str) -> list[Outcome]:
    outcomes = []
    for at, zones in enumerate(worlds, 1):
        outcomes.append(play(question, zones, policy))
        _progress(policy, at, len(worlds))
    return outcomes


def _progress(what: str, done: int, of: int) -> None:
    if sys.stderr.isatty() and (done % 50 == 0 or done == of):
        send_sequence(f"\r\x1b[K{what}: {done} of {of}" + ("\r" if done < of else "\r\x1b[K"), sys.stderr)


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
