"""The invariants that always hold, one function each, checked by a witness that shares no code with the product.

The witness sees every change before any actor continues. `invariants_at_rest` has the invariants at the end.
docs/guarantees.md lists the promises.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN
from outlast.testing.run_record import RunRecord, is_readable, require
from outlast.testing.scheduler import Actor
from outlast.testing.sim_store import SimStore
from outlast.testing.simcloud import SimCloud, SimMachine, machines_of

_OF_AGENTS = ("started", "saved", "noticed", "stopped", "finished")


class Witness:
    """Observes store and cloud, and checks the invariants at every change."""

    def __init__(self, store: SimStore, cloud: SimCloud) -> None:
        self.store = store
        self.cloud = cloud
        self.runs: dict[str, RunRecord] = {}
        # The events of all runs in the order of their writes.
        self.timeline: list[tuple[str, dict[str, Any]]] = []
        # The begin of each supervisor's round, and of the round in which each effect in flight was planned: effects act
        # on that view.
        self.rounds: dict[Actor, float] = {}
        self.views: dict[object, float] = {}
        # Machines deleted by supervisors → the age of the oldest view at that time.
        self.view_age_s: dict[str, float] = {}
        # Further checks of each event, before it is added to its record.
        self.extra: Callable[[RunRecord, dict[str, Any]], None] = lambda _record, _event: None
        self._specs: dict[str, dict[str, Any]] = {}
        store.changed = self.saw_change
        cloud.created = self.saw_machine
        cloud.deleting = self.saw_deletion
        cloud.began = self.saw_training
        cloud.worked = self.saw_work

    def saw_change(self, key: str, body: bytes | None) -> None:
        parts = key.split("/")
        if parts[0] == "runs" and len(parts) == 4 and parts[2] == "story":
            if key in self.store.lost:
                return  # a lost event: a writer that has not read it takes the gap for the end
            story_is_append_only(self.runs, parts[1], parts[3], body)
            assert body is not None
            record = self.runs.setdefault(parts[1], RunRecord(parts[1], self._specs[parts[1]]))
            event = {**json.loads(body), "stored_at": self.cloud.scheduler.now}
            events_are_durable(self.store, key)
            at_most_one_attempt_commits(record, event)
            a_run_ends_once(record, event)
            committed_checkpoints_are_complete(self.store, record, event)
            progress_never_goes_back(self.store, record, event)
            a_living_attempt_is_not_released(record, event)
            a_run_fails_for_a_reason(record, event, self.cloud)
            no_attempt_follows_the_last_one(record, event)
            self.extra(record, event)
            record.events.append(event)
            self.timeline.append((parts[1], event))
        elif parts[0] == "runs" and parts[2:] == ["spec.json"] and body is not None:
            self._specs[parts[1]] = json.loads(body)["spec"]
        elif body is None and parts[0] == "runs" and len(parts) > 2 and parts[2] in ("parts", "checkpoints"):
            newest_checkpoints_are_kept(self.store, self.runs.get(parts[1]), key)

    def saw_machine(self, machine: SimMachine) -> None:
        intent_before_effect(self.runs, machine)
        one_machine_an_attempt(self.cloud, machine)

    def saw_deletion(self, machine: SimMachine, actor: Actor) -> None:
        if actor.kind == "supervisor":
            no_living_machine_is_deleted(self.store, self.runs, machine)
            now = self.cloud.scheduler.now
            self.view_age_s[machine.facts.name] = now - min([*self.rounds.values(), *self.views.values()], default=now)

    def saw_training(self, run: str, attempt: int, checkpoint: str) -> None:
        training_begins_with_the_newest_checkpoint(self.store, self.runs[run], attempt, checkpoint)
        a_live_run_has_its_secrets(self.store, self.cloud, self.runs[run])

    def saw_work(self, run: str) -> None:
        self.runs[run].work += 1


def story_is_append_only(runs: dict[str, RunRecord], run: str, name: str, body: bytes | None) -> None:
    """Events are created in order, once, and never changed or removed."""
    expected = len(runs[run].events) + 1 if run in runs else 1
    require(body is not None, "story_is_append_only", f"{run}/{name} was deleted")
    require(
        name == f"{expected:08d}.json", "story_is_append_only", f"{run}/{name} was written when {expected} was expected"
    )


def at_most_one_attempt_commits(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 1: once a later attempt has started, or this one was given up, it appends nothing."""
    if event["event"] not in _OF_AGENTS:
        return
    number = event["attempt"]
    for before in record.events:
        kind = before["event"]
        fenced = (kind == "started" and before["attempt"] > number) or (
            kind in ("lost", "stopped", "finished", "launch_refused") and before["attempt"] == number
        )
        what = f"{record.run}: {event['event']}({number}) after {kind}({before.get('attempt')})"
        require(not fenced, "at_most_one_attempt_commits", what)
    what = f"{record.run}: attempt {number} started twice"
    starts = [e for e in record.of("started") if e["attempt"] == number]
    require(event["event"] != "started" or not starts, "at_most_one_attempt_commits", what)


def intent_before_effect(runs: dict[str, RunRecord], machine: SimMachine) -> None:
    """Invariant 2: a machine is created only after `Placed`, under the name in that event."""
    labels = machine.facts.labels
    record = runs.get(labels.get(LABEL_RUN, ""))
    placed = record.of("placed") if record else []
    known = any(
        str(event["attempt"]) == labels.get(LABEL_ATTEMPT) and machine.facts.name in machines_of(event)
        for event in placed
    )
    require(known, "intent_before_effect", f"no story mentions {machine.facts.name}")


def one_machine_an_attempt(cloud: SimCloud, machine: SimMachine) -> None:
    """Invariant 2: a repeated launch finds the first machine."""
    mine = _seat_of(machine)
    twins = [other.facts.name for other in cloud.alive() if other is not machine and _seat_of(other) == mine]
    require(not twins, "one_machine_an_attempt", f"{machine.facts.name} duplicates {twins}")


def _seat_of(machine: SimMachine) -> tuple[str, str, str]:
    labels, name = machine.facts.labels, machine.facts.name if "outlast-nodes" in machine.boot.metadata else ""
    return labels.get(LABEL_RUN, ""), labels.get(LABEL_ATTEMPT, ""), name


def manifest_problem(store: SimStore, run: str, checkpoint: str) -> str:
    """Return why a checkpoint is incomplete; empty if it is complete. Damage by a fault does not count."""
    manifest = f"runs/{run}/checkpoints/{checkpoint}/manifest.json"
    found = store.objects.get(manifest)
    if manifest in store.damaged:
        return ""
    if found is None:
        return "its manifest is missing"
    for part in parts_of(json.loads(found[0])):
        key, digest = part["key"], part["sha256"]
        if key in store.damaged:
            continue  # damaged by a fault
        body = store.objects.get(key)
        if body is None:
            return f"{key} is missing"
        if key in store.not_durable:
            return f"{key} would not survive a power cut"
        if hashlib.sha256(body[0]).hexdigest() != digest:
            return f"{key} differs from its hash in the manifest"
    return ""


def parts_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all parts of a manifest: of files, packs, and a separate list of files."""
    of_files = [part for file in manifest["files"] for part in file["parts"]]
    return [*of_files, *manifest.get("packs", []), *manifest.get("table", [])]


def committed_checkpoints_are_complete(store: SimStore, record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 3: the checkpoint of a `Saved` event is complete."""
    if event["event"] == "saved":
        problem = manifest_problem(store, record.run, event["checkpoint"])
        require(not problem, "committed_checkpoints_are_complete", f"{record.run} {event['checkpoint']}: {problem}")


def newest_checkpoints_are_kept(store: SimStore, record: RunRecord | None, key: str) -> None:
    """Invariant 3: deletions never affect the newest two checkpoints."""
    for saved in record.of("saved")[-2:] if record else ():
        problem = manifest_problem(store, record.run if record else "", saved["checkpoint"])
        require(not problem, "newest_checkpoints_are_kept", f"{key} was deleted; {saved['checkpoint']}: {problem}")


def is_intact(store: SimStore, run: str, checkpoint: str) -> bool:
    """Return whether no fault has damaged the checkpoint, and no process has begun to delete it."""
    manifest = f"runs/{run}/checkpoints/{checkpoint}/manifest.json"
    if manifest in store.damaged or manifest not in store.objects:
        return False
    keys = [part["key"] for part in parts_of(json.loads(store.objects[manifest][0]))]
    return all(key in store.objects and key not in store.damaged for key in keys)


def _allowed_origins(store: SimStore, record: RunRecord) -> list[str]:
    """Return the checkpoints from which an attempt may resume: all down to the newest intact one.

    Without damage that is exactly the newest.
    """
    found: list[str] = []
    for saved in reversed(record.of("saved")):
        found.append(saved["checkpoint"])
        if not store.damaged or is_intact(store, record.run, saved["checkpoint"]):
            return found
    return [*found, ""]


def progress_never_goes_back(store: SimStore, record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 3: an attempt resumes from the newest complete checkpoint.

    A predecessor that is not over, or commits after its deadline, may add a newer one; then the attempt restores again
    after `Started`.
    """
    if event["event"] != "started":
        return
    saves = record.of("saved")
    if saves and (not _is_over(record, saves[-1]["attempt"]) or _came_late(record, saves[-1])):
        return
    allowed = _allowed_origins(store, record)
    what = f"{record.run}: attempt {event['attempt']} resumed from {event['resumed_from']!r}, allowed are {allowed}"
    require(event["resumed_from"] in allowed, "progress_never_goes_back", what)


def training_begins_with_the_newest_checkpoint(
    store: SimStore, record: RunRecord, attempt: int, checkpoint: str
) -> None:
    """Invariant 3: after `Started` no older attempt can commit, so training begins with the newest checkpoint."""
    if not _is_over(record, attempt):
        allowed = _allowed_origins(store, record)
        what = f"{record.run}: attempt {attempt} trains from {checkpoint!r}, allowed are {allowed}"
        require(checkpoint in allowed, "training_begins_with_the_newest_checkpoint", what)


def _came_late(record: RunRecord, saved: dict[str, Any]) -> bool:
    """Return whether a checkpoint was committed after the grace of its attempt, so its successor did not wait."""
    notices = [event for event in record.of("noticed") if event["attempt"] == saved["attempt"]]
    return bool(notices) and saved["stored_at"] > notices[0]["stored_at"] + notices[0]["grace_s"]


def _is_over(record: RunRecord, attempt: int) -> bool:
    """Return whether an attempt can no longer commit."""
    final = ("stopped", "lost", "finished", "launch_refused")
    return any(
        (event["event"] in final and event["attempt"] == attempt)
        or (event["event"] == "started" and event["attempt"] > attempt)
        for event in record.events
    )


def a_run_ends_once(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 5: a run ends once; only releases of machines follow."""
    if record.ended:
        require(event["event"] == "released", "a_run_ends_once", f"{record.run}: {event['event']} after the end")


def events_are_durable(store: SimStore, key: str) -> None:
    """Invariant 1: an appended event survives a power cut."""
    require(key not in store.not_durable, "events_are_durable", f"{key} would not survive a power cut")


def a_living_attempt_is_not_released(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 4: `Released` is appended once, after the end of the attempt."""
    if event["event"] != "released":
        return
    number = event["attempt"]
    what = f"{record.run}: attempt {number}"
    over = record.ended or _is_over(record, number)
    require(over, "a_living_attempt_is_not_released", f"{what} was released alive")
    again = any(before["attempt"] == number for before in record.of("released"))
    require(not again, "a_living_attempt_is_not_released", f"{what} was released twice")


def no_living_machine_is_deleted(store: SimStore, runs: dict[str, RunRecord], machine: SimMachine) -> None:
    """Invariant 4: a supervisor deletes a machine only when its attempt is over."""
    record = runs.get(machine.facts.labels[LABEL_RUN])
    if record is not None and not is_readable(store, record.run):
        return  # readers see a damaged story
    name = machine.facts.name
    over = (
        record is None
        or record.ended
        or all(_is_over(record, event["attempt"]) for event in record.of("placed") if name in machines_of(event))
    )
    require(over, "no_living_machine_is_deleted", f"{machine.facts.name} was deleted while its attempt was active")


def a_live_run_has_its_secrets(store: SimStore, cloud: SimCloud, record: RunRecord) -> None:
    """Invariant 5: a live run has its secrets."""
    if record.spec["secrets"] and not record.ended:
        workspace = json.loads(store.objects["workspace.json"][0])["id"]
        found = cloud.secrets.get(f"outlast-{workspace}-{record.run}", {})
        require(
            found.keys() >= record.spec["secrets"].keys(), "a_live_run_has_its_secrets", f"{record.run} has {found}"
        )


_CRASHES = ("crashed", "killed", "hung", "broken")


def _crashed(record: RunRecord) -> int:
    return sum(event["outcome"] in _CRASHES for event in record.of("stopped"))


def _without_progress(record: RunRecord) -> int:
    """Count the last attempts in a row that are over and saved nothing."""
    count = 0
    refused = {event["attempt"] for event in record.of("launch_refused")}
    saved = {event["attempt"] for event in record.of("saved")}
    for placed in reversed(record.of("placed")):
        if placed["attempt"] in saved:
            break
        count += placed["attempt"] not in refused and _is_over(record, placed["attempt"])
    return count


def a_run_fails_for_a_reason(record: RunRecord, event: dict[str, Any], cloud: SimCloud) -> None:
    """Invariant 5: a run fails only after too many crashes or attempts without progress, at a limit, or when its cloud
    refuses it permanently; the event states the reason."""
    if event["event"] != "failed":
        return
    limits = record.spec["limits"]
    crashed, idle = _crashed(record), _without_progress(record)
    explained = (
        crashed >= limits["crashes"]
        or idle >= limits["no_progress"]
        or record.of("limit_reached")
        or bool(cloud.denied)
    )
    what = f"{record.run} failed after {crashed} crashes and {idle} attempts without progress: {event['why']!r}"
    require(bool(explained) and bool(event["why"]), "a_run_fails_for_a_reason", what)


def _ended_after(record: RunRecord, attempt: int) -> set[int]:
    """Return the attempts whose end was written after the end of this one."""
    ends = [e["attempt"] for e in record.events if e["event"] in ("launch_refused", "lost", "stopped")]
    return set(ends[ends.index(attempt) + 1 :]) if attempt in ends else set()


def no_attempt_follows_the_last_one(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 5: no attempt is placed after the last allowed crash or attempt without progress.

    The exception is a successor placed at a notice, before its predecessor's end.
    """
    placed = record.of("placed")
    if event["event"] != "placed" or not placed:
        return
    last, limits = placed[-1]["attempt"], record.spec["limits"]
    noticed = {notice["attempt"] for notice in record.of("noticed")}
    if last in noticed or _ended_after(record, last) & noticed:
        return
    crashed, idle = _crashed(record), _without_progress(record)
    what = f"{record.run}: attempt {event['attempt']} after {crashed} crashes and {idle} attempts without progress"
    ends = [e for e in record.of("lost") + record.of("stopped") if e["attempt"] == last]
    preempted = any(e.get("preempted") or e.get("outcome") == "preempted" for e in ends)
    require(crashed < limits["crashes"] or preempted, "no_attempt_follows_the_last_one", what)
    require(idle < limits["no_progress"], "no_attempt_follows_the_last_one", what)


def waiting_runs_have_a_reason(states: dict[str, Any]) -> None:
    """Invariant 6: a live run without steps to apply has an active attempt, or a reason in its story."""
    for run, state in states.items():
        idle = state.alive and (state.last is None or state.last.phase == "over")
        require(
            not idle or bool(state.waiting) or state.limit is not None,
            "waiting_runs_have_a_reason",
            f"{run} waits without a reason",
        )
