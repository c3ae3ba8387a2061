"""The invariants that hold after the faults have stopped and the world has come to rest."""

from __future__ import annotations

import json

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN
from outlast.testing.faults import WorldFaults
from outlast.testing.invariants import Witness, parts_of
from outlast.testing.run_record import RunRecord, is_readable, require
from outlast.testing.sim_store import SimStore
from outlast.testing.simcloud import SimCloud, SimMachine


def is_listed(store: SimStore, run: str) -> bool:
    """Return whether a supervisor can find the run.

    It cannot if the store lost the heartbeat while neither agent nor supervisor was alive to write another. Such a run
    has no machine, since a machine leads to its run.
    """
    return f"heartbeats/{run}" not in store.lost or bool(
        store.keys(f"heartbeats/{run}") or store.keys(f"wakeups/{run}/")
    )


def every_run_ended(witness: Witness) -> None:
    for record in witness.runs.values():
        if not is_readable(witness.store, record.run) or not (record.ended or is_listed(witness.store, record.run)):
            continue
        require(
            record.ended, "every_run_ended", f"{record.run} did not end: {[e['event'] for e in record.events[-5:]]}"
        )


def every_machine_is_gone(cloud: SimCloud) -> None:
    """Invariant 4: every orphan is deleted, whether running, stopped or partly created."""
    left = [f"{machine.facts.name} ({machine.facts.status})" for machine in cloud.alive()]
    require(not left, "every_machine_is_gone", f"left: {left}")


def ended_runs_leave_nothing_behind(store: SimStore, cloud: SimCloud) -> None:
    """A run that is over has no heartbeat, no wakeup and no secrets, unless its story cannot be read."""
    left = [key for key in store.keys("heartbeats/") + store.keys("wakeups/") if is_readable(store, key.split("/")[1])]
    left += [name for name in cloud.secrets if not _is_unreachable(store, name.split("-", 2)[2])]
    require(not left, "ended_runs_leave_nothing_behind", f"left: {left}")


def _is_unreachable(store: SimStore, run: str) -> bool:
    """Return whether the run cannot be read, or the store lost its heartbeat or a wakeup: nothing cleans it up."""
    led = any(key == f"heartbeats/{run}" or key.startswith(f"wakeups/{run}/") for key in store.lost)
    return led or not is_readable(store, run)


def ended_runs_are_listed(store: SimStore, witness: Witness) -> None:
    """A run that is over is in the index, which alone lists it."""
    listed = {key.removesuffix(".json").split("-", 2)[2] for key in store.keys("ended/loose/")}
    for key in store.keys("ended/pages/"):
        listed |= {record["run"] for record in json.loads(store.objects[key][0])}
    over = [run for run, record in witness.runs.items() if record.ended and not _is_unreachable(store, run)]
    lacking = [run for run in over if run not in listed]
    require(not lacking, "ended_runs_are_listed", f"not in the index: {lacking}")


def every_part_is_referenced(store: SimStore, witness: Witness) -> None:
    """A committed checkpoint references every stored part, except those that a zombie wrote after the end."""
    for record in witness.runs.values():
        prefix = f"runs/{record.run}/"
        if not record.ended or _is_unreachable(store, record.run) or _has_damaged_manifest(store, record):
            continue  # the parts of a damaged manifest are unknown, so nothing is deleted
        manifests = {f"{prefix}checkpoints/{saved['checkpoint']}/manifest.json" for saved in record.of("saved")}
        manifests_left = [json.loads(store.objects[key][0]) for key in manifests if key in store.objects]
        named = {part["key"] for manifest in manifests_left for part in parts_of(manifest)}
        left = [key for key in store.keys(f"{prefix}parts/") if key not in named]
        left += [key for key in store.keys(f"{prefix}checkpoints/") if key not in manifests]
        over_at = max(store.objects[key][1] for key in store.keys(f"{prefix}story/"))
        left = [key for key in left if store.objects[key][1] <= over_at]
        require(not left, "every_part_is_referenced", f"left: {left}")


def _has_damaged_manifest(store: SimStore, record: RunRecord) -> bool:
    """Return whether a manifest cannot be read, or was lost when the run was over and its garbage collected."""
    over_at = max(store.objects[key][1] for key in store.keys(f"runs/{record.run}/story/"))
    keys = (f"runs/{record.run}/checkpoints/{saved['checkpoint']}/manifest.json" for saved in record.of("saved"))
    return any(key in store.damaged and (key in store.objects or store.damaged[key] > over_at) for key in keys)


def results_are_right(store: SimStore, witness: Witness, expected: dict[str, str]) -> None:
    """No step was lost or repeated: the chain of hashes is the expected one."""
    for record in witness.runs.values():
        if f"runs/{record.run}/spec.json" in store.damaged:
            continue  # a flipped bit can make it another request
        for event in record.of("finished"):
            key = f"runs/{record.run}/outputs/{event['attempt']}/result"
            found = store.objects.get(key, (b"nothing", 0.0))[0].decode()
            require(found == expected[record.run], "results_are_right", f"{record.run}: {found}")


def recorded_cost_is_actual_cost(cloud: SimCloud, witness: Witness, now: float, *, lag_s: float) -> None:
    """The cost in the stories is the cost of the machines, up to the delay of detecting their end."""
    for record in witness.runs.values():
        if not is_readable(witness.store, record.run):
            continue  # no supervisor can bill it
        noted = {key for key in witness.store.damaged if key.startswith(f"runs/{record.run}/ran/")}
        if noted and record.nodes > 1:
            continue  # its machines are billed with other attempts than those that launched them
        if noted and record.nodes > 1:
            continue  # its machines are billed with other attempts than those that launched them
        unknown = {
            int(key.rpartition("/")[2].partition(".")[0]) for key in noted
        }  # the note of their seconds is damaged
        counted = sum(event["cost_usd"] for event in record.of("released") if event["attempt"] not in unknown)
        mine = [machine for machine in _machines(cloud, record.run) if _attempt(machine) not in unknown]
        caused = sum(m.billed_s(now) * m.facts.price_usd_per_hour / 3600.0 for m in mine)
        slack = sum(lag_s * m.facts.price_usd_per_hour / 3600.0 for m in mine) + 1e-9
        what = f"{record.run}: counted {counted:.5f}, caused {caused:.5f}, allowed ±{slack:.5f}"
        require(abs(counted - caused) <= slack, "recorded_cost_is_actual_cost", what)


def spend_stays_within_limits(cloud: SimCloud, witness: Witness, now: float, *, lag_s: float) -> None:
    """Spend exceeds a limit by at most (live machines × price × detection delay), per run and in all."""
    for run, record in witness.runs.items():
        if not is_readable(witness.store, run):
            continue  # the maximum lifetime of its machines bounds the cost
        mine = _machines(cloud, run)
        _within(run, record.spec["limits"]["cost_usd"], mine, now, lag_s)
    shared = witness.store.objects.get("limits/workspace.json")
    if shared is not None:
        counted = [m for m in cloud.history if is_readable(witness.store, m.facts.labels[LABEL_RUN])]
        _within("all runs", json.loads(shared[0]).get("cost_usd", 0.0), counted, now, lag_s)


def _within(who: str, cap_usd: float, machines: list[SimMachine], now: float, lag_s: float) -> None:
    if not cap_usd or not machines:
        return
    caused = sum(m.billed_s(now) * m.facts.price_usd_per_hour / 3600.0 for m in machines)
    spans = [(m.facts.created_at, m.facts.created_at + m.billed_s(now)) for m in machines]
    peak = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    price = max(m.facts.price_usd_per_hour for m in machines)
    allowed = cap_usd + max(1, peak) * price * lag_s / 3600.0
    what = f"{who}: ${caused:.5f} of ${cap_usd:.5f}; with {peak} machines at a time ${allowed:.5f} is allowed"
    require(caused <= allowed, "spend_stays_within_limits", what)


def billed_seconds_are_actual_seconds(witness: Witness, *, lag_s: float) -> None:
    """A supervisor bills a deleted machine for the time that it ran, up to the age of its view and the listing lag."""
    for record in witness.runs.values():
        if record.nodes > 1:
            continue  # a machine of several nodes serves several attempts; `recorded_cost_is_actual_cost` adds them up
        for event in record.of("released"):
            number, seconds = event["attempt"], event["seconds"]
            machines = [m for m in _machines(witness.cloud, record.run) if _attempt(m) == number]
            note = f"runs/{record.run}/ran/{number}"
            if len(machines) != 1 or not machines[0].deleted_by or note in witness.store.damaged:
                continue
            if machines[0].facts.created_at > event["stored_at"]:
                continue  # launched by a supervisor with a stale view after the release; nothing bills it
            ran_s = machines[0].billed_s(machines[0].deleted_at)
            age_s = witness.view_age_s[machines[0].facts.name]
            what = f"{record.run}: {seconds:.1f} s billed for attempt {number}, which ran {ran_s:.1f} s"
            exact = ran_s - age_s - 0.01 <= seconds <= ran_s + lag_s + 0.01
            require(exact, "billed_seconds_are_actual_seconds", f"{what}; the view was {age_s:.1f} s old")


def no_machine_is_wasted(witness: Witness, faults: WorldFaults) -> None:
    """A run has one machine, and one more for each that it lost to a fault, a crash or a move.

    A slow or failing store explains missing heartbeats, and several supervisors may launch for one attempt in turn.
    """
    unresponsive = faults.store_slow_s > 0.1 or faults.store_fails > 0 or faults.store_loses_answers > 0
    for record in witness.runs.values():
        if record.nodes > 1 or not is_readable(witness.store, record.run):
            continue  # its agents end repeatedly, until the limit of attempts without progress ends the run
        machines = _machines(witness.cloud, record.run)
        moved = {event["attempt"] for event in record.of("noticed") if event["moves"]}
        # A better machine instead of one that still boots.
        moved |= {event["attempt"] for event in record.of("lost") if event["why"].startswith("its start is given up")}
        silent = {event["attempt"] for event in record.of("lost") if not event["preempted"]} if unresponsive else set()
        # One supervisor is refused; another with a stale view gets a machine for the same attempt.
        refused = {event["attempt"] for event in record.of("launch_refused")} if faults.supervisors > 1 else set()
        explained = [m for m in machines if m.incidents or _attempt(m) in moved | silent | refused]
        repeated = len(machines) - len({_attempt(m) for m in machines}) if faults.supervisors > 1 else 0
        healthy = [m.facts.name for m in machines if m not in explained]
        what = f"{record.run} had {len(machines)} machines; no fault hit {healthy}"
        require(len(machines) <= 1 + len(explained) + repeated, "no_machine_is_wasted", what)


def a_handoff_loses_nothing(witness: Witness) -> None:
    """With notices as the only fault, a noticed attempt commits, its successor resumes there, and repeats no step."""
    for record in witness.runs.values():
        if record.nodes > 1:
            continue  # the ranks that have not been preempted cannot always save
        steps = int(record.spec["params"]["steps"])
        finished = bool(record.of("finished"))
        what = f"{record.run} did {record.work} steps of {steps}"
        if any(notice["moves"] for notice in record.of("noticed")):
            continue  # the grace of a move may be shorter than a step
        require(record.work == steps if finished else record.work <= steps, "a_handoff_loses_nothing", what)
        for number, event in enumerate(record.events):
            if event["event"] == "started" and event["attempt"] > 1:
                _resumes_from_the_notice(record, number)


def _resumes_from_the_notice(record: RunRecord, number: int) -> None:
    before, started = record.events[:number], record.events[number]
    begun = [event["attempt"] for event in before if event["event"] == "started"]
    if not begun:
        return
    noticed = [n for n, e in enumerate(before) if e["event"] == "noticed" and e["attempt"] == begun[-1]]
    what = f"{record.run}: attempt {started['attempt']} took over from {begun[-1]}"
    require(bool(noticed), "a_handoff_loses_nothing", f"{what}, which had no notice")
    last = [e["checkpoint"] for e in before[noticed[0] :] if e["event"] == "saved" and e["attempt"] == begun[-1]]
    require(bool(last), "a_handoff_loses_nothing", f"{what} before that had saved")
    require(started["resumed_from"] == last[-1], "a_handoff_loses_nothing", f"{what} without {last[-1]}")


def the_machine_limit_is_kept(witness: Witness, allowed: int) -> None:
    """No more attempts are placed or started at a time than machines are allowed; noticed ones do not count."""
    live: set[tuple[str, int]] = set()
    for run, event in witness.timeline:
        if not is_readable(witness.store, run):
            continue  # no supervisor can count its attempts
        number = (run, event.get("attempt", 0))
        if event["event"] in ("placed", "started"):
            live.add(number)
        if event["event"] == "started":
            live -= {one for one in live if one[0] == run and one[1] < number[1]}
        if event["event"] in ("stopped", "lost", "launch_refused", "noticed"):
            live.discard(number)
        if event["event"] in ("finished", "failed", "cancelled"):
            live -= {one for one in live if one[0] == run}
        require(len(live) <= allowed, "the_machine_limit_is_kept", f"{sorted(live)} at a time, {allowed} are allowed")


def _machines(cloud: SimCloud, run: str) -> list[SimMachine]:
    return [machine for machine in cloud.history if machine.facts.labels[LABEL_RUN] == run]


def _attempt(machine: SimMachine) -> int:
    return int(machine.facts.labels[LABEL_ATTEMPT])
