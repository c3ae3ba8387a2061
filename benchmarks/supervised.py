"""Deadline policies with the supervisor's own view, over recorded spot capacity.

    python benchmarks/supervised.py [--set first|second|zones|prices] [--traces FOLDER] [--windows N] [--json]

`policies.py` shows the policy each zone's capacity at every tick. A supervisor sees less: only a launch shows whether a
zone has capacity, and a zone without a machine of the run is not watched. Here the story of each run is written event
by event, and `outlast.supervisor.deadline` decides, as in production; a refused launch takes no time. The rules of time
and money are those of `policies.py`, whose policy (the full view) is replayed beside it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from measure import Table, once, write_goals
from policies import SETTINGS, TRACES, Play, cells, price_of, window_ids

from outlast.clouds.cloud import Offer
from outlast.errors import OutlastError
from outlast.policy import OnDemand, decide
from outlast.policy.replay import ReplayJob, ReplayZone, replay
from outlast.policy.traces import read_traces
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import Attempt, RunState, step
from outlast.spec.parse import parse
from outlast.spec.spec import Spec
from outlast.supervisor import deadline
from outlast.supervisor.world import RunView, World

# A cloud whose traits are those of the public clouds.
CLOUD = "gcp"
SUBMITTED = 1e6
EXACT_S = 1e-6
# Unequal prices make it more expensive not to know where capacity is.
GOAL, GOAL_PRICES = 1.03, 1.05


class Row(NamedTuple):
    """One run: what it cost with the supervisor's view and with the full view."""

    supervised_usd: float
    full_usd: float
    late: bool


class Clock:
    """A run's story over a trace, tick by tick."""

    def __init__(self, job: ReplayJob, zones: Sequence[ReplayZone], tick_s: float) -> None:
        self.job, self.zones, self.tick_s = job, {zone.name: zone for zone in zones}, tick_s
        self.tick = 0
        self.cost = 0.0
        self.left_s = job.work_s
        self.start_left_s = 0.0
        self.state = RunState()
        self.cooldowns: dict[str, float] = {}
        self.append(ev.Submitted(at=SUBMITTED))
        self.spec = _spec(job)
        self.spot = tuple(_offer(zone.name, zone.price, spot=True) for zone in zones)
        self.on_demand = (_offer("on-demand", job.on_demand.price, spot=False),)

    @property
    def now(self) -> float:
        return SUBMITTED + self.tick * self.tick_s

    def append(self, event: Event) -> None:
        self.state = step(self.state, event)

    def view(self) -> RunView:
        return RunView(
            run="run", spec=self.spec, state=self.state, spot_offers=self.spot, on_demand_offers=self.on_demand
        )

    def world(self, view: RunView) -> World:
        return World(now=self.now, workspace_id="ws", runs=(view,), cooldowns=self.cooldowns)

    @property
    def held(self) -> Attempt | None:
        last = self.state.last
        return last if last is not None and last.phase in ("placed", "started") else None

    def play(self) -> tuple[float, bool]:
        """Return the cost of the run, and whether it is late."""
        while True:
            finished = self._work()
            if finished is not None:
                assert self.job.deadline_s is not None
                return self.cost, finished > self.job.deadline_s + EXACT_S
            self._lose()
            self._decide()
            self.tick += 1

    def _work(self) -> float | None:
        """Bill the tick that has passed; return when the work was done."""
        held = self.held
        if held is None:
            return None
        self.cost += held.price_usd_per_hour * self.tick_s / 3600.0
        lost = min(self.start_left_s, self.tick_s)
        self.start_left_s -= lost
        if self.left_s <= self.tick_s - lost + EXACT_S:
            return (self.tick - 1) * self.tick_s + lost + self.left_s
        self.left_s -= self.tick_s - lost
        if held.phase == "placed" and self.start_left_s <= 0:
            self.append(ev.Started(attempt=held.number, at=self.now - self.tick_s + lost))
        if self.held is not None and self.held.phase == "started":
            # Everything is saved at all times, as in the public benchmark.
            done = round(self.job.work_s - self.left_s)
            self.append(ev.Saved(attempt=held.number, checkpoint=f"c{self.tick}", step=done, at=self.now))
        return None

    def _up(self, zone: str) -> bool:
        ticks = self.zones[zone].ticks
        return self.tick < len(ticks) and ticks[self.tick] == "0"

    def _lose(self) -> None:
        held = self.held
        if held is not None and held.spot and not self._up(held.zone):
            self.append(ev.Lost(attempt=held.number, why="no capacity", preempted=True, at=self.now))

    def _decide(self) -> None:
        for _ in range(len(self.zones) + 3):
            view = self.view()
            world = self.world(view)
            offer = self._next(world, view)
            if offer is None or not self._launch(offer):
                return

    def _next(self, world: World, view: RunView) -> Offer | None:
        if self.held is None:
            place = deadline.next_place(world, view)
            return place if isinstance(place, Offer) else None
        if deadline.leaves_boot(world, view):
            self.append(ev.Lost(attempt=self.held.number, why="on demand", preempted=False, at=self.now))
            return self.on_demand[0]
        return deadline.next_move(world, view)

    def _launch(self, offer: Offer) -> bool:
        """Request a machine; return whether to decide again in this tick, because it was refused."""
        number, held = len(self.state.attempts) + 1, self.held
        self.append(
            ev.Placed(
                attempt=number,
                cloud=offer.cloud,
                region=offer.region,
                zone=offer.zone,
                type=offer.type,
                spot=offer.spot,
                price_usd_per_hour=offer.price_usd_per_hour,
                machine=f"run-a{number}",
                at=self.now,
                ahead=held is not None,
            )
        )
        if offer.spot and not self._up(offer.zone):
            until = self.now + self.tick_s - 1.0
            self.cooldowns[offer.key] = until
            refused = ev.LaunchRefused(attempt=number, why="none", until=until, offers=(offer.key,), at=self.now)
            self.append(refused)
            return True
        if held is not None:
            self.append(ev.Noticed(attempt=held.number, why="moves", grace_s=0.0, moves=True, at=self.now))
            self.append(ev.Stopped(attempt=held.number, outcome="preempted", at=self.now))
        self.start_left_s = self.zones[offer.zone].start_s if offer.spot else self.job.on_demand.start_s
        if self.start_left_s <= 0:
            self.append(ev.Started(attempt=number, at=self.now))
        return False


def _spec(job: ReplayJob) -> Spec:
    return parse(
        {
            "name": "run",
            "command": "true",
            "machine": {"cloud": CLOUD},
            # Steps of a second: the supervisor measures the pace, and needs no margin for a wrong estimate.
            "limits": {"deadline": job.deadline_s, "work": job.work_s, "steps": round(job.work_s)},
            "checkpoint": {"path": "c"},
        }
    )


def _offer(zone: str, price: float, *, spot: bool) -> Offer:
    return Offer(
        cloud=CLOUD, region=zone, zone=zone, type="t", cpus=1, memory_gb=1, spot=spot, price_usd_per_hour=price
    )


def play(cell: Play) -> list[Row]:
    setting, traces = cell.setting, cell.traces
    start_s, tick_s = cell.start_h * 3600.0, traces[0].tick_s
    # Decisions happen once per tick here, and every 30 s on a public cloud.
    deadline.decision_interval_s = lambda cloud: tick_s
    on_demand = OnDemand(price=setting.on_demand, start_s=start_s)
    job = ReplayJob(work_s=setting.work_h * 3600.0, deadline_s=cell.deadline_h * 3600.0, on_demand=on_demand)
    rows: list[Row] = []
    for window in window_ids(traces, setting.windows):
        zones = [
            ReplayZone(
                name=trace.name,
                ticks=trace.windows[window],
                price=price_of(setting, trace.name, window),
                start_s=start_s,
            )
            for trace in traces
        ]
        cost, late = Clock(job, zones, tick_s).play()
        rows.append(Row(cost, replay(job, zones, decide, tick_s=tick_s).cost_usd, late))
    return rows


def table(name: str, rows: Sequence[Row]) -> dict[str, object]:
    supervised, full = (sum(row[at] for row in rows) / len(rows) for at in (0, 1))
    return {
        "set": name,
        "runs": len(rows),
        "supervised_usd": round(supervised, 4),
        "full_usd": round(full, 4),
        "of_full_view": round(supervised / full, 4),
        "late": sum(row.late for row in rows),
    }


def goals(rows: Sequence[dict[str, object]]) -> Table:
    found = []
    for row in rows:
        share, late = float(str(row["of_full_view"])), float(str(row["late"]))
        goal = GOAL if row["set"] != "prices" else GOAL_PRICES
        found.append(once(f"{row['set']}: of the full view", share, "x", goal=f"<= {goal}x", met=share <= goal))
        found.append(once(f"{row['set']}: late runs", late, "late", goal="0", met=late == 0))
    return Table("The supervisor's own view", found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=list(SETTINGS), action="append", help="one set alone")
    parser.add_argument("--traces", default=TRACES, metavar="FOLDER", help="the recorded capacity")
    parser.add_argument("--windows", type=int, default=30, help="of each trace, at even distances; 0: all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true", help="data instead of tables")
    given = parser.parse_args()
    traces = read_traces(given.traces)
    found: list[dict[str, object]] = []
    with concurrent.futures.ProcessPoolExecutor(given.processes) as pool:
        for name in given.set or list(SETTINGS):
            setting = SETTINGS[name]._replace(windows=given.windows)
            rows = [row for part in pool.map(play, cells(setting, traces, with_foresight=False)) for row in part]
            found.append(table(name, rows))
            print(msgspec.json.encode(found[-1]).decode(), file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        write_goals(goals(found))


if __name__ == "__main__":
    try:
        main()
    except OutlastError as problem:
        sys.exit(f"error: {problem.message}\nhint: {problem.hint}")
