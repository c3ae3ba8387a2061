"""One seed, one world: the real supervisor, story and agent logic among faults, and what must hold all the while.

`python -m outlast.testing --seeds 0:2000` runs many; `--seed N` replays one and prints its whole story.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec

from outlast.billing.limits import Limits
from outlast.clouds.traits import DEFAULT_CLOUD
from outlast.code.bundle import CodeRecord
from outlast.errors import CloudError, OutlastError
from outlast.spec.parse import parse
from outlast.store.parallel import one_by_one
from outlast.submit.prepare import prepare
from outlast.submit.write import write_run
from outlast.supervisor.apply import Applier
from outlast.supervisor.effects import Effects
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Step
from outlast.testing import invariants, invariants_at_rest
from outlast.testing.faults import NONE, WorldFaults, draw
from outlast.testing.scheduler import Actor, CrashPlan, Scheduler
from outlast.testing.sim_store import SNAPSHOT_GAP, SimBucket, SimStore
from outlast.testing.simagent import SimAgent
from outlast.testing.simcloud import SimCloud, SimCloudView, SimMachine
from outlast.testing.simtraining import chain
from outlast.testing.storm import Storm
from outlast.testing.worlds import populate
from outlast.workspace import Workspace

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


class SimEffects(Effects):
    """Slow effects as further lives of the supervisor's actor: they interleave with its rounds, and die with it."""

    # A broken invariant is reported where it breaks.
    caught = OutlastError


class WorldResult(msgspec.Struct, frozen=True, kw_only=True):
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
        self, seed: int, *, faults: WorldFaults | None = None, crash: CrashPlan | None = None, storm_s: float = STORM_S
    ) -> None:
        self.hub = Scheduler(seed, crash=crash)
        self.storm_s = storm_s
        self.storm_over = self.hub.now + storm_s
        self.store = SimStore(self.hub)
        self.cloud = SimCloud(self.hub)
        self.set_faults(faults if faults is not None else draw(self.hub.dice))
        self.witness = invariants.Witness(self.store, self.cloud)
        self.root = tempfile.mkdtemp(prefix="outlast-sim-")
        self.cloud.launched = self._boot
        self.supervisors: list[Actor] = []
        # Users who submit, and cancel.
        self.people: list[Actor] = []
        # Whether preemption with notice is the only fault, so that a handoff must lose nothing.
        self.notices_only = False
        # From a supervisor's view to the end of an effect that it decided on, at the worst.
        self.slowest_s = 0.0
        self.storms = Storm(self)
        self.steps_applied: list[Step] = []
        # When a supervisor had seen everything, and done what it decided.
        self.rounds: list[float] = [self.hub.now]

    def set_faults(self, faults: WorldFaults) -> None:
        """Use these faults from now on; those of the storm are remembered for the judgement."""
        self.faults = self.stormy = self.store.faults = self.cloud.faults = faults

    # Actors

    def _boot(self, machine: SimMachine) -> None:
        if self.faults.outputs_denied and self.hub.dice.random() < self.faults.outputs_denied:
            metadata = machine.boot.metadata
            self.store.refused.add(f"runs/{metadata['outlast-run']}/outputs/{metadata['outlast-attempt']}")
        self.agent_type(self.hub, self.store, self.cloud, machine, root=self.root).boot()

    def workspace_of(self, actor: Actor) -> Workspace:
        bucket = SimBucket(self.store, actor)
        return self.workspace_type(bucket, clock=actor.time, ids=self.hub.id, snapshot_gap=SNAPSHOT_GAP)

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
        keep: int = 2,
        crashes: int = 1000,
        no_progress: int = 1000,
        max_hours: float = 0.0,
    ) -> None:
        """Somebody who submits a run, tries again if it did not work, and may cancel it later."""
        actor = Actor(self.hub, "submit", f"user {len(self.people) + 1}")
        self.people.append(actor)

        limits: dict[str, Any] = {"no_progress": no_progress, "crashes": crashes}
        if cost_usd:
            limits["cost_usd"] = cost_usd
        if max_hours:
            limits["max_hours"] = max_hours
        if deadline_s:
            limits |= {"deadline": deadline_s, "work": steps * pace_s}

        def submit() -> None:
            spec = parse(
                {
                    "name": "run",
                    "command": "train",
                    "params": {"steps": steps, "pace_s": pace_s},
                    "limits": limits,
                    "checkpoint": {"path": "c", "keep": keep},
                    "secrets": ["TOKEN"] if secret else [],
                }
            )
            workspace = self.workspace_of(actor)
            clouds = {DEFAULT_CLOUD: self.cloud_view_type(self.cloud, actor)}
            while True:
                try:
                    code = CodeRecord(kind="none")
                    prepared = prepare(workspace, clouds, spec, code, environment={"TOKEN": secret})
                    request = write_run(workspace, clouds, prepared)
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
        from outlast.runs.events import Cancelled

        nonce = self.hub.id()
        while True:
            try:
                workspace.story(run).append(Cancelled(who="user", at=actor.time()), nonce=nonce)
                workspace.wake(run)
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
                        self.witness.rounds[actor] = self.hub.now
                        steps = supervisor.round()
                        self.steps_applied += steps
                        if not supervisor.world.unreachable:
                            self.rounds.append(self.hub.now)
                        if not steps:
                            states = {view.run: view.state for view in supervisor.world.runs}
                            invariants.whoever_waits_says_why(states)
                except OutlastError:
                    pass
                finally:
                    self.witness.rounds.pop(actor, None)
                actor.sleep(self.hub.dice.uniform(0.5, 4.0))

        self.hub.spawn(actor, supervise, after_s=after_s)

    def _seen_now(self, actor: Actor, work: Callable[[], None]) -> Callable[[], None]:
        """Let the witness know how old the view is that an effect acts on."""
        effect, views = object(), self.witness.views
        views[effect] = self.witness.rounds.get(actor, self.hub.now)

        def act() -> None:
            try:
                work()
            finally:
                self.slowest_s = max(self.slowest_s, self.hub.now - views.pop(effect))

        return act

    def _make_supervisor(self, actor: Actor) -> Supervisor:
        workspace = self.workspace_of(actor)
        clouds = {DEFAULT_CLOUD: self.cloud_view_type(self.cloud, actor)}
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
                    effects=SimEffects(lambda work: self.hub.spawn(actor, self._seen_now(actor, work))),
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

    def storm(self) -> None:
        self.storms.begin()

    def running(self) -> list[SimMachine]:
        return [m for m in self.cloud.alive() if m.facts.status == "running"]

    # The whole

    def run(self) -> WorldResult:
        try:
            self.hub.run(lambda: self.hub.now >= self.storm_over, limit_s=self.storm_s + 1)
            self._calm_down()
            self._come_to_rest()
            self._check_the_end()
            return self._result("")
        except AssertionError as problem:
            return self._result(str(problem) or repr(problem))
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _come_to_rest(self) -> None:
        """Let time pass until the world stays at rest. A zombie's last words may still be on their way; they must
        change nothing for long."""
        calm_until = self.hub.now + CALM_S
        while self.hub.run(self._at_rest, limit_s=max(0.0, calm_until - self.hub.now)):
            quiet_until = self.hub.now + QUIET_S
            self.hub.run(lambda until=quiet_until: self.hub.now >= until, limit_s=QUIET_S + 1)  # type: ignore[misc]
            if self._at_rest():
                return

    def _calm_down(self) -> None:
        """The faults stop. What is true now must lead to rest."""
        calm = msgspec.structs.replace(NONE, ignore_lease=self.faults.ignore_lease, store_slow_s=0.02)
        self.store.faults = self.cloud.faults = self.faults = calm
        self.cloud.out_until.clear()
        for actor in [*self.supervisors, *(m.agent for m in self.cloud.history)]:
            if actor is not None:
                actor.cut_until = 0.0
        if not any(not actor.dead for actor in self.supervisors):
            self.add_supervisor()

    def _at_rest(self) -> bool:
        """Every run that can be read and found has ended, and nothing of it is left."""
        store = self.store

        def is_readable(run: str) -> bool:
            return not store.damaged or invariants.is_readable(store, run)

        return (
            not self.cloud.alive()
            and all(
                record.ended or not is_readable(run) or not invariants_at_rest.is_listed(store, run)
                for run, record in self.witness.runs.items()
            )
            and not any(
                is_readable(key.split("/")[1]) for prefix in ("heartbeats/", "wakeups/") for key in store.keys(prefix)
            )
        )

    def _check_the_end(self) -> None:
        invariants = invariants_at_rest
        invariants.every_run_ended(self.witness)
        invariants.every_machine_is_gone(self.cloud)
        invariants.nothing_is_remembered_of_the_dead(self.store, self.cloud)
        invariants.ended_runs_are_listed(self.store, self.witness)
        invariants.what_is_stored_is_named(self.store, self.witness)
        expected = {record.run: chain(int(record.spec["params"]["steps"])) for record in self.witness.runs.values()}
        invariants.results_are_right(self.store, self.witness, expected)
        invariants.cost_counted_is_cost_caused(self.cloud, self.witness, self.hub.now, lag_s=LAG_S)
        away_s = max(after - before for before, after in itertools.pairwise([*self.rounds, self.hub.now]))
        lag_s = CAP_ROUNDS * away_s + CAP_LAG_S + self.slowest_s
        invariants.spend_stays_within_the_cap(self.cloud, self.witness, self.hub.now, lag_s=lag_s)
        invariants.seconds_counted_are_seconds_run(self.witness, lag_s=self.stormy.listing_lag_s)
        invariants.no_machine_is_wasted(self.witness, self.stormy)
        if self.notices_only:
            invariants.a_handoff_loses_nothing(self.witness)
        self._judge_machine_limit()
        self._a_world_at_rest_plans_nothing()

    def _judge_machine_limit(self) -> None:
        found = self.store.objects.get("limits/workspace.json")
        allowed = msgspec.json.decode(found[0], type=Limits).max_machines if found else 0
        if allowed:
            # A supervisor that does not see what another one places at the same time adds one at most.
            others = self.stormy.supervisors - 1
            invariants_at_rest.the_machine_limit_is_kept(self.witness, allowed + others)

    def _a_world_at_rest_plans_nothing(self) -> None:
        actor = Actor(self.hub, "auditor", "auditor")
        found: list[tuple[Step, ...]] = []

        def look() -> None:
            supervisor = self._make_supervisor(actor)
            found.append(plan(supervisor.observer.observe(actor.time())))

        self.hub.spawn(actor, look)
        self.hub.run(lambda: bool(found), limit_s=60.0)
        invariants.demand(found == [()], "a_world_at_rest_plans_nothing", f"{found}")

    def _result(self, problem: str) -> WorldResult:
        endings: dict[str, int] = {}
        for record in self.witness.runs.values():
            for event in record.events:
                if event["event"] in ("finished", "failed", "cancelled"):
                    endings[event["event"]] = endings.get(event["event"], 0) + 1
        return WorldResult(
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
        lines = [f"seed {self.hub.seed}, {self.stormy}"]
        for record in self.witness.runs.values():
            lines += [f"{record.run} {number:4d} {event}" for number, event in enumerate(record.events, 1)]
        return [*lines, *self.hub.trace[-200:]]


def simulate(seed: int, *, kind: type[Simulation] = Simulation) -> WorldResult:
    """The world of one seed: a few users, some supervisors, and a storm."""
    world = kind(seed)
    populate(world, seed)
    return world.run()
