"""What happens to machines without anybody asking: preemptions are written down, lives end, groups are refilled."""

from __future__ import annotations

import threading
import time

from outlast.clouds.cloud import Machine
from outlast.clouds.local.serve.compute import backing, groups, machines
from outlast.clouds.local.serve.compute.desk import Desk
from outlast.clouds.local.serve.compute.doors import Doors
from outlast.clouds.local.serve.compute.links import Doc, Ref
from outlast.clouds.local.serve.compute.operations import Failure
from outlast.clouds.local.serve.refusal import Refused
from outlast.errors import OutlastError

_LOOK_EVERY_S = 0.25
# Looking may take this part of the time and no more, however many machines there are.
_SHARE = 0.05


class Watch:
    """A thread that looks at the machines now and then, while the endpoint serves."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.doors = Doors(desk.cloud)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self.doors.close()

    def _run(self) -> None:
        pause_s = _LOOK_EVERY_S
        while not self._over.wait(pause_s):
            began, acted = time.monotonic(), False
            try:
                acted = look(self._desk, self.doors)
            except (OutlastError, Refused, Failure, OSError):
                # The local cloud cannot be read now, or somebody deletes what we look at; the next look may see.
                pass
            # Making machines takes long as well, and is no reason to look away.
            pause_s = _LOOK_EVERY_S if acted else max(_LOOK_EVERY_S, (time.monotonic() - began) / _SHARE)


def look(desk: Desk, doors: Doors) -> bool:
    """Once; True when a group was changed by it."""
    known = {machine.name: machine for machine in desk.cloud.machines()}
    running = set()
    for ref, doc in desk.store.each("instances"):
        machine = known.get(doc.get("_machine", ""))
        if doc.get("_creating") or doc.get("_stopping"):
            continue
        if machine is None:
            # It may have been made after we looked.
            if backing.machine_of(desk, doc["_machine"]) is None:
                machines.forget(desk, ref, doc)
        elif machines.is_suspended(machine):
            continue
        elif machine.status == "running":
            running.add(machine.name)
            _limit_life(desk, ref, doc, machine)
        elif machine.status == "stopped":
            _write_down(desk, ref, doc, machine)
        elif machine.status == "broken" and doc["scheduling"].get("automaticRestart") and not doc.get("_lost"):
            _revive(desk, ref, doc)
    doors.keep(running)
    return groups.look_after(desk)


def _limit_life(desk: Desk, ref: Ref, doc: Doc, machine: Machine) -> None:
    rules = doc["scheduling"]
    life_s = float(rules.get("maxRunDuration", {}).get("seconds", 0))
    over = life_s > 0 and machine.seen_at - (machine.started_at or machine.created_at) > life_s
    if over and rules.get("instanceTerminationAction") != "DELETE":
        machines.stop(desk, ref)


def _revive(desk: Desk, ref: Ref, doc: Doc) -> None:
    """A machine that nobody stopped and whose host failed: here, whose keeper was killed. It boots from its disk."""
    desk.operations.done(ref, "compute.instances.hostError", target_id=doc["id"])
    try:
        machines.reset(desk, ref)
    except (OutlastError, Failure):
        desk.change(ref, _lost=True)  # what cannot boot is not tried for ever
        return
    desk.operations.done(ref, "compute.instances.automaticRestart", target_id=doc["id"])


def _write_down(desk: Desk, ref: Ref, doc: Doc, machine: Machine) -> None:
    """An operation for each end that nobody asked for, as Google's own log has."""
    if doc.get("_ended") == machine.stopped_at:
        return
    # The log first: whoever sees the machine ended shall find why.
    kinds = {"preempted": "compute.instances.preempted", "powered off by itself": "compute.instances.guestTerminate"}
    if machine.why in kinds:
        desk.operations.done(ref, kinds[machine.why], target_id=doc["id"])
    desk.change(ref, _ended=machine.stopped_at)
    if machine.why == "preempted" and doc["scheduling"].get("instanceTerminationAction") == "DELETE":
        machines.delete(desk, ref)
