"""Calls per second of `outlast.Executor`, compared with ProcessPoolExecutor and Ray tasks on the same computer.

    python benchmarks/executor.py [--calls N] [--times N]

Machines and processes are warm: a first call is completed before the clock starts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from measure import Home, Row, Table, home, print_tables, row

import outlast

_WORKERS = 2
# A call may cost this much more than one of a pool of processes: it survives its machine.
_GOAL_MS = 50.0

Pool = Callable[[int], None]


def increment(number: int) -> int:
    return number + 1


@contextmanager
def machines(where: Home) -> Iterator[Pool]:
    import sys

    import cloudpickle

    # The machine does not have this script.
    cloudpickle.register_pickle_by_value(sys.modules[increment.__module__])
    os.environ.update(where.environment)
    os.chdir(where.project)
    with outlast.Executor(max_workers=_WORKERS) as pool:
        _warm(pool)
        yield lambda count: _check(list(pool.map(increment, range(count))), count)


@contextmanager
def processes() -> Iterator[Pool]:
    with concurrent.futures.ProcessPoolExecutor(_WORKERS) as pool:
        _warm(pool)
        yield lambda count: _check(list(pool.map(increment, range(count))), count)


@contextmanager
def ray_tasks() -> Iterator[Pool]:
    import ray

    ray.init(num_cpus=_WORKERS, include_dashboard=False, log_to_driver=False)
    try:
        remote: Any = ray.remote(increment)
        ray.get([remote.remote(number) for number in range(2 * _WORKERS)])
        yield lambda count: _check(ray.get([remote.remote(number) for number in range(count)]), count)
    finally:
        ray.shutdown()


def _warm(pool: concurrent.futures.Executor) -> None:
    list(pool.map(time.sleep, [0.5] * _WORKERS))


def _check(found: list[int], count: int) -> None:
    assert found == list(range(1, count + 1))


def measure(calls: int, times: int) -> Table:
    pools: dict[str, Any] = {"ProcessPoolExecutor": processes()}
    try:
        import ray  # noqa: F401

        pools["Ray tasks"] = ray_tasks()
    except ImportError:
        print("Ray is not installed: left out")
    samples: dict[str, list[float]] = {}
    with home() as where, ExitStack() as stack:
        run = {name: stack.enter_context(pool) for name, pool in {**pools, "outlast.Executor": machines(where)}.items()}
        for _ in range(times):
            for name, act in run.items():
                began = time.perf_counter()
                act(calls)
                samples.setdefault(name, []).append(1e3 * (time.perf_counter() - began) / calls)
    return Table(f"A call on {_WORKERS} warm workers ({calls} calls, {times} times)", _rows(samples))


def _rows(samples: dict[str, list[float]]) -> list[Row]:
    base = statistics.median(samples["ProcessPoolExecutor"])
    rows = []
    for name, found in samples.items():
        more = statistics.median(found) - base
        if name == "outlast.Executor":
            rows.append(
                row(name, found, "ms", against=f"+{more:.1f} ms", goal=f"<= +{_GOAL_MS:g} ms", met=more <= _GOAL_MS)
            )
        else:
            rows.append(row(name, found, "ms", against=f"+{more:.1f} ms"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    print_tables(measure(given.calls, given.times))


if __name__ == "__main__":
    main()
