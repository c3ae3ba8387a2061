"""What happens to machines without anybody asking: preemptions are written down, lives end, groups are refilled."""

from __future__ import annotations

import threading
import time

from outlast.clouds.cloud import Machine
from outlast.errors import OutlastError
from outlast_gcp_emulator.compute import disk_backing, groups, instance_backend
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.operations import OperationFailure
from outlast_gcp_emulator.compute.refs import Doc, Ref
from outlast_gcp_emulator.compute.ssh_listeners import Doors
from outlast_gcp_emulator.errors import ApiError

_LOOK_EVERY_S = 0.25
# Looking may take this part of the time and no more, however many machines there are.
_SHARE = 0.05


class Reconciler:
    """A thread that looks at the machines now and then, while the endpoint serves."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.doors = Doors(context.cloud)

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
                acted = look(self._context, self.doors)
            except (OutlastError, ApiError, OperationFailure, OSError):
                # The local cloud cannot be read now, or somebody deletes what we look at; the next look may see.
                pass
            # Making machines takes long as well, and is no reason to look away.
            pause_s = _LOOK_EVERY_S if acted else max(_LOOK_EVERY_S, (time.monotonic() - began) / _SHARE)


def look(context: Context, doors: Doors) -> bool:
    """Once; True when a group was changed by it."""
    known = {machine.name: machine for machine in context.cloud.machines()}
    running = set()
    for ref, doc in context.store.each("instances"):
        machine = known.get(doc.get("_machine", ""))
        if doc.get("_creating") or doc.get("_stopping"):
            continue
        if machine is None:
            # It may have been made after we looked.
            if disk_backing.machine_of(context, doc["_machine"]) is None:
                instance_backend.forget(context, ref, doc)
        elif instance_backend.is_suspended(machine):
            continue
        elif machine.status == "running":
            running.add(machine.name)
            _limit_life(context, ref, doc, machine)
        elif machine.status == "stopped":
            _write_down(context, ref, doc, machine)
        elif machine.status == "broken" and doc["scheduling"].get("automaticRestart") and not doc.get("_lost"):
            _revive(context, ref, doc)
    doors.keep(running)
    return groups.look_after(context)


def _limit_life(context: Context, ref: Ref, doc: Doc, machine: Machine) -> None:
    rules = doc["scheduling"]
    life_s = float(rules.get("maxRunDuration", {}).get("seconds", 0))
    over = life_s > 0 and machine.seen_at - (machine.started_at or machine.created_at) > life_s
    if over and rules.get("instanceTerminationAction") != "DELETE":
        instance_backend.stop(context, ref)


def _revive(context: Context, ref: Ref, doc: Doc) -> None:
    """A machine that nobody stopped and whose host failed: here, whose shim was killed. It boots from its disk."""
    context.operations.done(ref, "compute.instances.hostError", target_id=doc["id"])
    try:
        instance_backend.reset(context, ref)
    except (OutlastError, OperationFailure):
        context.change(ref, _lost=True)  # what cannot boot is not tried for ever
        return
    context.operations.done(ref, "compute.instances.automaticRestart", target_id=doc["id"])


def _write_down(context: Context, ref: Ref, doc: Doc, machine: Machine) -> None:
    """An operation for each end that nobody asked for, as Google's own log has."""
    if doc.get("_ended") == machine.stopped_at:
        return
    # The log first: whoever sees the machine ended shall find why.
    kinds = {"preempted": "compute.instances.preempted", "powered off by itself": "compute.instances.guestTerminate"}
    if machine.why in kinds:
        context.operations.done(ref, kinds[machine.why], target_id=doc["id"])
    context.change(ref, _ended=machine.stopped_at)
    if machine.why == "preempted" and doc["scheduling"].get("instanceTerminationAction") == "DELETE":
        instance_backend.delete(context, ref)
