"""The overhead of a sweep: compared with `joblib` in one process pool, and with one and two workers.

A trial is `--seconds` of CPU time, or with `--waiting` of sleep, which a busy computer does not lengthen: then the
result is only the overhead of outlast.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

from measure import OUTLAST, Home, Row, Table, home, once, print_tables

PROGRAM = """
import json, sys, time
until, clock = float(sys.argv[1]), time.monotonic if sys.argv[2] == "waiting" else time.process_time
began = clock()
while clock() - began < until:
    time.sleep(0.01) if sys.argv[2] == "waiting" else sum(range(10000))
print(json.dumps({"loss": 1.0}))
"""


def trial(seconds: float, kind: str) -> None:
    """Run one trial as a separate process, as outlast does."""
    argv = [sys.executable, "-c", PROGRAM, str(seconds), kind]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)


def in_pool(count: int, at_a_time: int, seconds: float, kind: str) -> float:
    from joblib import Parallel, delayed

    pool = Parallel(n_jobs=at_a_time)
    pool(delayed(trial)(0.0, kind) for _ in range(at_a_time))  # warm up: start the pool's processes
    began = time.perf_counter()
    pool(delayed(trial)(seconds, kind) for _ in range(count))
    return time.perf_counter() - began


def by_sweep(made: Home, count: int, seconds: float, kind: str, *packing: str) -> float:
    """Return the duration of the whole command."""
    with open(os.path.join(made.project, "train.py"), "w", encoding="utf-8") as file:
        file.write(PROGRAM)
    argv = ["sweep", "--param", f"n=1..{count}", "--sampler", "grid", "--goal", "min:loss", "--no-flags", *packing]
    argv += ["--", sys.executable, "train.py", str(seconds), kind]
    return made.time_s([OUTLAST, *argv])


def overhead(count: int, seconds: float, kind: str) -> Table:
    pool_s = in_pool(count, 2, seconds, kind)
    rows: list[Row] = [once(f"joblib, {count} trials, 2 at a time", pool_s, "s")]
    cases: dict[str, tuple[str, ...]] = {
        "outlast sweep, 2 on one machine": ("--parallel", "2", "--per-machine", "2"),
        "outlast sweep, a run a trial": ("--parallel", "2"),
    }
    for name, packing in cases.items():
        with home() as made:
            took = by_sweep(made, count, seconds, kind, *packing)
        more = (took - pool_s) / pool_s
        rows.append(once(name, took, "s", against=f"{more:+.1%}", goal="<= +10 %", met=more <= 0.10))
    return Table(f"Overhead, trials of {seconds:g} s ({kind}), load {os.getloadavg()[0]:.1f}", rows)


def scaling(count: int, seconds: float, kind: str) -> Table:
    def with_workers(number: int) -> float:
        with home() as made:
            return by_sweep(made, count, seconds, kind, "--parallel", str(number), "--per-machine", "2")

    one, two = with_workers(1), with_workers(2)
    goal = {"against": f"{one / two:.2f}x", "goal": ">= 1.7x", "met": one / two >= 1.7}
    return Table(
        f"Scaling, {count} trials of {seconds:g} s ({kind}), load {os.getloadavg()[0]:.1f}",
        [once("one at a time", one, "s"), once("two at a time", two, "s", **goal)],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a trial (10)")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--waiting", action="store_true", help="trials that wait instead of computing")
    parser.add_argument("--only", choices=["overhead", "scaling"], default="")
    options = parser.parse_args()
    kind = "waiting" if options.waiting else "computing"
    measured: dict[str, Callable[[int, float, str], Table]] = {"overhead": overhead, "scaling": scaling}
    for name, measure in measured.items():
        if options.only in ("", name):
            print_tables(measure(options.trials, options.seconds, kind))


if __name__ == "__main__":
    main()
