"""The invariants of distributed runs: complete checkpoints, one machine for each rank, no vain waits."""

from __future__ import annotations

import json
from typing import Any

from outlast.clouds.traits import BUILT_IN, DEFAULT_CLOUD
from outlast.testing.invariants import Witness
from outlast.testing.run_record import RunRecord, is_readable, require
from outlast.testing.sim_store import SimStore
from outlast.testing.simcloud import SimCloud, machines_of
from outlast.testing.simgang import chain_of

# The longest silence that a supervisor measures before it gives up a machine.
SILENCE_S = BUILT_IN[DEFAULT_CLOUD].boot_s


def check_event(store: SimStore, cloud: SimCloud, record: RunRecord, event: dict[str, Any]) -> None:
    """Check one event of a distributed run, before it is added to its record."""
    if record.nodes == 1:
        return
    if event["event"] == "saved":
        a_joint_checkpoint_is_complete(store, record, event)
    if event["event"] == "started":
        parts_are_resumed_by_as_many(record, event)
    if event["event"] == "placed":
        all_machines_are_in_one_zone(cloud, record, event)
        survivors_are_not_doubled(cloud, record, event)
    if event["event"] in ("started", "saved", "stopped", "finished"):
        only_the_leader_writes(record, event)


def only_the_leader_writes(record: RunRecord, event: dict[str, Any]) -> None:
    """Only the machine with rank 0 appends start, checkpoints and end."""
    right = event["by"] == f"attempt {event['attempt']}"
    require(right, "only_the_leader_writes", f"{record.run}: {event['event']} by {event['by']}")


def a_joint_checkpoint_is_complete(store: SimStore, record: RunRecord, event: dict[str, Any]) -> None:
    """A committed checkpoint has the files of every rank that writes some, of one step, with the right content."""
    key = f"runs/{record.run}/checkpoints/{event['checkpoint']}/manifest.json"
    if key in store.damaged:
        return
    manifest, layout = json.loads(store.objects[key][0]), str(record.spec["params"]["layout"])
    own = layout in ("shards", "same")
    steps: dict[int, int] = {}
    for file in manifest["files"]:
        name = file["path"].rpartition("/")[2]
        if not name.startswith("state") or file["parts"][0]["key"] in store.damaged:
            continue
        rank = file["node"] if layout != "shards" else int(name.partition("-")[2])
        at = file["at"]
        body = store.objects[file["parts"][0]["key"]][0]
        state = json.loads(body[at : at + file["size"]] if file["size"] is not None else body)
        steps[rank] = max(steps.get(rank, -1), state["step"])
        what = f"{record.run} {event['checkpoint']}: {file['path']} has another state than rank {rank}"
        right = state["value"] == chain_of(state["step"], rank if own else 0, layout)
        require(right, "a_joint_checkpoint_is_complete", what)
    if any(key.startswith(f"runs/{record.run}/parts/") for key in store.damaged):
        return
    expected = set(range(record.nodes_of(event["attempt"]))) if own else {0}
    what = f"{record.run} {event['checkpoint']} ({layout}): steps by rank {steps}"
    require(steps.keys() >= expected, "a_joint_checkpoint_is_complete", what)
    require(len({steps[rank] for rank in expected}) == 1, "a_joint_checkpoint_is_complete", what)


def parts_are_resumed_by_as_many(record: RunRecord, event: dict[str, Any]) -> None:
    """A checkpoint of parts is resumed with the number of machines that saved it."""
    saved = [one for one in record.of("saved") if one["checkpoint"] == event["resumed_from"]]
    if saved and str(record.spec["params"]["layout"]) in ("shards", "same"):
        before, now = record.nodes_of(saved[0]["attempt"]), record.nodes_of(event["attempt"])
        what = f"{record.run}: {event['resumed_from']} of {before} machines resumed by {now}"
        require(before == now, "parts_are_resumed_by_as_many", what)


def all_machines_are_in_one_zone(cloud: SimCloud, record: RunRecord, event: dict[str, Any]) -> None:
    """All machines of an attempt are in one zone, each is there once, and they are as many as the run needs."""
    names = machines_of(event)
    what = f"{record.run}: attempt {event['attempt']} in {event['zone']} with {names}"
    right = len(set(names)) == len(names) and record.nodes_least <= len(names) <= record.nodes
    require(right, "all_machines_are_in_one_zone", what)
    zones = {cloud.by_name[name].facts.zone for name in names if name in cloud.by_name}
    require(zones <= {event["zone"]}, "all_machines_are_in_one_zone", f"{what}: {zones}")


def _given_up(record: RunRecord) -> set[tuple[int, int]]:
    """Return the (attempt, rank) of machines that the story has given up."""
    gone = {(event["attempt"], event["node"]) for event in record.of("noticed")}
    gone |= {(event["attempt"], rank) for event in record.of("lost") for rank in event["nodes"]}
    return gone


def survivors_are_not_doubled(cloud: SimCloud, record: RunRecord, event: dict[str, Any]) -> None:
    """An attempt that keeps machines replaces only those that are lost, and keeps none that was given up."""
    placed = record.of("placed")
    if not placed:
        return
    before, names = placed[-1], machines_of(event)
    kept = set(machines_of(before)) & set(names)
    gone = _given_up(record)
    same_size = len(names) == len(machines_of(before))
    for rank, name in enumerate(machines_of(before)):
        what = f"{record.run}: attempt {event['attempt']}, rank {rank}"
        if name in names:
            right = (not same_size or names[rank] == name) and (before["attempt"], rank) not in gone
            require(right, "survivors_are_not_doubled", f"{what}: {name} cannot be kept")
            continue
        machine = cloud.by_name.get(name)
        healthy = machine is not None and machine.exists and machine.facts.status in ("pending", "running")
        if kept and healthy and machine is not None and (before["attempt"], rank) not in gone:
            # A machine that has just become ready may be missing in the supervisor's view.
            fresh = cloud.scheduler.now - machine.facts.created_at < 2 * cloud.faults.listing_lag_s + 60.0
            require(fresh, "survivors_are_not_doubled", f"{what}: {name} is alive, and not among {names}")


def no_partial_run_is_billed(witness: Witness, now: float, *, lag_s: float) -> None:
    """Machines of an attempt that never starts are billed for at most the time limit of the barrier."""
    traits = BUILT_IN[DEFAULT_CLOUD]
    limit_s = 2 * traits.boot_s + 4 * traits.silence_s + lag_s
    for record in witness.runs.values():
        if record.nodes == 1 or not is_readable(witness.store, record.run):
            continue
        placed = record.of("placed")
        started = {event["attempt"] for event in record.of("started")}
        for number, event in enumerate(placed):
            if event["attempt"] in started:
                continue
            later = {name for other in placed[number + 1 :] for name in machines_of(other)}
            for name in set(machines_of(event)) - later:
                machine = witness.cloud.by_name.get(name)
                if machine is None:
                    continue
                since = max(machine.facts.created_at, event["stored_at"])
                until = min(machine.deleted_at or now, machine.facts.stopped_at or now)
                billed = f"{name} was billed for {until - since:.0f} s and never started"
                what = f"{record.run}: {billed}; the limit is {limit_s:.0f} s"
                require(until - since <= limit_s, "no_partial_run_is_billed", what)
