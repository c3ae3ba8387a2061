"""`outlast cost` in a workspace with many ended runs: with the index, and from all stories.

    python benchmarks/ledger.py [--json] [--runs 1000]

Each story is of a run that was preempted once: eleven events, two machines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from measure import OUTLAST, Home, Table, home, interleaved, once, print_tables, row

from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns
from outlast.runs.story import event_key

_TIMES = 7


def story(run: str, begin: float) -> list[ev.Event]:
    def placed(attempt: int, at: float) -> ev.Placed:
        return ev.Placed(
            attempt=attempt, cloud="local", region="local1", zone="local1-a", type="local-4", spot=True,
            price_usd_per_hour=0.048, on_demand_usd_per_hour=0.16, machine=f"{run}-a{attempt}", at=at,
        )  # fmt: skip

    return [
        ev.Submitted(who="ann" if len(run) % 2 else "bob", at=begin),
        placed(1, begin + 1),
        ev.Started(attempt=1, at=begin + 60),
        ev.Saved(attempt=1, checkpoint="0001-00001", at=begin + 600),
        ev.Lost(attempt=1, why="its machine is stopped: preempted", at=begin + 900),
        placed(2, begin + 901),
        ev.Released(attempt=1, cost_usd=0.012, seconds=900, at=begin + 902),
        ev.Started(attempt=2, resumed_from="0001-00001", at=begin + 960),
        ev.Saved(attempt=2, checkpoint="0002-00001", at=begin + 1500),
        ev.Finished(attempt=2, at=begin + 2000),
        ev.Released(attempt=2, cost_usd=0.0147, seconds=1100, at=begin + 2002),
    ]


def fill(bench: Home, count: int) -> None:
    now = time.time()
    for number in range(1, count + 1):
        run = f"run-{number}"
        for at, event in enumerate(story(run, now - 86400.0 * 30 * number / count), 1):
            bench.workspace.bucket.create(event_key(run, at), ev.encode(event), durable=False)


def measure(count: int) -> tuple[Table, dict[str, list[float]]]:
    with home() as bench:
        fill(bench, count)
        EndedRuns(bench.workspace).rebuild()
        complete = Path(bench.environment["OUTLAST_WORKSPACE"], "ended")

        def without_index() -> float:
            aside = complete.rename(complete.with_name("aside"))
            try:
                return bench.time_s([OUTLAST, "cost"])
            finally:
                aside.rename(complete)

        by_user = ["cost", "--by", "user", "--since", "7d"]
        cases = {
            "outlast cost, every story": without_index,
            "outlast cost": lambda: bench.time_s([OUTLAST, "cost"]),
            "outlast cost --by user --since 7d": lambda: bench.time_s([OUTLAST, *by_user]),
            "outlast ps --all --limit 0": lambda: bench.time_s([OUTLAST, "ps", "--all", "--limit", "0"]),
        }
        found = interleaved(cases, times=_TIMES)
    bare = statistics.median(found["outlast cost, every story"])
    rows = []
    for name, samples in found.items():
        ratio = statistics.median(samples) / bare
        goal = {"goal": "<= 0.7x", "met": ratio <= 0.7} if "story" not in name else {}
        rows.append(row(name, [1000 * s for s in samples], "ms", against=f"{ratio:.2f}x every story", **goal))
    rows.append(once("runs", float(count), "ended"))
    return Table(title=f"Cost of {count:,} ended runs ({_TIMES} times each, interleaved)", rows=rows), found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table, found = measure(options.runs)
    if options.json:
        print(json.dumps(found))
    else:
        print_tables(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
