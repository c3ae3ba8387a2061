"""A simulated world of old runs: submissions, repetitions and ends of runs beside several prunes, all of which may die.

The code under test is real: `submit/write.py`, `retention/` and the index. A witness checks every change of the store:
no shared object that a submitted run refers to is deleted, and nothing of a run before its cost is on record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import msgspec

from outlast.code.record import CodeRecord, code_key
from outlast.errors import OutlastError
from outlast.retention.prune import Pruner
from outlast.runs.ended import EndedRun, EndedRuns, record_of
from outlast.runs.events import Cancelled
from outlast.spec.spec import RetentionSpec, Spec
from outlast.store.shared import store_shared
from outlast.submit.prepare import PreparedRun
from outlast.submit.write import write_run
from outlast.testing.faults import NONE, WorldFaults
from outlast.testing.run_record import require
from outlast.testing.scheduler import Actor, Scheduler
from outlast.testing.sim_store import SNAPSHOT_GAP, SimBucket, SimStore
from outlast.workspace import Heartbeat, RunRequest, Workspace

STORM_S, CALM_S = 300.0, 600.0
# Clocks differ by up to twice this.
_SKEW_S = 20.0
# Ages in this world: a run is pruned and code collected soon, so that both meet submissions often.
OLD_S, CODE_AGE_S = 12.0, 2.0
_CODES = [f"code {number}".encode() * 10 for number in range(4)]


class RetentionWitness:
    """Checks each change of the store as it happens."""

    def __init__(self, store: SimStore) -> None:
        self.store = store
        # Submitted runs that no ledger page names → the shared keys that they need.
        self.needs: dict[str, tuple[str, ...]] = {}
        self.deleted: set[str] = set()
        self.submitted = 0
        store.changed = self.changed

    def changed(self, key: str, body: bytes | None) -> None:
        if body is None:
            self._removed(key)
        elif key.startswith("runs/") and key.endswith("/story/00000001.json"):
            self._announced(key.split("/")[1])
        elif key.startswith("deleted/ledger/"):
            self._buried(msgspec.json.decode(body, type=tuple[EndedRun, ...]))

    def _announced(self, run: str) -> None:
        require(run not in self.deleted, "a_name_is_used_once", f"{run} was deleted, and is submitted again")
        spec = self.store.objects.get(f"runs/{run}/spec.json")
        require(spec is not None, "a_submitted_run_has_a_request", run)
        assert spec is not None
        keys = msgspec.json.decode(spec[0], type=RunRequest).code.shared_keys
        lacking = [key for key in keys if key not in self.store.objects]
        require(not lacking, "a_submitted_run_has_its_code", f"{run} lacks {lacking}")
        self.needs[run] = keys
        self.submitted += 1

    def _buried(self, records: tuple[EndedRun, ...]) -> None:
        now = self.store.scheduler.now
        for record in records:
            stories = self.store.keys(f"runs/{record.run}/story/")
            age_s = now - max((self.store.objects[key][1] for key in stories), default=0.0)
            what = f"{record.run} is deleted {age_s:.1f} s after its end; the rule says {OLD_S:g} s"
            require(age_s >= OLD_S, "only_old_runs_are_deleted", what)
            live = f"heartbeats/{record.run}" in self.store.objects
            require(not live, "no_live_run_is_deleted", record.run)
            self.needs.pop(record.run, None)
            self.deleted.add(record.run)

    def _removed(self, key: str) -> None:
        users = [run for run, keys in self.needs.items() if key in keys]
        require(not users, "no_needed_object_is_deleted", f"{key} was deleted, and {users} need it")
        run = key.split("/")[1] if key.startswith("runs/") else ""
        require(run not in self.needs, "cost_is_recorded_first", f"{key} was deleted before the ledger had {run}")


class RetentionWorld:
    """Users and pruners of one workspace. Planted bugs replace `submit`, `write` or the pruner."""

    pruner_type: type[Pruner] = Pruner

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler(seed)
        rng = self.scheduler.rng
        self.store = SimStore(self.scheduler)
        self.store.faults = WorldFaults(
            store_fails=rng.choice([0.0, 0.01, 0.05]),
            store_loses_answers=rng.choice([0.0, 0.01, 0.05]),
            store_slow_s=rng.choice([0.02, 0.3, 1.0]),
        )
        self.witness = RetentionWitness(self.store)
        self.actors: list[tuple[Actor, Callable[[Actor], None]]] = []
        self.calm, self.calm_at = False, 0.0

    def workspace_of(self, actor: Actor) -> Workspace:
        bucket = SimBucket(self.store, actor)
        return Workspace(bucket, clock=actor.time, ids=self.scheduler.id, snapshot_gap=SNAPSHOT_GAP)

    # What the actors do

    def submit(self, workspace: Workspace, body: bytes) -> str:
        name = store_shared(workspace.bucket, code_key, hashlib.sha256(body).hexdigest(), body)
        return self.write(workspace, CodeRecord(kind="bundle", sha256=name, bytes=len(body)))

    def write(self, workspace: Workspace, code: CodeRecord) -> str:
        spec = Spec(name="run", command="train")
        prepared = PreparedRun(spec=spec, code=code, who="ada", path="", secrets={}, store_keys={})
        return write_run(workspace, {}, prepared).run

    def prune(self, workspace: Workspace) -> None:
        self.pruner_type(workspace, min_age_s=CODE_AGE_S).prune(RetentionSpec(older_than_s=OLD_S))

    def _user(self, actor: Actor) -> None:
        rng, workspace = self.scheduler.rng, self.workspace_of(actor)
        while not self.calm:
            actor.sleep(rng.expovariate(1 / 12.0))
            try:
                known = list(self.witness.needs)
                if known and rng.random() < 0.3:
                    run = self.write(workspace, workspace.request(rng.choice(known)).code)
                else:
                    run = self.submit(workspace, rng.choice(_CODES))
                workspace.write_heartbeat(run, Heartbeat())
            except OutlastError:
                continue

    def _supervisor(self, actor: Actor) -> None:
        """End runs: the event, the record in the index, then the heartbeat and the wakeups."""
        rng, workspace = self.scheduler.rng, self.workspace_of(actor)
        while True:
            actor.sleep(rng.expovariate(1 / 4.0))
            try:
                for run in sorted({*workspace.heartbeats(), *workspace.wakeups()}):
                    if self.calm or rng.random() < 0.4:
                        self._end(workspace, run, actor)
            except OutlastError:
                continue

    def _end(self, workspace: Workspace, run: str, actor: Actor) -> None:
        story = workspace.story(run)
        if story.refresh().exists:
            story.append(Cancelled(who="ada", at=actor.time()), nonce=self.scheduler.id())
            EndedRuns(workspace).add(record_of(run, story.state))
        elif not self.calm or self.scheduler.now < self.calm_at + 120.0:
            return  # its submission may be under way
        for entry in workspace.bucket.list(f"wakeups/{run}/"):
            workspace.bucket.delete(entry.key)
        workspace.bucket.delete(f"heartbeats/{run}")

    def _pruner(self, actor: Actor) -> None:
        workspace = self.workspace_of(actor)
        while True:
            actor.sleep(self.scheduler.rng.expovariate(1 / (60.0 if self.calm else 6.0)))
            try:
                self.prune(workspace)
            except OutlastError:
                continue

    def _killer(self, actor: Actor) -> None:
        rng = self.scheduler.rng
        while not self.calm:
            actor.sleep(rng.expovariate(1 / 15.0))
            number = rng.randrange(len(self.actors))
            victim, work = self.actors[number]
            victim.kill()
            self._start(work, number=number)

    def _start(self, work: Callable[[Actor], None], *, number: int = -1) -> None:
        actor = Actor(self.scheduler, work.__name__, f"{work.__name__} {len(self.actors)}")
        actor.skew_s = self.scheduler.rng.uniform(-_SKEW_S, _SKEW_S)
        if number < 0:
            self.actors.append((actor, work))
        else:
            self.actors[number] = (actor, work)
        self.scheduler.spawn(actor, lambda: work(actor))

    # The whole world

    def run(self) -> str:
        """Return the invariant that broke; empty if all hold."""
        for work in [self._user] * 2 + [self._supervisor] + [self._pruner] * 2:
            self._start(work)
        killer = Actor(self.scheduler, "killer", "killer")
        self.scheduler.spawn(killer, lambda: self._killer(killer))
        try:
            storm_over = self.scheduler.now + STORM_S
            self.scheduler.run(lambda: self.scheduler.now >= storm_over, limit_s=STORM_S + 1)
            self.calm, self.calm_at, self.store.faults = True, self.scheduler.now, NONE
            calm_over = self.scheduler.now + CALM_S
            self.scheduler.run(lambda: self.scheduler.now >= calm_over, limit_s=CALM_S + 1)
            self._check_the_end()
        except AssertionError as problem:
            return str(problem) or repr(problem)
        return ""

    def _check_the_end(self) -> None:
        """Every run is old by now: all are deleted and on record, and no code is left except beside a dead mark."""
        store, witness = self.store, self.witness
        require(not witness.needs, "old_runs_are_deleted", f"left: {sorted(witness.needs)}")
        left = [key for key in store.keys("runs/") if key.split("/")[1] in witness.deleted]
        require(not left, "a_deletion_is_completed", f"left: {left}")
        abandoned = {
            name
            for key in store.keys("runs/")
            for name in msgspec.json.decode(store.objects[key][0], type=RunRequest).code.shared_keys
        }
        left = [key for key in store.keys("code/") if key not in abandoned]
        require(not left, "unreferenced_code_is_collected", f"left: {left}")
        listed = [key for key in store.keys("ended/loose/") if key.removesuffix(".json").split("-", 2)[2]]
        listed += [one["run"] for key in store.keys("ended/pages/") for one in json.loads(store.objects[key][0])]
        require(not listed, "deleted_runs_are_not_listed", f"listed: {listed}")


def simulate_retention(seed: int, *, kind: type[RetentionWorld] = RetentionWorld) -> str:
    """Simulate the world of one seed; return the invariant that broke, empty if all hold."""
    return kind(seed).run()
