"""What is always true (design §2), each as a function with a name, judged by a witness that shares no code with the
story's own rules. Told of every change before anybody else acts."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN
from outlast.testing.simcloud import SimCloud, SimMachine
from outlast.testing.store import SimStore

_ENDS = ("finished", "failed", "cancelled")
_OF_AGENTS = ("started", "saved", "noticed", "stopped", "finished")


class Broken(AssertionError):
    """An invariant does not hold; the message names it."""


def demand(condition: bool, invariant: str, what: str) -> None:
    if not condition:
        raise Broken(f"{invariant}: {what}")


class RunRecord:
    """One run's story, as raw data in the order in which it was written."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.events: list[dict[str, Any]] = []

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def ended(self) -> bool:
        return any(event["event"] in _ENDS for event in self.events)


class Witness:
    """Watches store and cloud, and knows what must never happen."""

    def __init__(self, store: SimStore, cloud: SimCloud) -> None:
        self.store = store
        self.cloud = cloud
        self.runs: dict[str, RunRecord] = {}
        store.changed = self.saw_change
        cloud.created = self.saw_machine

    def saw_change(self, key: str, body: bytes | None) -> None:
        parts = key.split("/")
        if parts[0] == "runs" and len(parts) == 4 and parts[2] == "story":
            story_is_append_only(self.runs, parts[1], parts[3], body)
            assert body is not None
            record = self.runs.setdefault(parts[1], RunRecord(parts[1]))
            event = json.loads(body)
            at_most_one_attempt_commits(record, event)
            a_run_ends_once(record, event)
            committed_checkpoints_are_whole(self.store, record, event)
            progress_never_goes_back(record, event)
            record.events.append(event)
        elif body is None and parts[0] == "runs" and len(parts) > 2 and parts[2] in ("parts", "checkpoints"):
            newest_checkpoints_are_kept(self.store, self.runs.get(parts[1]), key)

    def saw_machine(self, machine: SimMachine) -> None:
        intent_before_effect(self.runs, machine)
        one_machine_an_attempt(self.cloud, machine)


def story_is_append_only(runs: dict[str, RunRecord], run: str, name: str, body: bytes | None) -> None:
    """Event 17 is created once, after event 16, and never changed or removed."""
    expected = len(runs[run].events) + 1 if run in runs else 1
    demand(body is not None, "story_is_append_only", f"{run}/{name} was deleted")
    demand(name == f"{expected:08d}.json", "story_is_append_only", f"{run}/{name} came when {expected} was due")


def at_most_one_attempt_commits(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 1: once a later attempt has started, or this one was given up, nothing of it may be written."""
    if event["event"] not in _OF_AGENTS:
        return
    number = event["attempt"]
    for before in record.events:
        kind = before["event"]
        fenced = (kind == "started" and before["attempt"] > number) or (
            kind in ("lost", "stopped", "finished", "refused") and before["attempt"] == number
        )
        what = f"{record.run}: {event['event']}({number}) after {kind}({before.get('attempt')})"
        demand(not fenced, "at_most_one_attempt_commits", what)
    what = f"{record.run}: attempt {number} started twice"
    starts = [e for e in record.of("started") if e["attempt"] == number]
    demand(event["event"] != "started" or not starts, "at_most_one_attempt_commits", what)


def intent_before_effect(runs: dict[str, RunRecord], machine: SimMachine) -> None:
    """Invariant 2: a machine is made only after its story says so, under the name that the story gave it."""
    labels = machine.facts.labels
    record = runs.get(labels.get(LABEL_RUN, ""))
    placed = record.of("placed") if record else []
    known = any(
        str(event["attempt"]) == labels.get(LABEL_ATTEMPT) and event["machine"] == machine.facts.name
        for event in placed
    )
    demand(known, "intent_before_effect", f"no story knows {machine.facts.name}")


def one_machine_an_attempt(cloud: SimCloud, machine: SimMachine) -> None:
    """Invariant 2: a repeated launch finds the first machine instead of doubling it."""
    mine = (machine.facts.labels[LABEL_RUN], machine.facts.labels[LABEL_ATTEMPT])
    twins = [
        other.facts.name
        for other in cloud.alive()
        if other is not machine and (other.facts.labels[LABEL_RUN], other.facts.labels[LABEL_ATTEMPT]) == mine
    ]
    demand(not twins, "one_machine_an_attempt", f"{machine.facts.name} doubles {twins}")


def manifest_problem(store: SimStore, run: str, checkpoint: str) -> str:
    """Why a checkpoint is not whole; empty if it is."""
    found = store.objects.get(f"runs/{run}/checkpoints/{checkpoint}/manifest.json")
    if found is None:
        return "its manifest is not there"
    for part in (part for file in json.loads(found[0])["files"] for part in file["parts"]):
        key, digest = part["key"], part["sha256"]
        body = store.objects.get(key)
        if body is None:
            return f"{key} is not there"
        if key in store.unsettled:
            return f"{key} would not survive a power cut"
        if hashlib.sha256(body[0]).hexdigest() != digest:
            return f"{key} is not what the manifest says"
    return ""


def committed_checkpoints_are_whole(store: SimStore, record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 3: what `Saved` names is there, all of it."""
    if event["event"] == "saved":
        problem = manifest_problem(store, record.run, event["checkpoint"])
        demand(not problem, "committed_checkpoints_are_whole", f"{record.run} {event['checkpoint']}: {problem}")


def newest_checkpoints_are_kept(store: SimStore, record: RunRecord | None, key: str) -> None:
    """Invariant 3: what is deleted is not needed by the newest two checkpoints."""
    for saved in record.of("saved")[-2:] if record else ():
        problem = manifest_problem(store, record.run if record else "", saved["checkpoint"])
        demand(not problem, "newest_checkpoints_are_kept", f"{key} was deleted; {saved['checkpoint']}: {problem}")


def progress_never_goes_back(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 3: an attempt resumes from the newest committed checkpoint. Only one whose predecessor has not said its
    last word may be overtaken by a commit of that, and looks again when it has started."""
    if event["event"] != "started":
        return
    saves = record.of("saved")
    newest = saves[-1]["checkpoint"] if saves else ""
    if saves and not _is_over(record, saves[-1]["attempt"]):
        return
    what = f"{record.run}: attempt {event['attempt']} resumed from {event['resumed_from']!r}, newest is {newest!r}"
    demand(event["resumed_from"] == newest, "progress_never_goes_back", what)


def _is_over(record: RunRecord, attempt: int) -> bool:
    """Could it commit nothing more?"""
    last_words = ("stopped", "lost", "finished")
    return any(
        (event["event"] in last_words and event["attempt"] == attempt)
        or (event["event"] == "started" and event["attempt"] > attempt)
        for event in record.events
    )


def a_run_ends_once(record: RunRecord, event: dict[str, Any]) -> None:
    """Invariant 5: finished, failed or cancelled, and then nothing but the release of machines."""
    if record.ended:
        demand(event["event"] == "released", "a_run_ends_once", f"{record.run}: {event['event']} after the end")


# At the end, when the faults have stopped


def every_run_ended(witness: Witness) -> None:
    for record in witness.runs.values():
        demand(record.ended, "every_run_ended", f"{record.run} did not end: {[e['event'] for e in record.events[-5:]]}")


def every_machine_is_gone(cloud: SimCloud) -> None:
    """Invariant 4: running, stopped or half created, whatever is nobody's is deleted."""
    left = [f"{machine.facts.name} ({machine.facts.status})" for machine in cloud.alive()]
    demand(not left, "every_machine_is_gone", f"left: {left}")


def nothing_is_remembered_of_the_dead(store: SimStore) -> None:
    """A run that is over has no pulse, no bell, and no secrets."""
    left = store.keys("pulse/") + store.keys("bell/")
    demand(not left, "nothing_is_remembered_of_the_dead", f"left: {left}")


def what_is_stored_is_named(store: SimStore, witness: Witness) -> None:
    """Nothing is paid for that no committed checkpoint names, but what a zombie wrote after all was over."""
    for record in witness.runs.values():
        prefix = f"runs/{record.run}/"
        manifests = {f"{prefix}checkpoints/{saved['checkpoint']}/manifest.json" for saved in record.of("saved")}
        there = [json.loads(store.objects[key][0]) for key in manifests if key in store.objects]
        named = {part["key"] for manifest in there for file in manifest["files"] for part in file["parts"]}
        left = [key for key in store.keys(f"{prefix}parts/") if key not in named]
        left += [key for key in store.keys(f"{prefix}checkpoints/") if key not in manifests]
        over_at = max(store.objects[key][1] for key in store.keys(f"{prefix}story/"))
        left = [key for key in left if store.objects[key][1] <= over_at]
        demand(not left, "what_is_stored_is_named", f"left: {left}")


def results_are_right(store: SimStore, witness: Witness, expected: dict[str, str]) -> None:
    """No step was lost and none was doubled: the chain of hashes is the undisturbed one."""
    for record in witness.runs.values():
        for event in record.of("finished"):
            key = f"runs/{record.run}/outputs/{event['attempt']}/result"
            found = store.objects.get(key, (b"nothing", 0.0))[0].decode()
            demand(found == expected[record.run], "results_are_right", f"{record.run}: {found}")


def cost_counted_is_cost_caused(cloud: SimCloud, witness: Witness, now: float, *, lag_s: float) -> None:
    """What the stories say was paid for is what existed, give or take the time it takes to notice an end."""
    for record in witness.runs.values():
        counted = sum(event["cost_usd"] for event in record.of("released"))
        mine = [m for m in cloud.history if m.facts.labels[LABEL_RUN] == record.run]
        caused = sum(m.billed_s(now) * m.facts.price_usd_per_hour / 3600.0 for m in mine)
        slack = sum(lag_s * m.facts.price_usd_per_hour / 3600.0 for m in mine) + 1e-9
        what = f"{record.run}: counted {counted:.5f}, caused {caused:.5f}, allowed ±{slack:.5f}"
        demand(abs(counted - caused) <= slack, "cost_counted_is_cost_caused", what)


def spend_stays_within_the_cap(cloud: SimCloud, witness: Witness, now: float, *, lag_s: float) -> None:
    """Each run, and all of them together, cost no more than they may, but for what the machines that live at a time
    cost until somebody notices."""
    spec = {run: json.loads(witness.store.objects[f"runs/{run}/spec.json"][0])["spec"] for run in witness.runs}
    for run in witness.runs:
        mine = [m for m in cloud.history if m.facts.labels[LABEL_RUN] == run]
        _within(run, spec[run]["limits"]["cost_usd"], mine, now, lag_s)
    shared = witness.store.objects.get("limits/workspace.json")
    if shared is not None:
        _within("all runs", json.loads(shared[0]).get("cost_usd", 0.0), cloud.history, now, lag_s)


def _within(who: str, cap_usd: float, machines: list[SimMachine], now: float, lag_s: float) -> None:
    if not cap_usd or not machines:
        return
    caused = sum(m.billed_s(now) * m.facts.price_usd_per_hour / 3600.0 for m in machines)
    spans = [(m.facts.created_at, m.facts.created_at + m.billed_s(now)) for m in machines]
    peak = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    price = max(m.facts.price_usd_per_hour for m in machines)
    allowed = cap_usd + max(1, peak) * price * lag_s / 3600.0
    what = f"{who}: ${caused:.5f} of ${cap_usd:.5f}; with {peak} machines at a time ${allowed:.5f} can be"
    demand(caused <= allowed, "spend_stays_within_the_cap", what)


def whoever_waits_says_why(states: dict[str, Any]) -> None:
    """Invariant 6: a live run for which a supervisor finds nothing to do has an attempt under way, or says why not."""
    for run, state in states.items():
        idle = state.alive and (state.last is None or state.last.phase == "over")
        demand(not idle or bool(state.held), "whoever_waits_says_why", f"{run} waits and does not say why")
