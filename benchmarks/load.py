"""One supervisor with 10 to 10,000 live runs: time, calls and memory of a round.

    python benchmarks/load.py [--json] [10 100 1000 10000]

The real observer and plan with the simulated store and cloud, without faults and delays. `cold` is the first
round of a new supervisor, which reads every story; `quiet` is a round without changes; in `busy`, 1 % of the runs
sent a wakeup.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import tracemalloc

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, once, print_tables

from outlast.clouds.cloud import Boot, Requirements
from outlast.code.record import CodeRecord
from outlast.runs import events as ev
from outlast.runs.story import event_key
from outlast.spec.parse import parse
from outlast.store.parallel import one_by_one
from outlast.supervisor.boot import labels
from outlast.supervisor.observe import Observer
from outlast.supervisor.plan import plan
from outlast.testing.faults import WorldFaults
from outlast.testing.scheduler import Actor, Scheduler
from outlast.testing.sim_store import SimBucket, SimStore
from outlast.testing.simcloud import SimCloud, SimCloudView
from outlast.workspace import Heartbeat, Workspace


class World:
    """Create runs, each with a running attempt on a machine."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.scheduler = Scheduler(1)
        self.store, self.cloud = SimStore(self.scheduler), SimCloud(self.scheduler)
        self.store.faults = self.cloud.faults = WorldFaults(store_slow_s=1e-9)
        self.actor = Actor(self.scheduler, "supervisor", "supervisor")
        self.workspace = Workspace(SimBucket(self.store, self.actor), clock=self.actor.time, ids=self.scheduler.id)
        self.view = SimCloudView(self.cloud, self.actor)

    def fill(self) -> None:
        spec = parse({"name": "run", "command": "train"})
        offer = self.view.offers(Requirements())[0]
        for number in range(1, self.count + 1):
            run = f"run-{number}"
            request = {"run": run, "spec": spec, "code": CodeRecord()}
            self.store.put(f"runs/{run}/spec.json", msgspec.json.encode(request))
            machine = self.workspace.machine_name(run, 1)
            story: list[ev.Event] = [
                ev.Submitted(who="load"),
                ev.Placed(
                    attempt=1, cloud="local", region=offer.region, zone=offer.zone, type=offer.type, spot=True,
                    price_usd_per_hour=1.0, machine=machine,
                ),
                ev.Started(attempt=1),
                *(ev.Saved(attempt=1, checkpoint=f"c{n}", step=n) for n in range(5)),
            ]  # fmt: skip
            for index, event in enumerate(story, 1):
                self.store.put(event_key(run, index), ev.encode(event))
            self.store.put(f"heartbeats/{run}", msgspec.json.encode(Heartbeat(attempt=1)))
            self.cloud.create(offer, machine, Boot(), labels(self.workspace, run, 1))


def measure(count: int) -> dict[str, float]:
    world = World(count)
    found: dict[str, float] = {"runs": count}

    def life() -> None:
        world.fill()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        observer = Observer(world.workspace, {"local": world.view}, monotonic=world.actor.monotonic, each=one_by_one)
        _round(world, observer, "cold", found)
        found["kb_per_run"] = (tracemalloc.get_traced_memory()[0] - before) / count / 1000
        tracemalloc.stop()
        _round(world, observer, "quiet", found)
        for number in range(0, count, 100):
            world.store.put(f"wakeups/run-{number + 1}/x", b"")
        _round(world, observer, "busy", found)

    world.scheduler.spawn(world.actor, life)
    world.scheduler.run(lambda: "busy_s" in found, limit_s=1e9)
    found["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return found


def _round(world: World, observer: Observer, name: str, found: dict[str, float]) -> None:
    world.store.calls.clear()
    world.cloud.calls.clear()
    began = time.perf_counter()
    seen = observer.observe(world.actor.time())
    steps = plan(seen)
    found[f"{name}_s"] = time.perf_counter() - began
    found[f"{name}_calls"] = sum(world.store.calls.values()) + sum(world.cloud.calls.values())
    assert not steps, steps[:3]
    assert len(seen.runs) == world.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[10, 100, 1000, 10_000])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for count in options.counts:
        # A separate process for each number of runs, for its peak memory.
        if len(options.counts) > 1:
            import subprocess

            done = subprocess.run(
                [sys.executable, __file__, "--json", str(count)], capture_output=True, text=True, check=True
            )
            rows += json.loads(done.stdout)
        else:
            rows.append(measure(count))
    if options.json:
        print(json.dumps(rows))
        return
    for found in rows:
        print_tables(table(found))


def table(found: dict[str, float]) -> Table:
    count, most = found["runs"], found["runs"] >= 10_000
    quiet, peak, each = found["quiet_s"], found["peak_mb"], found["kb_per_run"]
    calls = found["quiet_calls"]
    return Table(
        f"One supervisor, {count:,.0f} live runs",
        [
            once("a cold round", found["cold_s"], "s", against=f"{found['cold_calls']:,.0f} calls"),
            once("a quiet round", quiet, "s", **({"goal": "< 2 s", "met": quiet < 2} if most else {})),
            once("... its calls", calls, "calls", goal="<= 4, however many runs", met=calls <= 4),
            once("a round in which 1 % rang", found["busy_s"], "s", against=f"{found['busy_calls']:,.0f} calls"),
            once("memory a run", each, "kB", **({"goal": "< 20 kB", "met": each < 20} if most else {})),
            once("memory at the most", peak, "MB", **({"goal": "< 500 MB", "met": peak < 500} if most else {})),
        ],
    )


if __name__ == "__main__":
    main()
