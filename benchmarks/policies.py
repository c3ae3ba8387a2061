"""Deadline policies on recorded spot capacity, by the rules of the public can't-be-late benchmark.

    python benchmarks/policies.py [--set first|second|zones|prices|own] [--traces FOLDER] [--no-foresight] [--json]
    python benchmarks/policies.py --set own --traces FOLDER [--work 48] [--deadlines 52,70] [--starts 0.02,0.1] …

A run that finishes after its deadline is late, and counts as a failure. `zones` uses all zones of a machine type at
once, with the window of the same name in each; `prices` gives four zones of a type different prices, drawn per window;
`own` uses every trace of the folder with the given figures.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, once, write_goals
from oracle_grid import foresight_on_grid

from outlast.errors import OutlastError
from outlast.policy import OnDemand, decide
from outlast.policy.baselines import greedy, on_demand_only, uniform_progress
from outlast.policy.decide import decide_at_any_price
from outlast.policy.replay import Policy, ReplayJob, ReplayZone, replay
from outlast.policy.traces import Trace, read_traces
from outlast.spec.trace import ONES

TRACES = os.path.abspath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "shared", "data", "spot-traces")
)
POLICIES: dict[str, Callable[[ReplayJob], Policy]] = {
    "on demand only": lambda job: on_demand_only,
    "greedy": lambda job: greedy,
    "Uniform Progress": uniform_progress,
    "outlast": lambda job: decide,
}
FORESIGHT = "perfect foresight"
# For zones with different prices: the same policy without the rule for expensive zones.
ANY_PRICE = "outlast, at any price"
# Drawn prices are between these parts of the on-demand price, like those of nine in ten GPU zones of the price lists.
CHEAPEST, DEAREST = 0.15, 0.95
# The average cost of `prices` before zones were judged by their prices, with moves that had to pay four times over.
BEFORE_USD = 83.1544


class Setting(NamedTuple):
    """The parameters of a table. `places` are names of traces; together: the zones of a type at once.

    priced: all zones of a GPU at once, each with its own price.
    """

    title: str
    places: tuple[str, ...]
    deadlines_h: tuple[float, ...]
    starts_h: tuple[float, ...]
    together: bool = False
    work_h: float = 48.0
    on_demand: float = 3.06
    spot: float = 0.9731
    windows: int = 30
    priced: bool = False


def _places(*names: str) -> tuple[str, ...]:
    return tuple(f"us-west-2{name}" for name in names)


_EVERY = tuple(f"{zone}_{kind}" for zone in "ab" for kind in ("k80_1", "k80_8", "v100_1", "v100_8"))
SETTINGS = {
    "first": Setting(
        "First set: the public benchmark",
        _places("a_k80_8", "b_k80_1", "b_k80_8", "a_v100_1", "a_v100_8", "b_v100_1"),
        (52, 70),
        (0.02, 0.05, 0.1),
    ),
    "second": Setting(
        "Second set: long starts",
        _places("a_k80_1", "b_k80_1", "a_v100_1", "b_v100_1"),
        (52, 70, 92),
        (0.02, 0.2, 0.4),
    ),
    "zones": Setting(
        "Several zones at once", _places(*_EVERY), (52, 70, 92), (0.02, 0.05, 0.1, 0.2, 0.4), together=True
    ),
    "prices": Setting(
        "Zones with different prices", _places(*_EVERY), (52, 70, 92), (0.02, 0.1, 0.4), together=True, priced=True
    ),
}


class Play(NamedTuple):
    """One cell of a table: one job on one set of zones, in every window."""

    setting: Setting
    traces: tuple[Trace, ...]
    deadline_h: float
    start_h: float
    with_foresight: bool


class Result(NamedTuple):
    """The result of one policy in one run. `half` alternates over the windows."""

    policy: str
    place: str
    deadline_h: float
    start_h: float
    half: int
    cost_usd: float
    late: bool


def window_ids(traces: Sequence[Trace], count: int) -> list[str]:
    """Return evenly spaced windows that all zones have, in the public benchmark's order; 0: all."""
    common = [each for each in traces[0].ids() if all(each in trace.windows for trace in traces)]
    if not count or count >= len(common):
        return common
    return [common[round(at * (len(common) - 1) / (count - 1))] for at in range(count)]


def price_of(setting: Setting, place: str, window: str) -> float:
    """Return the price of a zone in a window: the same for each policy, deadline and start."""
    if not setting.priced:
        return setting.spot
    drawn = random.Random(f"{place} {window}").uniform(CHEAPEST, DEAREST)
    return round(setting.on_demand * drawn, 4)


def play(cell: Play) -> list[Result]:
    setting, traces = cell.setting, cell.traces
    start_s, tick_s = cell.start_h * 3600.0, traces[0].tick_s
    job = ReplayJob(
        work_s=setting.work_h * 3600.0,
        deadline_s=cell.deadline_h * 3600.0,
        on_demand=OnDemand(price=setting.on_demand, start_s=start_s),
    )
    place = "+".join(trace.name for trace in traces)
    results: list[Result] = []
    for at, window in enumerate(window_ids(traces, setting.windows)):
        zones = [
            ReplayZone(
                name=trace.name,
                ticks=trace.windows[window],
                price=price_of(setting, trace.name, window),
                start_s=start_s,
            )
            for trace in traces
        ]
        key = (place, cell.deadline_h, cell.start_h, at % 2)
        policies = POLICIES | ({ANY_PRICE: lambda job: decide_at_any_price} if setting.priced else {})
        for name, make in policies.items():
            outcome = replay(job, zones, make(job), tick_s=tick_s)
            results.append(Result(name, *key, outcome.cost_usd, outcome.late))
        if cell.with_foresight:
            results.append(Result(FORESIGHT, *key, foresight_on_grid(job, zones, tick_s=tick_s), False))
    return results


def cells(setting: Setting, traces: Sequence[Trace], *, with_foresight: bool) -> list[Play]:
    found = [trace for trace in traces if not setting.places or trace.name in setting.places]
    missing = sorted(set(setting.places) - {trace.name for trace in found})
    if missing:
        raise OutlastError(f"the folder of traces lacks {', '.join(missing)}")
    groups: dict[str, list[Trace]] = defaultdict(list)
    for trace in found:
        groups[_group(setting, trace.name)].append(trace)
    return [
        Play(setting, tuple(group), deadline, start, with_foresight)
        for group in groups.values()
        for deadline in setting.deadlines_h
        for start in setting.starts_h
    ]


def _group(setting: Setting, name: str) -> str:
    if setting.priced:
        return name.split("_")[-2]  # the GPU, for one machine and for eight
    return name.partition("_")[2] if setting.together else name


def _mean(results: Sequence[Result]) -> float:
    return sum(result.cost_usd for result in results) / len(results)


def table(setting: Setting, results: Sequence[Result]) -> list[dict[str, object]]:
    """Return a row per policy: average cost, the public benchmark's score, late runs, and the two halves."""
    full, least = setting.on_demand * setting.work_h, setting.spot * setting.work_h
    by: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by[result.policy].append(result)
    rows: list[dict[str, object]] = []
    for name, mine in by.items():
        halves = [_mean([result for result in mine if result.half == half]) for half in (0, 1)]
        row: dict[str, object] = {
            "policy": name,
            "average_usd": round(_mean(mine), 4),
            "score": round(100 * (full - _mean(mine)) / (full - least), 2),
            "late": sum(result.late for result in mine),
            "runs": len(mine),
            "halves_usd": [round(half, 2) for half in halves],
        }
        if FORESIGHT in by:
            best = [_mean([result for result in by[FORESIGHT] if result.half == half]) for half in (0, 1)]
            row["of_foresight"] = round(_mean(mine) / _mean(by[FORESIGHT]), 4)
            row["halves_of_foresight"] = [round(a / b, 4) for a, b in zip(halves, best, strict=True)]
        rows.append(row)
    return rows


def markdown(setting: Setting, rows: Sequence[dict[str, object]]) -> str:
    """Return the table as Markdown for the README."""
    lines = [f"### {setting.title}", "", "| policy | average $ | score | late | of foresight | halves, of foresight |"]
    lines.append("|---|---|---|---|---|---|")
    for row in rows:
        halves = row.get("halves_of_foresight") or row["halves_usd"]
        assert isinstance(halves, list)
        lines.append(
            f"| {row['policy']} | {row['average_usd']:.4f} | {row['score']} | {row['late']} of {row['runs']} "
            f"| {row.get('of_foresight', '')} | {halves[0]}, {halves[1]} |"
        )
    return "\n".join(lines)


def goals(name: str, setting: Setting, rows: Sequence[dict[str, object]]) -> Table:
    """Return the goals of a set; for a user's own set, only that no run is late."""
    ours = next(row for row in rows if row["policy"] == "outlast")
    late, usd, score, share = (
        float(str(ours.get(key, "nan"))) for key in ("late", "average_usd", "score", "of_foresight")
    )
    goals = [once("late runs", late, "late", goal="0", met=late == 0)]
    if name == "first":
        goals.append(once("score", score, "", goal=">= 51.7", met=score >= 51.7))
    if name == "second":
        goals.append(once("average", usd, "$", goal="<= $87.6", met=usd <= 87.6))
    if name == "prices":
        saved = 1 - usd / BEFORE_USD
        goals.append(once("cheaper than before", 100 * saved, "%", goal=">= 5 %", met=saved >= 0.05))
    if name == "zones" and share == share:
        goals.append(once("of foresight", share, "x", goal="<= 1.10x", met=share <= 1.10))
    return Table(f"Policies. {setting.title}", goals)


def numbers(text: str) -> tuple[float, ...]:
    found = tuple(float(each) for each in text.split(","))
    if not all(0 <= each < float("inf") for each in found):
        raise argparse.ArgumentTypeError(f"{text!r}: numbers from zero on are needed")
    return found


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*SETTINGS, "own"], action="append", help="one table alone")
    parser.add_argument("--traces", default=TRACES, metavar="FOLDER", help="the recorded capacity")
    parser.add_argument("--ones", default="", choices=ONES, help="meaning of a 1 in traces without metadata")
    parser.add_argument("--work", type=float, default=48.0, metavar="HOURS", help="of `own`: how long the job is")
    parser.add_argument("--deadlines", type=numbers, default=(52.0, 70.0), metavar="HOURS,…", help="of `own`")
    parser.add_argument(
        "--starts", type=numbers, default=(0.02, 0.1), metavar="HOURS,…", help="of `own`: what a start costs"
    )
    parser.add_argument(
        "--prices", type=numbers, default=(3.06, 0.9731), metavar="$,$", help="of `own`: on demand, spot"
    )
    parser.add_argument("--windows", type=int, default=30, help="of `own`: of each trace, at even distances; 0: all")
    parser.add_argument("--together", action="store_true", help="of `own`: the zones of a type at once")
    parser.add_argument(
        "--no-foresight", action="store_true", help="leave out the dynamic programming, nearly all of the time"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    return parser.parse_args()


def own(given: argparse.Namespace) -> Setting:
    return Setting(
        f"{given.work:g} hours of work, {given.windows or 'all'} windows a trace",
        (),
        given.deadlines,
        given.starts,
        given.together,
        given.work,
        given.prices[0],
        given.prices[1],
        given.windows,
    )


def main() -> None:
    given = options()
    traces = read_traces(given.traces, ones=given.ones)
    tables: dict[str, object] = {}
    with concurrent.futures.ProcessPoolExecutor(given.processes) as pool:
        for name in given.set or list(SETTINGS):
            began = time.monotonic()
            setting = own(given) if name == "own" else SETTINGS[name]
            todo = cells(setting, traces, with_foresight=not given.no_foresight)
            results: list[Result] = []
            for done, part in enumerate(pool.map(play, todo), 1):
                results += part
                print(f"\r{name}: {done} of {len(todo)}", end="", file=sys.stderr, flush=True)
            print(f", {time.monotonic() - began:.0f} s", file=sys.stderr)
            rows = table(setting, results)
            tables[name] = rows
            if not given.json:
                print("\n" + markdown(setting, rows), flush=True)
                write_goals(goals(name, setting, rows))
    if given.json:
        print(json.dumps(tables, indent=2))


if __name__ == "__main__":
    try:
        main()
    except OutlastError as problem:
        sys.exit(f"error: {problem.message}\nhint: {problem.hint}")
