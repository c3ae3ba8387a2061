"""Planted bugs in the handoff, accounting, limits, and the handling of damaged objects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from outlast.agent.attempt import AttemptWriter, Turn
from outlast.clouds.cloud import Machine
from outlast.clouds.traits import CloudTraits, traits_of
from outlast.errors import Damaged, Missing, NotFound
from outlast.runs import events as ev
from outlast.runs import retention, state
from outlast.runs.events import Event
from outlast.runs.manifest import manifest_key, read_keys
from outlast.runs.state import Checkpoint, RunState
from outlast.runs.story import Story, event_key
from outlast.spec.spec import CheckpointSpec
from outlast.store.bucket import Bucket
from outlast.store.parts import parts_prefix
from outlast.supervisor import apply, limits, plan
from outlast.supervisor.apply import Applier
from outlast.supervisor.observe import Observer
from outlast.supervisor.world import Bill, Release, RunView, World
from outlast.testing.simagent import SimAgent
from outlast.testing.simulate import Simulation, WorldResult
from outlast.workspace import Workspace
from tests.simulation.bugs import with_parts
from tests.simulation.conductor_bugs import DoesNotRestoreAgainAgent, ForgivingAgent


@contextmanager
def replaced(place: Any, name: str, value: object) -> Iterator[None]:
    """Replace a function of the product, and put it back."""
    original = place.__dict__[name]
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, original)


def with_patch(place: Any, name: str, value: object) -> type[Simulation]:
    """Return a world in which a function of the product is replaced."""

    class Patched(Simulation):
        def run(self) -> WorldResult:
            with replaced(place, name, value):
                return super().run()

    return Patched


# The handoff


class ImpatientAttempt(AttemptWriter):
    """Starts although its predecessor is still saving."""

    def turn(self) -> Turn:
        turn = super().turn()
        return "mine" if turn == "wait" else turn


class Impatient(SimAgent):
    attempt_type = ImpatientAttempt


class LocalDeadlineAttempt(AttemptWriter):
    """Compares the time of the notice, by its predecessor's clock, with its own clock."""

    def predecessor_deadline_passed(self) -> bool:
        waiting = [a for a in self.story.state.attempts[: self.number - 1] if a.phase != "over"]
        return all(self.clock() >= a.noticed_at + a.grace_s for a in waiting)


class LocalDeadline(SimAgent):
    attempt_type = LocalDeadlineAttempt


# Stored objects


def keep_as_few_as_asked(checkpoints: Sequence[Checkpoint], rule: CheckpointSpec) -> list[Checkpoint]:
    return list(checkpoints[-rule.keep :])


class UnsyncedBucket:
    """Creates objects without waiting for the disk."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def __getattr__(self, name: str) -> object:
        return getattr(self.bucket, name)

    def create(self, key: str, body: bytes) -> None:
        self.bucket.create(key, body, durable=False)


class UnsyncedEvents(Workspace):
    def story(self, run: str) -> Story:
        return Story(UnsyncedBucket(self.bucket), run, gap=self.snapshot_gap)  # type: ignore[arg-type]


def collect_everything(bucket: Bucket, run: str, state: RunState) -> int:
    """Takes the parts of a checkpoint whose manifest is damaged, and of all others, for garbage."""
    needed: set[str] = set()
    committed = {checkpoint.id for checkpoint in state.checkpoints}
    there = bucket.children(f"runs/{run}/checkpoints/")
    with suppress(Missing, Damaged):
        needed = {key for name in there if name in committed for key in read_keys(bucket, run, name)}
    unneeded = [entry.key for entry in bucket.list(parts_prefix(run)) if entry.key not in needed]
    unneeded += [manifest_key(run, name) for name in there if name not in committed]
    for key in unneeded:
        bucket.delete(key)
    return len(unneeded)


# Machines and money


def release_is_always_legal(state: RunState, event: ev.Released) -> str:
    if not 1 <= event.attempt <= len(state.attempts):
        return f"attempt {event.attempt} does not exist"
    return f"attempt {event.attempt} is released" if state.attempts[event.attempt - 1].released else ""


def ask_no_story(observer: Observer, machines: dict[str, Machine]) -> None:
    """Believes the stories that were read before the machines were listed."""


class DeletesUnnoted(Applier):
    """Deletes a machine before the seconds that it ran are noted."""

    def _ran_s(self, step: Release, bill: Bill, note: str) -> float:
        try:
            return bill.ran_s or self.clouds[step.cloud].machine(bill.machine).ran_s
        except NotFound:
            if not step.started_event:
                return 0.0
        head = self.workspace.bucket.head
        started, over = (head(event_key(step.run, n)).modified_at for n in (step.started_event, step.over_event))
        return max(0.0, over - started)


class DropsSecretsEarly(Applier):
    """Drops the secrets of a run with its first machine."""

    def _release(self, step: Release) -> Event:
        released = super()._release(step)
        self.clouds[step.cloud].drop_secrets(self.workspace.secrets_name(step.run))
        return released


# Limits


def short_silence(cloud: str) -> CloudTraits:
    return msgspec.structs.replace(traits_of(cloud), silence_s=1.0)


def one_crash_more(world: World, view: RunView) -> object:
    rules = view.spec.limits
    generous = msgspec.structs.replace(rules, crashes=rules.crashes + 1)
    return failure(world, msgspec.structs.replace(view, spec=msgspec.structs.replace(view.spec, limits=generous)))


def no_brake(world: World, view: RunView) -> object:
    rules = view.spec.limits
    generous = msgspec.structs.replace(rules, no_progress=rules.no_progress + 1)
    return failure(world, msgspec.structs.replace(view, spec=msgspec.structs.replace(view.spec, limits=generous)))


failure = limits.failure

# The bug, the world that it is planted into, and the invariants that may be the first to see it. The first ten survived
# every test before there were worlds with damage, with secrets, and with notices alone.
SUBTLE: dict[str, tuple[type[Simulation], set[str]]] = {
    "the successor does not wait for its predecessor's last word": (
        with_parts(agent_type=Impatient),
        {"a_handoff_loses_nothing", "progress_never_goes_back"},
    ),
    "the deadline of a handoff is read from the local clock": (
        with_parts(agent_type=LocalDeadline),
        {"a_handoff_loses_nothing", "progress_never_goes_back"},
    ),
    "keep = 1 keeps one": (with_patch(retention, "kept", keep_as_few_as_asked), {"newest_checkpoints_are_kept"}),
    "events are created without fsync": (with_parts(workspace_type=UnsyncedEvents), {"events_are_durable"}),
    "a damaged manifest makes garbage of all parts": (
        with_patch(apply, "collect", collect_everything),
        {"newest_checkpoints_are_kept"},
    ),
    "a living attempt can be released": (
        with_patch(state, "_illegal_release", release_is_always_legal),
        {"a_living_attempt_is_not_released"},
    ),
    "orphans are deleted by a stale story": (
        with_patch(Observer, "_read_owners", ask_no_story),
        {"no_living_machine_is_deleted"},
    ),
    "a run is finished although its outputs were not copied": (
        with_parts(agent_type=ForgivingAgent),
        {"results_are_right"},
    ),
    "a machine is deleted before its seconds are noted": (
        with_parts(applier_type=DeletesUnnoted),
        {"billed_seconds_are_actual_seconds", "recorded_cost_is_actual_cost"},
    ),
    "the agent does not restore again after `Started`": (
        with_parts(agent_type=DoesNotRestoreAgainAgent),
        {"training_begins_with_the_newest_checkpoint"},
    ),
    "secrets stay after the end": (
        with_patch(apply, "drop_secrets", lambda *_: None),
        {"ended_runs_leave_nothing_behind"},
    ),
    "secrets go with the first machine": (with_parts(applier_type=DropsSecretsEarly), {"a_live_run_has_its_secrets"}),
    "healthy machines are given up": (with_patch(plan, "traits_of", short_silence), {"no_machine_is_wasted"}),
    "one crash more than allowed": (with_patch(plan, "failure", one_crash_more), {"no_attempt_follows_the_last_one"}),
    "one attempt without progress more than allowed": (
        with_patch(plan, "failure", no_brake),
        {"no_attempt_follows_the_last_one"},
    ),
    "the limit of machines is not kept": (
        with_patch(plan, "machine_limit", lambda _view, _shared: None),
        {"the_machine_limit_is_kept"},
    ),
}
