"""The simulation of one seed: the real supervisor, story and agent logic among faults, with invariants.

`python -m outlast.testing --seeds 0:2000` runs many; `--seed N` replays one and prints its whole story.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
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
from outlast.testing import invariants, invariants_at_rest, node_invariants, run_record
from outlast.testing.faults import NONE, WorldFaults, draw
from outlast.testing.result import WorldResult as WorldResult
from outlast.testing.scheduler import Actor, CrashPlan, Scheduler
from outlast.testing.sim_store import SNAPSHOT_GAP, SimBucket, SimStore
from outlast.testing.simagent import SimAgent
from outlast.testing.simcloud import SimCloud, SimCloudView, SimMachine
from outlast.testing.simtraining import chain
from outlast.testing.storm import Storm
from outlast.testing.worlds import populate, populate_nodes
from outlast.workspace import Workspace

# The duration of the faults (the storm), and the time that a world has afterwards to come to rest.
STORM_S = 900.0
CALM_S = 4 * 3600.0
# The longest delay until a supervisor detects a machine's end: supervisors die or are cut off for minutes, while a
# zombie runs on and finally deletes the machine that would have shown its end (seed 1923).
LAG_S = 400.0
QUIET_S = 120.0
# The longest delay from reaching a limit to the end of the machines: this multiple of the longest time without a
# supervisor, plus the time that agents need.
CAP_ROUNDS = 2.0
CAP_LAG_S = 120.0


class SimEffects(Effects):
    """Slow effects as greenlets of the supervisor's actor: they interleave with its rounds, and die with it."""

    # A broken invariant must not become a result.
    caught = OutlastError


class Simulation:
    """A world: store, cloud, supervisors, users and faults."""

    workspace_type: type[Workspace] = Workspace
    supervisor_type: type[Supervisor] = Supervisor
    applier_type: type[Applier] = Applier
    agent_type: type[SimAgent] = SimAgent
    cloud_view_type: type[SimCloudView] = SimCloudView

    def __init__(
        self, seed: int, *, faults: WorldFaults | None = None, crash: CrashPlan | None = None, storm_s: float = STORM_S
    ) -> None:
        self.scheduler = Scheduler(seed, crash=crash)
        self.storm_s = storm_s
        self.storm_over = self.scheduler.now + storm_s
        self.store = SimStore(self.scheduler)
        self.cloud = SimCloud(self.scheduler)
        self.set_faults(faults if faults is not None else draw(self.scheduler.rng))
        self.witness = invariants.Witness(self.store, self.cloud)
        self.witness.extra = partial(node_invariants.check_event, self.store, self.cloud)
        self.root = tempfile.mkdtemp(prefix="outlast-sim-")
        self.cloud.launched = self._boot
        self.supervisors: list[Actor] = []
        # Users, who submit and cancel.
        self.users: list[Actor] = []
        # Whether preemption with notice is the only fault, so that handoffs lose nothing.
        self.notices_only = False
        # The longest time from a supervisor's view to the end of an effect planned on it.
        self.slowest_s = 0.0
        self.storms = Storm(self)
        self.steps_applied: list[Step] = []
        # The ends of rounds in which a supervisor reached every cloud.
        self.rounds: list[float] = [self.scheduler.now]

    def set_faults(self, faults: WorldFaults) -> None:
        """Use these faults from now on; `stormy` keeps them for the checks at the end."""
        self.faults = self.stormy = self.store.faults = self.cloud.faults = faults

    # Actors

    def _boot(self, machine: SimMachine) -> None:
        if self.faults.outputs_denied and self.scheduler.rng.random() < self.faults.outputs_denied:
            metadata = machine.boot.metadata
            self.store.refused.add(f"runs/{metadata['outlast-run']}/outputs/{metadata['outlast-attempt']}")
        self.agent_type(self.scheduler, self.store, self.cloud, machine, root=self.root).boot()

    def workspace_of(self, actor: Actor) -> Workspace:
        bucket = SimBucket(self.store, actor)
        return self.workspace_type(bucket, clock=actor.time, ids=self.scheduler.id, snapshot_gap=SNAPSHOT_GAP)

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
        nodes: int | str = 1,
        layout: str = "",
        kind: str = "",
    ) -> None:
        """Add a user who submits a run, retries after a failure, and may cancel it later."""
        actor = Actor(self.scheduler, "submit", f"user {len(self.users) + 1}")
        self.users.append(actor)

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
                    "params": {"steps": steps, "pace_s": pace_s} | ({"layout": layout, "kind": kind} if layout else {}),
                    "machine": {"nodes": nodes},
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
                    actor.sleep(2.0)  # then the user submits again, which is another run
            if cancel_after_s:
                actor.sleep(cancel_after_s)
                self._cancel(workspace, request.run, actor)

        self.scheduler.spawn(actor, submit, after_s=at_s)

    def limit_workspace(self, limits: Limits) -> None:
        """Set the limits of the workspace."""
        self.store.put("limits/workspace.json", msgspec.json.encode(limits))

    def _cancel(self, workspace: Workspace, run: str, actor: Actor) -> None:
        from outlast.runs.events import Cancelled

        nonce = self.scheduler.id()
        while True:
            try:
                workspace.story(run).append(Cancelled(who="user", at=actor.time()), nonce=nonce)
                workspace.wake(run)
                return
            except OutlastError:
                actor.sleep(1.0)

    def add_supervisor(self, *, after_s: float = 0.0) -> None:
        actor = Actor(self.scheduler, "supervisor", f"supervisor {len(self.supervisors) + 1}")
        self.supervisors.append(actor)

        def supervise() -> None:
            supervisor = self._make_supervisor(actor)
            while True:
                try:
                    if self.faults.ignore_lease or supervisor.hold_lease():
                        self.witness.rounds[actor] = self.scheduler.now
                        steps = supervisor.round()
                        self.steps_applied += steps
                        if not supervisor.world.unreachable:
                            self.rounds.append(self.scheduler.now)
                        if not steps:
                            states = {view.run: view.state for view in supervisor.world.runs}
                            invariants.waiting_runs_have_a_reason(states)
                except OutlastError:
                    pass
                finally:
                    self.witness.rounds.pop(actor, None)
                actor.sleep(self.scheduler.rng.uniform(0.5, 4.0))

        self.scheduler.spawn(actor, supervise, after_s=after_s)

    def _seen_now(self, actor: Actor, work: Callable[[], None]) -> Callable[[], None]:
        """Record for the witness the age of the view on which an effect acts."""
        effect, views = object(), self.witness.views
        views[effect] = self.witness.rounds.get(actor, self.scheduler.now)

        def act() -> None:
            try:
                work()
            finally:
                self.slowest_s = max(self.slowest_s, self.scheduler.now - views.pop(effect))

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
                    ids=self.scheduler.id,
                    each=one_by_one,
                    effects=SimEffects(lambda work: self.scheduler.spawn(actor, self._seen_now(actor, work))),
                )
            except OutlastError:
                actor.sleep(1.0)
                continue
            supervisor.applier = self.applier_type(
                workspace, clouds, supervisor.observer, who=actor.name, clock=actor.time, ids=self.scheduler.id
            )
            return supervisor

    def keep_supervised(self) -> None:
        """Restart supervisors that died, as a user or the next `outlast run` does."""
        actor = Actor(self.scheduler, "restarter", "restarter of supervisors")

        def watch() -> None:
            while True:
                actor.sleep(5.0)
                for number, supervisor in enumerate(self.supervisors):
                    if supervisor.dead:
                        self.supervisors.pop(number)
                        self.add_supervisor()
                        break

        self.scheduler.spawn(actor, watch)

    def storm(self) -> None:
        self.storms.begin()

    def running(self) -> list[SimMachine]:
        return [m for m in self.cloud.alive() if m.facts.status == "running"]

    # The whole run

    def run(self) -> WorldResult:
        try:
            self.scheduler.run(lambda: self.scheduler.now >= self.storm_over, limit_s=self.storm_s + 1)
            self._calm_down()
            self._come_to_rest()
            self._check_the_end()
            return self._result("")
        except AssertionError as problem:
            return self._result(str(problem) or repr(problem))
        finally:
            shutil.rmtree(self.root, ignore_errors=True)

    def _come_to_rest(self) -> None:
        """Let time pass until the world stays at rest. Late writes of a zombie may interrupt it for a while."""
        calm_until = self.scheduler.now + CALM_S
        while self.scheduler.run(self._at_rest, limit_s=max(0.0, calm_until - self.scheduler.now)):
            quiet_until = self.scheduler.now + QUIET_S
            self.scheduler.run(lambda until=quiet_until: self.scheduler.now >= until, limit_s=QUIET_S + 1)  # type: ignore[misc]
            if self._at_rest():
                return

    def _calm_down(self) -> None:
        """Stop the faults."""
        calm = msgspec.structs.replace(NONE, ignore_lease=self.faults.ignore_lease, store_slow_s=0.02)
        self.store.faults = self.cloud.faults = self.faults = calm
        self.cloud.out_until.clear()
        for actor in [*self.supervisors, *(m.agent for m in self.cloud.history)]:
            if actor is not None:
                actor.cut_until = 0.0
        if not any(not actor.dead for actor in self.supervisors):
            self.add_supervisor()

    def _at_rest(self) -> bool:
        """Return whether every readable and listed run has ended, and left nothing behind."""
        store = self.store

        def is_readable(run: str) -> bool:
            return not store.damaged or run_record.is_readable(store, run)

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
        invariants.ended_runs_leave_nothing_behind(self.store, self.cloud)
        invariants.ended_runs_are_listed(self.store, self.witness)
        invariants.every_part_is_referenced(self.store, self.witness)
        expected = {record.run: chain(int(record.spec["params"]["steps"])) for record in self.witness.runs.values()}
        invariants.results_are_right(self.store, self.witness, expected)
        invariants.recorded_cost_is_actual_cost(self.cloud, self.witness, self.scheduler.now, lag_s=LAG_S)
        away_s = max(after - before for before, after in itertools.pairwise([*self.rounds, self.scheduler.now]))
        lag_s = CAP_ROUNDS * away_s + CAP_LAG_S + self.slowest_s
        invariants.spend_stays_within_limits(self.cloud, self.witness, self.scheduler.now, lag_s=lag_s)
        invariants.billed_seconds_are_actual_seconds(self.witness, lag_s=self.stormy.listing_lag_s)
        invariants.no_machine_is_wasted(self.witness, self.stormy)
        slow_s = 8 * self.stormy.effects_slow_s + self.stormy.listing_lag_s + 60 * self.stormy.store_slow_s
        # A supervisor must live for a while to find that a machine is silent.
        if not 0 < self.stormy.kill_supervisor_every_s < node_invariants.SILENCE_S:
            node_invariants.no_partial_run_is_billed(self.witness, self.scheduler.now, lag_s=lag_s + slow_s)
        if self.notices_only:
            invariants.a_handoff_loses_nothing(self.witness)
        self._judge_machine_limit()
        self._a_world_at_rest_plans_nothing()

    def _judge_machine_limit(self) -> None:
        found = self.store.objects.get("limits/workspace.json")
        allowed = msgspec.json.decode(found[0], type=Limits).max_machines if found else 0
        if allowed:
            # Each further supervisor may add one machine that the others do not see yet.
            others = self.stormy.supervisors - 1
            invariants_at_rest.the_machine_limit_is_kept(self.witness, allowed + others)

    def _a_world_at_rest_plans_nothing(self) -> None:
        actor = Actor(self.scheduler, "auditor", "auditor")
        found: list[tuple[Step, ...]] = []

        def audit() -> None:
            supervisor = self._make_supervisor(actor)
            found.append(plan(supervisor.observer.observe(actor.time())))

        self.scheduler.spawn(actor, audit)
        self.scheduler.run(lambda: bool(found), limit_s=60.0)
        run_record.require(found == [()], "a_world_at_rest_plans_nothing", f"{found}")

    def _result(self, problem: str) -> WorldResult:
        endings: dict[str, int] = {}
        for record in self.witness.runs.values():
            for event in record.events:
                if event["event"] in ("finished", "failed", "cancelled"):
                    endings[event["event"]] = endings.get(event["event"], 0) + 1
        return WorldResult(
            seed=self.scheduler.seed,
            problem=problem,
            trace=tuple(self._story()) if problem else (),
            runs=len(self.witness.runs),
            attempts=len(self.cloud.history),
            effects=sum(self.store.calls.values()) + sum(self.cloud.calls.values()),
            sim_s=self.scheduler.now - 1_000_000.0,
            endings=endings,
        )

    def _story(self) -> list[str]:
        lines = [f"seed {self.scheduler.seed}, {self.stormy}"]
        for record in self.witness.runs.values():
            lines += [f"{record.run} {number:4d} {event}" for number, event in enumerate(record.events, 1)]
        return [*lines, *self.scheduler.trace[-200:]]


def simulate(seed: int, *, kind: type[Simulation] = Simulation) -> WorldResult:
    """Simulate the world of one seed."""
    world = kind(seed)
    populate(world, seed)
    return world.run()


def simulate_nodes(seed: int, *, kind: type[Simulation] = Simulation, elastic: bool = False) -> WorldResult:
    """Simulate the world of one seed with distributed runs, of a fixed number of machines or of a range."""
    world = kind(seed)
    populate_nodes(world, seed, elastic=elastic)
    return world.run()
