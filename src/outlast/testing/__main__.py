"""`python -m outlast.testing`: simulate many worlds in parallel, and print the story of a failing seed."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from functools import partial

from outlast.testing.simulate import WorldResult, simulate, simulate_nodes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m outlast.testing", description=__doc__)
    parser.add_argument("--seeds", default="0:2000", metavar="FROM:TO", help="range of seeds (default: 0:2000)")
    parser.add_argument("--seed", type=int, default=None, help="replay one world; if it fails, print its whole story")
    parser.add_argument("--nodes", action="store_true", help="worlds with distributed runs")
    parser.add_argument("--jobs", "-j", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--elastic", action="store_true", help="worlds with distributed runs of a range of machines")
    options = parser.parse_args()
    run_world = (
        simulate_nodes if options.nodes else partial(simulate_nodes, elastic=True) if options.elastic else simulate
    )
    if options.seed is not None:
        return _report(run_world(options.seed))
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last))
    began = time.monotonic()
    done: list[WorldResult] = []
    failed: list[WorldResult] = []
    with multiprocessing.Pool(options.jobs) as pool:
        for result in pool.imap_unordered(run_world, seeds, chunksize=8):
            done.append(result)
            if result.problem:
                failed.append(result)
            if sys.stderr.isatty() and len(done) % 20 == 0:
                print(f"\r{len(done)}/{len(seeds)} worlds, {len(failed)} failed", end="", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began
    print(_summary(done, failed, took_s))
    if failed:
        return _report(min(failed, key=lambda result: len(result.trace)))
    return 0


def _summary(done: list[WorldResult], failed: list[WorldResult], took_s: float) -> str:
    endings: dict[str, int] = {}
    for result in done:
        for ending, count in result.endings.items():
            endings[ending] = endings.get(ending, 0) + count
    endings_text = ", ".join(f"{count} {ending}" for ending, count in sorted(endings.items()))
    days = sum(result.sim_s for result in done) / 86400
    return (
        f"{len(done)} worlds in {took_s:.0f} s: {sum(r.runs for r in done)} runs ({endings_text}), "
        f"{sum(r.attempts for r in done)} machines, {sum(r.effects for r in done)} calls, {days:.1f} simulated days; "
        f"{len(failed)} failed{': seeds ' + ', '.join(str(r.seed) for r in failed[:20]) if failed else ''}"
    )


def _report(result: WorldResult) -> int:
    if not result.problem:
        print(f"seed {result.seed}: all invariants hold ({result.runs} runs, {result.attempts} machines)")
        return 0
    print("\n".join(result.trace))
    print(f"\nseed {result.seed}: {result.problem}\nreplay: python -m outlast.testing --seed {result.seed}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
