"""Planted bugs: each breaks one promise in a typical way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from outlast.agent.attempt import AttemptWriter
from outlast.agent.checkpoint.commit import Committer
from outlast.agent.checkpoint.snapshot import FolderSnapshot
from outlast.clouds.cloud import Machine
from outlast.errors import Exists, NotFound, StoreUnreachable
from outlast.runs import events as ev
from outlast.runs.ended import EndedRuns, record_of
from outlast.runs.events import Event
from outlast.runs.manifest import Manifest, read_manifest, write_manifest
from outlast.runs.packs import upload_files
from outlast.runs.state import Checkpoint
from outlast.runs.story import Story, event_key
from outlast.store.parallel import one_by_one
from outlast.store.parts import Part, Parts, StoredFile
from outlast.supervisor.apply import Applier
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.observe import Watched
from outlast.supervisor.plan import plan
from outlast.supervisor.world import Bill, Finalize, Launch, PlaceAttempt, Release, Step, StopAtLimit, Wait, World
from outlast.testing.scheduler import Actor
from outlast.testing.simagent import SimAgent
from outlast.testing.simcloud import SimCloudView
from outlast.testing.simtraining import SimTraining
from outlast.testing.simulate import Simulation
from outlast.workspace import Workspace
from tests.simulation.story_bugs import IndexesLast, Overwriting, TrustingAgent, TrustsSnapshots


class RandomName(Workspace):
    def machine_name(self, run: str, attempt: int) -> str:
        return f"{run}-{self.ids()}"


class LaunchFirst(Applier):
    """Effect before intent."""

    def _placed(self, step: PlaceAttempt) -> Event:
        self.apply(Launch(run=step.run, attempt=step.attempt, offer=step.offer))
        return super()._placed(step)


class CarelessStory(Story):
    """Appends without a check."""

    def append(self, event: Event, *, nonce: str, new: bool = False) -> bool:
        event = msgspec.structs.replace(event, nonce=nonce)
        while True:
            self.refresh()
            try:
                self.bucket.create(event_key(self.run, self.length + 1), ev.encode(event))
            except Exists:
                continue
            return True


class UnfencedAttempt(AttemptWriter):
    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.story = CarelessStory(self.workspace.bucket, self.run)


class Unfenced(SimAgent):
    attempt_type = UnfencedAttempt


class CancelsWithoutLooking(Simulation):
    def _cancel(self, workspace: Workspace, run: str, actor: Actor) -> None:
        try:
            CarelessStory(workspace.bucket, run).append(ev.Cancelled(who="user"), nonce=self.scheduler.id())
            workspace.wake(run)
        except StoreUnreachable:
            pass


class BlindToStopped(SimCloudView):
    """Lists what runs, as the well-known tools do."""

    def machines(self, labels: object = None) -> Sequence[Machine]:
        return [m for m in super().machines(labels) if m.status in ("pending", "running")]  # type: ignore[arg-type]

    def machine(self, name: str) -> Machine:
        machine = super().machine(name)
        return machine if machine.status != "stopped" else msgspec.structs.replace(machine, status="running")


class ManifestFirstCommitter(Committer):
    """Says `Saved` before the bodies are there."""

    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        files = []
        for path in snapshot.paths:
            body = Path(self.folder, path).read_bytes()
            digest = hashlib.sha256(body).hexdigest()
            key = f"runs/{self.attempt.run}/parts/{self.attempt.number}/{digest}"
            files.append(StoredFile(path=path, parts=(Part(key, digest, len(body)),)))
        self._count += 1
        name = f"{self.attempt.number:04d}-{self._count:05d}"
        manifest = Manifest(
            run=self.attempt.run, checkpoint=name, attempt=self.attempt.number, files=tuple(files), step=None
        )
        write_manifest(self.attempt.workspace.bucket, manifest)
        self.attempt.saved(name, step=None, size=0)
        upload_files(self.parts, self.folder, snapshot.paths, each=one_by_one)
        self.committed = snapshot
        return True


class ManifestFirst(SimAgent):
    committer_type = ManifestFirstCommitter


class UnsettledParts(Parts):
    """Treats written parts as durable."""

    def make_durable(self) -> None:
        with self._lock:
            self._known |= self._fresh
            self._fresh = {}


class UnsettledCommitter(Committer):
    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        if not isinstance(self.parts, UnsettledParts):
            self.parts = UnsettledParts(self.attempt.workspace.bucket, self.attempt.run, self.attempt.number)
        return super().commit(snapshot, copy_first=copy_first)


class Unsettled(SimAgent):
    committer_type = UnsettledCommitter


class GreedyCommitter(Committer):
    """Deletes every checkpoint but the newest, and its parts by name alone."""

    def _prune(self, committed: str) -> None:
        bucket, run = self.attempt.workspace.bucket, self.attempt.run
        keep = read_manifest(bucket, run, self._newest().id).keys
        for entry in list(bucket.list(f"runs/{run}/parts/")):
            if entry.key not in keep:
                bucket.delete(entry.key)
                self.parts.forget(entry.key)

    def _newest(self) -> Checkpoint:
        return self.attempt.story.state.checkpoints[-1]


class Greedy(SimAgent):
    committer_type = GreedyCommitter


class ResumesFromWhatItFetchedFirst(SimAgent):
    """Does not look again after it has waited for its predecessor's last word."""

    looked = False

    def restore(self) -> Checkpoint | None:
        if self.looked:
            return self.resumed
        self.looked = True
        return super().restore()


class RollingBackCommitter(Committer):
    """No answer to `Saved`: it takes that for a failure, and tidies up."""

    def commit(self, snapshot: FolderSnapshot, *, copy_first: bool = False) -> bool:
        before = len(self.attempt.story.state.checkpoints)
        done = super().commit(snapshot, copy_first=copy_first)
        if not done and len(self.attempt.story.state.checkpoints) == before:
            bucket, run = self.attempt.workspace.bucket, self.attempt.run
            for entry in list(bucket.list(f"runs/{run}/parts/{self.attempt.number}/")):
                bucket.delete(entry.key)
                self.parts.forget(entry.key)
        return done


class LostAnswerIsFailure(SimAgent):
    committer_type = RollingBackCommitter

    def _persist(self, act: Callable[[], bool]) -> bool:
        try:
            return act()
        except StoreUnreachable:
            return False


class CostByTwoClocks(Applier):
    """From the cloud's time of creation to the supervisor's now."""

    def _ran_s(self, step: Release, bill: Bill, note: str) -> float:
        try:
            return max(0.0, self.clock() - self.clouds[step.cloud].machine(bill.machine).created_at)
        except NotFound:
            return 0.0

    def _release(self, step: Release) -> Event:
        return super()._release(msgspec.structs.replace(step, ran_s=0.0))


class NeverForgets(Applier):
    def _finalize(self, step: Finalize, watched: Watched) -> None:
        pass


class NoWakeup(Workspace):
    """A submission without a wakeup."""

    def wake(self, run: str, *, durable: bool = False) -> None:
        pass


class WaitsInSilence(Supervisor):
    """Does not record why a run waits."""

    def decide(self, world: World) -> tuple[Step, ...]:
        return tuple(step for step in plan(world) if not isinstance(step, Wait))


class CountsBillsAlone(Supervisor):
    """Counts only released machines as spend."""

    def decide(self, world: World) -> tuple[Step, ...]:
        billed = sum(view.state.cost_usd for view in world.runs)
        caps = {view.run: view.spec.limits.cost_usd or float("inf") for view in world.runs}
        shared = min((b.limits.cost_usd or float("inf") for b in world.budgets), default=float("inf"))
        steps = plan(world)
        if any(isinstance(step, StopAtLimit) and billed < min(caps[step.run], shared) for step in steps):
            steps = plan(self._without_limits(world))
        return steps

    def _without_limits(self, world: World) -> World:
        replace = msgspec.structs.replace
        runs = [
            replace(view, spec=replace(view.spec, limits=replace(view.spec.limits, cost_usd=0.0, deadline_s=0.0)))
            for view in world.runs
        ]
        return replace(world, runs=tuple(runs), budgets=())


class Forgetful(SimTraining):
    """Resumes at the right step, with the values of a fresh start."""

    def load(self) -> None:
        super().load()
        self.value = "begin"


class ForgetfulAgent(SimAgent):
    training_type = Forgetful


class NeverCollects(Applier):
    def _finalize(self, step: Finalize, watched: Watched) -> None:
        EndedRuns(self.workspace).add(record_of(step.run, watched.story.state))
        self.clouds[step.cloud].drop_secrets(self.workspace.secrets_name(step.run))
        self.workspace.bucket.delete(f"heartbeats/{step.run}")


def with_parts(**parts: type) -> type[Simulation]:
    return type("Bugged", (Simulation,), parts)


# The bug, what it is planted into, and the invariants that may be the first to see it.
BUGS: dict[str, tuple[type[Simulation], set[str]]] = {
    "machine names are drawn, not derived": (
        with_parts(workspace_type=RandomName),
        {"intent_before_effect", "one_machine_an_attempt"},
    ),
    "the launch comes before the intent": (with_parts(applier_type=LaunchFirst), {"intent_before_effect"}),
    "older attempts are not fenced": (
        with_parts(agent_type=Unfenced),
        {"every_run_ended", "at_most_one_attempt_commits", "a_run_ends_once", "progress_never_goes_back"},
    ),
    "a run can end twice": (
        CancelsWithoutLooking,
        {"a_run_ends_once"},
    ),
    "the listing is blind to stopped machines": (
        with_parts(cloud_view_type=BlindToStopped),
        {"every_machine_is_gone", "every_run_ended", "recorded_cost_is_actual_cost"},
    ),
    "a checkpoint is committed before its parts": (
        with_parts(agent_type=ManifestFirst),
        {"committed_checkpoints_are_complete"},
    ),
    "a checkpoint is committed before its parts are on disk": (
        with_parts(agent_type=Unsettled),
        {"committed_checkpoints_are_complete"},
    ),
    "old checkpoints are deleted too eagerly": (with_parts(agent_type=Greedy), {"newest_checkpoints_are_kept"}),
    "the successor resumes from what it fetched first": (
        with_parts(agent_type=ResumesFromWhatItFetchedFirst),
        {"progress_never_goes_back", "training_begins_with_the_newest_checkpoint"},
    ),
    "a lost response counts as a failure": (
        with_parts(agent_type=LostAnswerIsFailure),
        {"newest_checkpoints_are_kept", "progress_never_goes_back"},
    ),
    "the cost compares two clocks": (
        with_parts(applier_type=CostByTwoClocks),
        {"recorded_cost_is_actual_cost", "spend_stays_within_limits", "billed_seconds_are_actual_seconds"},
    ),
    "ended runs are not finalized": (
        with_parts(applier_type=NeverForgets),
        {"ended_runs_leave_nothing_behind", "a_world_at_rest_plans_nothing"},
    ),
    "a submission writes no wakeup": (with_parts(workspace_type=NoWakeup), {"every_run_ended"}),
    "a waiting run has no reason": (with_parts(supervisor_type=WaitsInSilence), {"waiting_runs_have_a_reason"}),
    "running machines do not count as spend": (
        with_parts(supervisor_type=CountsBillsAlone),
        {"spend_stays_within_limits"},
    ),
    "events are put, not created": (
        with_parts(workspace_type=Overwriting),
        {"story_is_append_only", "at_most_one_attempt_commits"},
    ),
    "a snapshot is trusted without the events after it": (
        with_parts(workspace_type=TrustsSnapshots, agent_type=TrustingAgent),
        {
            *("a_run_ends_once", "at_most_one_attempt_commits", "every_run_ended", "progress_never_goes_back"),
            *("no_living_machine_is_deleted", "a_living_attempt_is_not_released", "no_machine_is_wasted"),
            "a_run_fails_for_a_reason",
        },
    ),
    "an ended run is indexed after its heartbeat is gone": (
        with_parts(applier_type=IndexesLast),
        {"ended_runs_are_listed", "ended_runs_leave_nothing_behind"},
    ),
    "a trainer forgets what it had learned": (with_parts(agent_type=ForgetfulAgent), {"results_are_right"}),
    "what no checkpoint names is never collected": (
        with_parts(applier_type=NeverCollects),
        {"every_part_is_referenced"},
    ),
}
