"""One seed, one world: the real supervisor, story and agent logic among faults, and what must hold all the while.

`python -m outlast.testing --seeds 0:2000` runs many; `--seed N` replays one and prints its whole story.
"""

from __future__ import annotations

import itertools
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec

from outlast.errors import CloudError, OutlastError
from outlast.spec.parse import parse
from outlast.supervisor.apply import Applier
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.submit import ask
from outlast.supervisor.world import Step
from outlast.testing import invariants
from outlast.testing.faults import NONE, Faults, draw
from outlast.testing.hub import Actor, CrashPlan, Hub
from outlast.testing.simagent import SimAgent, chain
from outlast.testing.simcloud import ZONES, SimCloud, SimCloudView, SimMachine
from outlast.testing.store import SimBucket, SimStore
from outlast.workspace.bundle import CodeRecord
from outlast.workspace.each import one_by_one
from outlast.workspace.limits import Limits
from outlast.workspace.workspace import Workspace

# How long the storm lasts, and how long a world has afterwards to come to rest.
STORM_S = 900.0
CALM_S = 4 * 3600.0
# From a machine's end to the supervisor's knowledge of it, at the worst: supervisors that die and are cut off for
# minutes, while a zombie goes on and at last deletes the machine that would have told when it ended (seed 1923).
LAG_S = 400.0
QUIET_S = 120.0
# From the moment at which a cap is reached to the end of the machines, at the worst: so many times the longest that no
# supervisor was there, and what agents need.
CAP_ROUNDS = 2.0
CAP_LAG_S = 120.0


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What one world came to."""

    seed: int
    problem: str = ""
    trace: tuple[str, ...] = ()
    runs: int = 0
    attempts: int = 0
    effects: int = 0
    sim_s: float = 0.0
    endings: dict[str, int] = {}


class Simulation:
    """A world: store, cloud, supervisors, users, and whoever means them harm."""

    workspace_type: type[Workspace] = Workspace
    supervisor_type: type[Supervisor] = Supervisor
    applier_type: type[Applier] = Applier
    agent_type: type[SimAgent] = SimAgent
    cloud_view_type: type[SimCloudView] = SimCloudView

    def __init__(
        self, seed: int, *, faults: Faults | None = None, crash: CrashPlan | None = None, storm_s: float = STORM_S
    ) -> None:
        self.hub = Hub(seed, crash=crash)
        self.faults = faults if faults is not None else draw(self.hub.dice)
        self.storm_s = storm_s
        self.storm_over = self.hub.now + storm_s
        self.store = SimStore(self.hub)
        self.cloud = SimCloud(self.hub)
        self.store.faults = self.cloud.faults = self.faults
        self.witness = invariants.Witness(self.store, self.cloud)
        self.root = tempfile.mkdtemp(prefix="outlast-sim-")
        self.cloud.launched = self._boot
        self.supervisors: list[Actor] = []
        self.users = 0
        self.steps_applied: list[Step] = []
        # When a supervisor had seen everything, and done what it decided.
        self.rounds: list[float] = [self.hub.now]

    # Actors

    def _boot(self, machine: SimMachine) -> None:
        self.agent_type(self.hub, self.store, self.cloud, machine, root=self.root).boot()

    def workspace_of(self, actor: Actor) -> Workspace:
        return self.workspace_type(SimBucket(self.store, actor), clock=actor.time, ids=self.hub.id)

    def add_user(
        self,
        *,
        steps: int,
        pace_s: float,
        at_s: float,
        cancel_after_s: float = 0.0,
        secret: str = "",
        cost_usd: float = 0.0,
        deadline_s: float = 0.0,
    ) -> None:
        """Somebody who submits a run, tries again if it did not work, and may cancel it later."""
        self.users += 1
        actor = Actor(self.hub, "submit", f"user {self.users}")

        limits: dict[str, Any] = {"no_progress": 1000, "crashes": 1000}
        if cost_usd:
            limits["cost_usd"] = cost_usd
        if deadline_s:
            limits |= {"deadline": deadline_s, "work": steps * pace_s}

        def submit() -> None:
            spec = parse(
                {
                    "name": "run",
                    "command": "train",
                    "params": {"steps": steps, "pace_s": pace_s},
                    "limits": limits,
                    "secrets": ["TOKEN"] if secret else [],
                }
            )
            workspace = self.workspace_of(actor)
            clouds = {"local": self.cloud_view_type(self.cloud, actor)}
            while True:
                try:
                    request = ask(workspace, clouds, spec, CodeRecord(kind="none"), environment={"TOKEN": secret})
                    break
                except (OutlastError, CloudError):
                    actor.sleep(2.0)  # a user whose submit failed submits again: that is another run
            if cancel_after_s:
                actor.sleep(cancel_after_s)
                self._cancel(workspace, request.run, actor)

        self.hub.spawn(actor, submit, after_s=at_s)

    def limit_workspace(self, limits: Limits) -> None:
        """Somebody has said what all runs together may cost, before there was any."""
        self.store.put("limits/workspace.json", msgspec.json.encode(limits))

    def _cancel(self, workspace: Workspace, run: str, actor: Actor) -> None:
        from outlast.workspace.events import Cancelled

        nonce = self.hub.id()
        while True:
            try:
                workspace.story(run).append(Cancelled(who="user", at=actor.time()), nonce=nonce)
                workspace.ring(run)
                return
            except OutlastError:
                actor.sleep(1.0)

    def add_supervisor(self, *, after_s: float = 0.0) -> None:
        actor = Actor(self.hub, "supervisor", f"supervisor {len(self.supervisors) + 1}")
        self.supervisors.append(actor)

        def supervise() -> None:
            supervisor = self._make_supervisor(actor)
            while True:
                try:
                    if self.faults.ignore_lease or supervisor.lease.hold():
                        steps = supervisor.round()
                        self.steps_applied += steps
                        if not supervisor.world.blind:
                            self.rounds.append(self.hub.now)
                        if not steps:
                            states = {view.run: view.state for view in supervisor.world.runs}
                            invariants.whoever_waits_says_why(states)
                except OutlastError:
                    pass
                actor.sleep(self.hub.dice.uniform(0.5, 4.0))

        self.hub.spawn(actor, supervise, after_s=after_s)

    def _make_supervisor(self, actor: Actor) -> Supervisor:
        workspace = self.workspace_of(actor)
        clouds = {"local": self.cloud_view_type(self.cloud, actor)}
        while True:
            try:
                supervisor = self.supervisor_type(
                    workspace,
                    clouds,
                    who=actor.name,
                    clock=actor.time,
                    monotonic=actor.monotonic,
                    ids=self.hub.id,
                    each=one_by_one,
                )
            except OutlastError:
                actor.sleep(1.0)
                continue
            supervisor.applier = self.applier_type(
                workspace, clouds, supervisor.observer, who=actor.name, clock=actor.time, ids=self.hub.id
            )
            return supervisor

    def keep_supervised(self) -> None:
        """Whoever restarts a supervisor that died: a user, a cron job, the next `outlast run`."""
        actor = Actor(self.hub, "keeper", "whoever restarts supervisors")

        def watch() -> None:
            while True:
                actor.sleep(5.0)
                for number, supervisor in enumerate(self.supervisors):
                    if supervisor.dead:
                        self.supervisors.pop(number)
                        self.add_supervisor()
                        break

        self.hub.spawn(actor, watch)

    # The storm

    def storm(self) -> None:
        faults = self.faults
        blows: list[tuple[float, Callable[[], None]]] = [
            (faults.preempt_every_s, self._preempt_one),
            (faults.stockout_every_s, self._stock_out),
            (faults.kill_supervisor_every_s, self._kill_supervisor),
            (faults.kill_agent_every_s, self._kill_agent),
            (faults.pause_every_s, self._pause_somebody),
        ]
        for every_s, blow in blows:
            if every_s:
                self._strike(every_s, blow)

    def _strike(self, every_s: float, blow: Callable[[], None]) -> None:
        actor = Actor(self.hub, "fate", blow.__name__)

        def strike() -> None:
            while True:
                actor.sleep(self.hub.dice.expovariate(1.0 / every_s))
                if self.hub.now > self.storm_over:
                    return
                blow()

        self.hub.spawn(actor, strike)

    def _running(self) -> list[SimMachine]:
        return [m for m in self.cloud.alive() if m.facts.status == "running"]

    def _preempt_one(self) -> None:
        machines = self._running()
        if machines:
            self.cloud.preempt(self.hub.dice.choice(machines), notice=self.hub.dice.random() < self.faults.notice)

    def _stock_out(self) -> None:
        zone = self.hub.dice.choice(ZONES)
        self.cloud.out_until[zone] = self.hub.now + self.hub.dice.uniform(5.0, 120.0)

    def _kill_supervisor(self) -> None:
        if self.supervisors:
            self.hub.dice.choice(self.supervisors).kill()

    def _kill_agent(self) -> None:
        machines = [m for m in self._running() if m.agent is not None]
        if machines:
            machine = self.hub.dice.choice(machines)
            assert machine.agent is not None
            machine.agent.kill()
            if (
                self.hub.dice.random() < 0.5
            ):  # the boot script saw it and switched the machine off; or it, too, was killed
                self.cloud.stop(machine, "powered off by itself")

    def _pause_somebody(self) -> None:
        """SIGSTOP, a sleeping laptop, a cut cable: away for longer than every lease, then back."""
        actors = [a for a in [*self.supervisors, *(m.agent for m in self._running())] if a is not None]
        if actors:
            self.hub.dice.choice(actors).cut_until = self.hub.now + self.hub.dice.uniform(5.0, 200.0)

    # The whole

    def run(self) -> Result:
        try:
            self.hub.run(lambda: self.hub.now >= self.storm_over, limit_s=self.storm_s + 1)
            self._calm_down()
            self.hub.run(self._at_rest, limit_s=CALM_S)
            # A zombie's last words may still be on their way; they must change nothing for long.
            quiet_until = self.hub.now + QUIET_S
            self.hub.run(lambda: self.hub.now >= quiet_until, limit_s=QUIET_S + 1)
            self._check_the_end()
            return self._result("")
        except AssertionError as problem:
            return self._result(str(problem) or repr(problem))
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _calm_down(self) -> None:
        """The faults stop. What is true now must lead to rest."""
        calm = msgspec.structs.replace(NONE, ignore_lease=self.faults.ignore_lease, store_slow_s=0.02)
        self.store.faults = self.cloud.faults = calm
        self.cloud.out_until.clear()
        self.faults = calm
        for actor in [*self.supervisors, *(m.agent for m in self.cloud.history)]:
            if actor is not None:
                actor.cut_until = 0.0
        if not any(not actor.dead for actor in self.supervisors):
            self.add_supervisor()

    def _at_rest(self) -> bool:
        return (
            all(record.ended for record in self.witness.runs.values())
            and not self.cloud.alive()
            and not self.store.keys("pulse/")
            and not self.store.keys("bell/")
        )

    def _check_the_end(self) -> None:
        invariants.every_run_ended(self.witness)
        invariants.every_machine_is_gone(self.cloud)
        invariants.nothing_is_remembered_of_the_dead(self.store)
        invariants.what_is_stored_is_named(self.store, self.witness)
        expected = {record.run: chain(self._total(record.run)) for record in self.witness.runs.values()}
        invariants.results_are_right(self.store, self.witness, expected)
        invariants.cost_counted_is_cost_caused(self.cloud, self.witness, self.hub.now, lag_s=LAG_S)
        away_s = max(after - before for before, after in itertools.pairwise([*self.rounds, self.hub.now]))
        lag_s = CAP_ROUNDS * away_s + CAP_LAG_S
        invariants.spend_stays_within_the_cap(self.cloud, self.witness, self.hub.now, lag_s=lag_s)
        self._a_world_at_rest_plans_nothing()

    def _total(self, run: str) -> int:
        body = self.store.objects[f"runs/{run}/spec.json"][0]
        return int(msgspec.json.decode(body)["spec"]["params"]["steps"])

    def _a_world_at_rest_plans_nothing(self) -> None:
        actor = Actor(self.hub, "auditor", "auditor")
        found: list[tuple[Step, ...]] = []

        def look() -> None:
            supervisor = self._make_supervisor(actor)
            found.append(plan(supervisor.observer.observe(actor.time())))

        self.hub.spawn(actor, look)
        self.hub.run(lambda: bool(found), limit_s=60.0)
        invariants.demand(found == [()], "a_world_at_rest_plans_nothing", f"{found}")

    def _result(self, problem: str) -> Result:
        endings: dict[str, int] = {}
        for record in self.witness.runs.values():
            for event in record.events:
                if event["event"] in ("finished", "failed", "cancelled"):
                    endings[event["event"]] = endings.get(event["event"], 0) + 1
        return Result(
            seed=self.hub.seed,
            problem=problem,
            trace=tuple(self._story()) if problem else (),
            runs=len(self.witness.runs),
            attempts=len(self.cloud.history),
            effects=sum(self.store.calls.values()) + sum(self.cloud.calls.values()),
            sim_s=self.hub.now - 1_000_000.0,
            endings=endings,
        )

    def _story(self) -> list[str]:
        lines = [f"seed {self.hub.seed}, {self.faults}"]
        for record in self.witness.runs.values():
            lines += [f"{record.run} {number:4d} {event}" for number, event in enumerate(record.events, 1)]
        return [*lines, *self.hub.trace[-200:]]


def simulate(seed: int, *, kind: type[Simulation] = Simulation) -> Result:
    """The world of one seed: a few users, some supervisors, and a storm."""
    world = kind(seed)
    dice = world.hub.dice
    # Money has dice of its own, so that worlds without limits are what they were before there were any.
    money = random.Random(f"money {seed}")
    if money.random() < 0.15:
        world.limit_workspace(Limits(cost_usd=money.uniform(0.05, 0.3), per="total", max_machines=money.choice([0, 2])))
    hurry = random.Random(f"deadline {seed}")
    for _ in range(dice.choice([1, 1, 2, 3])):
        cancel_after_s = dice.uniform(1.0, 400.0) if dice.random() < 0.2 else 0.0
        steps, pace_s = dice.randint(4, 40), dice.choice([1.0, 5.0, 20.0])
        world.add_user(
            steps=steps,
            pace_s=pace_s,
            at_s=dice.uniform(0, 200.0),
            cancel_after_s=cancel_after_s,
            cost_usd=money.uniform(0.02, 0.2) if money.random() < 0.25 else 0.0,
            deadline_s=steps * pace_s * hurry.uniform(1.1, 6.0) + 60.0 if hurry.random() < 0.1 else 0.0,
        )
    for _ in range(world.faults.supervisors):
        world.add_supervisor(after_s=dice.uniform(0, 30.0))
    world.keep_supervised()
    world.storm()
    return world.run()
