"""Distributed runs: the pause after a preemption, the start of several machines together, and joint commits.

    python benchmarks/nodes.py [--quick] [--only pause|start|commit]

`pause`: the real supervisor, conductor and checkpoint code in a simulated world, where every machine boots in 20 s.
`start`: real machines of the local cloud. `commit`: the real committers and a workspace in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from measure import OUTLAST, Home, Row, Table, home, interleaved, print_tables, row

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.commit import Committer
from outlast.agent.checkpoint.joint import LeaderCommitter, MemberCommitter
from outlast.agent.node import Node
from outlast.agent.paths import AttemptPaths
from outlast.runs import events as ev
from outlast.spec.spec import CheckpointSpec
from outlast.store.folder import FolderBucket
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.world import PlaceAttempt, RetireNodes, Step, World
from outlast.testing import simagent, simcloud
from outlast.testing.faults import NONE
from outlast.testing.simulate import Simulation
from outlast.workspace import Workspace

_NODES = 4
_BOOT_S, _PACE_S = 20.0, 0.5
_PREEMPT_AT_S, _RUN_S = 120.0, 400.0


# The pause after a preemption, in a simulated world


class SteadyAgent(simagent.SimAgent):
    """An agent whose boot, environment included, always takes the same time."""

    def boot(self) -> None:
        self.scheduler.spawn(self.actor, self._live, after_s=_BOOT_S)


class ReplacesAll(Supervisor):
    """Replaces all machines when one is lost, as other tools do: first they delete those that are left."""

    def decide(self, world: World) -> tuple[Step, ...]:
        states = {view.run: view.state for view in world.runs}
        steps: list[Step] = []
        for step in super().decide(world):
            last = states[step.run].last if isinstance(step, PlaceAttempt) else None
            if last is None or last.nodes == 1 or last.retired:
                steps.append(step)
            elif last.phase == "over":
                steps.append(RetireNodes(run=step.run, attempt=last.number, why="all are replaced"))
        return tuple(steps)


def pause_s(*, seed: int, nodes: int, grace_s: float, supervisor: type[Supervisor], notice: bool) -> tuple[float, int]:
    """Return the longest pause between two steps after one machine of a run is preempted, and the machines launched."""
    simcloud.GRACE_S = simagent.GRACE_S = grace_s
    kind = type("Steady", (Simulation,), {"agent_type": SteadyAgent, "supervisor_type": supervisor})
    world = kind(seed, faults=NONE)
    steps: list[float] = []
    world.cloud.worked = lambda run: steps.append(world.scheduler.now)
    start = world.scheduler.now
    try:
        shards = {"layout": "shards", "kind": "together"} if nodes > 1 else {}
        world.add_user(steps=int(_RUN_S / _PACE_S), pace_s=_PACE_S, at_s=0.0, nodes=nodes, **shards)
        world.add_supervisor()
        world.scheduler.run(lambda: world.scheduler.now >= start + _PREEMPT_AT_S, limit_s=_PREEMPT_AT_S + 1)
        world.cloud.preempt(world.running()[-1], notice=notice)
        world.scheduler.run(lambda: world.scheduler.now >= start + _RUN_S, limit_s=_RUN_S + 1)
        launched = len(world.cloud.history)
    finally:
        shutil.rmtree(world.root, ignore_errors=True)
    return max(after - before for before, after in itertools.pairwise(sorted(steps))) - _PACE_S, launched - nodes


def measure_pause(seeds: int) -> Table:
    rows: list[Row] = []
    for grace_s, notice in ((30.0, True), (120.0, True), (30.0, False)):
        cases = {
            "one machine": (1, Supervisor),
            f"one of {_NODES}": (_NODES, Supervisor),
            f"all {_NODES} replaced": (_NODES, ReplacesAll),
        }
        found = {
            what: [
                pause_s(seed=seed, nodes=nodes, grace_s=grace_s, supervisor=kind, notice=notice)
                for seed in range(seeds)
            ]
            for what, (nodes, kind) in cases.items()
        }
        how = f"notice of {grace_s:g} s" if notice else "no notice"
        times = {what: sorted(pause for pause, _ in pairs) for what, pairs in found.items()}
        middle = {what: values[len(values) // 2] for what, values in times.items()}
        single, gang, everything = middle.values()
        against = {
            f"one of {_NODES}": (f"{gang / single:.2f}x one machine", "<= 1.5x", gang <= 1.5 * single),
            f"all {_NODES} replaced": (f"{everything / gang:.2f}x ours", ">= 2x", everything >= 2 * gang),
        }
        for what, values in times.items():
            text, goal, met = against.get(what, ("", "", None))
            new = sorted(count for _, count in found[what])[len(values) // 2]
            rows.append(row(f"{how}: {what}, {new} new", values, "s", against=text, goal=goal, met=met))
    return Table(f"A preemption of one of {_NODES} machines: pause of the training (boot {_BOOT_S:g} s)", rows)


# The start of several machines together, on the local cloud

_PROGRAM = """
import os, time
begun = time.time()
folder = os.environ["OUTLAST_OUTPUT_DIR"]
os.makedirs(folder, exist_ok=True)
open(os.path.join(folder, "begun-" + os.environ.get("OUTLAST_NODE_RANK", "0")), "w").write(str(begun))
"""


def start_s(here: Home, *, nodes: int, runs: int) -> float:
    """Return the time from the submission to the start of the last command, of so many runs at the same time."""
    Path(here.project, "begin.py").write_text(_PROGRAM)
    Path(here.project, "outlast.toml").write_text(f'command = "python3 begin.py"\n[machine]\nnodes = {nodes}\n')
    known, began = set(here.workspace.runs()), time.time()
    threads = [threading.Thread(target=here.time_s, args=([OUTLAST, "run"],)) for _ in range(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    new = set(here.workspace.runs()) - known
    found = [
        float(here.workspace.bucket.get(entry.key))
        for run in new
        for entry in here.workspace.bucket.list(f"runs/{run}/outputs/")
        if "/begun-" in entry.key
    ]
    assert len(found) == nodes * runs, found
    return max(found) - began


def measure_start(times: int) -> Table:
    with home() as here:
        found = interleaved(
            {
                "one": lambda: start_s(here, nodes=1, runs=1),
                "alone": lambda: start_s(here, nodes=1, runs=_NODES),
                "together": lambda: start_s(here, nodes=_NODES, runs=1),
            },
            times=times,
        )
    ratio = statistics.median(found["together"]) / statistics.median(found["alone"])
    return Table(
        "Submit to the start of the last command",
        [
            row("one machine", found["one"], "s"),
            row(f"{_NODES} runs of one machine at the same time", found["alone"], "s"),
            row(f"one run of {_NODES} machines", found["together"], "s", against=f"{ratio:.2f}x the {_NODES} runs"),
        ],
    )


# Joint commits


class Saver:
    """The part of an agent that commits the checkpoints of one machine."""

    def __init__(self, store: FolderBucket, root: Path, run: str, rank: int, nodes: int) -> None:
        place = {name: str(root / run / str(rank) / name) for name in ("checkpoints", "outputs", "code", "cache")}
        paths = AttemptPaths(home=str(root / run / str(rank)), notice_file=str(root / "n"), done_file="", **place)
        paths.make()
        self.folder = Path(paths.checkpoints)
        workspace = Workspace(store)
        if not rank:
            _place(workspace, run, nodes)
        ids = (f"{rank}-{number}" for number in itertools.count())
        attempt = AttemptWriter(workspace, run, 1, clock=time.time, ids=lambda: next(ids), rank=rank)
        committer: Any = Committer
        self.node: Node | None = None
        if nodes > 1:
            clocks: dict[str, Any] = {"boot_s": 60.0, "silence_s": 60.0, "beat_s": 1.0, "poll_s": 1.0}
            self.node = Node(store, run, 1, rank=rank, nodes=nodes, now=time.monotonic, **clocks)
            committer = partial(MemberCommitter if rank else LeaderCommitter, node=self.node)
        rule = CheckpointSpec(keep=1)
        self.checkpointer = Checkpointer(
            attempt, paths=paths, rule=rule, report=lambda _: None, node=rank, committer_type=committer
        )

    def write(self, step: int, bodies: list[bytes]) -> None:
        """Replace the checkpoint of the step before."""
        for old in self.folder.glob("step-*"):
            shutil.rmtree(old)
        folder = self.folder / f"step-{step}"
        folder.mkdir()
        name = f"rank-{self.node.rank}" if self.node else "state"
        for number, body in enumerate(bodies):
            (folder / f"{name}-{number}.bin").write_bytes(body)

    def commit_s(self) -> float:
        began = time.perf_counter()
        self.checkpointer.commit(self.checkpointer.scanner.scan_folder())
        return time.perf_counter() - began


def _place(workspace: Workspace, run: str, nodes: int) -> None:
    place: dict[str, Any] = {"cloud": "local", "region": "r", "zone": "z", "type": "t", "spot": True}
    members = tuple(f"{run}-{rank}" for rank in range(nodes)) if nodes > 1 else ()
    placed = ev.Placed(attempt=1, machine=f"{run}-0", members=members, price_usd_per_hour=1.0, **place)
    for number, event in enumerate([ev.Submitted(), placed, ev.Started(attempt=1)]):
        workspace.story(run).append_or_raise(event, nonce=str(number))


def measure_commit(rounds: int, megabytes: float) -> Table:
    rows: list[Row] = []
    for files, size in ((4, int(megabytes * 1e6 / 4)), (200, 4096)):
        root = Path(tempfile.mkdtemp(prefix="outlast-bench-"))
        try:
            store = FolderBucket(str(root / "workspace"))
            gang = [Saver(store, root, "gang", rank, _NODES) for rank in range(_NODES)]
            alone = [Saver(store, root, f"alone-{rank}", 0, 1) for rank in range(_NODES)]
            found: dict[str, list[float]] = {"gang": [], "alone": []}
            for step in range(rounds + 1):
                bodies = [[os.urandom(size) for _ in range(files)] for _ in range(_NODES)]
                for saver, body in zip([*gang, *alone], bodies * 2, strict=True):
                    saver.write(step, body)
                # The leader commits last: its commit waits for the others.
                took = {"alone": sum(saver.commit_s() for saver in alone)}
                took["gang"] = sum(saver.commit_s() for saver in reversed(gang))
                assert gang[0].checkpointer.committer.step == step
                for what in took if step else ():  # the first round warms up
                    found[what].append(took[what])
        finally:
            shutil.rmtree(root, ignore_errors=True)
        ratio = statistics.median(found["gang"]) / statistics.median(found["alone"])
        what = f"{files} files of {size / 1e6:g} MB" if size > 1e5 else f"{files} files of {size / 1e3:.0f} kB"
        rows += [
            row(f"{_NODES} single commits, {what} each", found["alone"], "s"),
            row(
                f"one joint commit of {_NODES} machines",
                *(found["gang"], "s"),
                against=f"{ratio:.2f}x",
                goal="<= 1.2x",
                met=ratio <= 1.2,
            ),
        ]
    return Table(
        f"Joint commit of {_NODES} machines against {_NODES} single ones (processes one after the other)", rows
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--only", choices=["pause", "start", "commit"])
    options = parser.parse_args()
    parts = {
        "pause": lambda: measure_pause(3 if options.quick else 9),
        "start": lambda: measure_start(2 if options.quick else 7),
        "commit": lambda: measure_commit(3 if options.quick else 9, 16.0 if options.quick else 64.0),
    }
    for name, measure in parts.items():
        if options.only in (None, name):
            print_tables(measure())


if __name__ == "__main__":
    main()
