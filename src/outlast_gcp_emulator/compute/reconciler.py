"""Changes that no request causes: records preemptions, enforces run time limits, restarts machines, refills groups."""

from __future__ import annotations

import threading
import time

from outlast.clouds.cloud import Machine
from outlast.errors import OutlastError
from outlast_gcp_emulator.compute.context import Context
from outlast_gcp_emulator.compute.disk_backing import DiskBacking
from outlast_gcp_emulator.compute.groups import GroupManagers
from outlast_gcp_emulator.compute.instance_backend import UNREQUESTED_STOPS, InstanceBackend, is_suspended, max_run_s
from outlast_gcp_emulator.compute.operations import OperationFailure
from outlast_gcp_emulator.compute.refs import Doc, Ref
from outlast_gcp_emulator.compute.ssh_listeners import SshListeners
from outlast_gcp_emulator.errors import ApiError

_INTERVAL_S = 0.25
# The largest share of the time that polling may take, with any number of machines.
_SHARE_MAX = 0.05


class Reconciler:
    """A thread that polls the machines while the endpoint serves."""

    def __init__(
        self, context: Context, backing: DiskBacking, backend: InstanceBackend, managers: GroupManagers
    ) -> None:
        self._context = context
        self._backing = backing
        self._backend = backend
        self._managers = managers
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconciler", daemon=True)
        self._listeners = SshListeners(context.cloud)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
        self._listeners.close()

    def _run(self) -> None:
        pause_s = _INTERVAL_S
        while not self._stopped.wait(pause_s):
            began, acted = time.monotonic(), False
            try:
                acted = self._reconcile()
            except (OutlastError, ApiError, OperationFailure, OSError):
                # The local cloud is unreadable for now, or a request deleted a resource meanwhile: retry.
                pass
            # Creating machines takes long, too, and must not delay the next poll.
            pause_s = _INTERVAL_S if acted else max(_INTERVAL_S, (time.monotonic() - began) / _SHARE_MAX)

    def _reconcile(self) -> bool:
        """Poll once. Returns whether a group was changed."""
        known = {machine.name: machine for machine in self._context.cloud.machines()}
        running = set()
        for ref, doc in self._context.store.each("instances"):
            machine = known.get(doc.get("_machine", ""))
            if doc.get("_creating") or doc.get("_stopping"):
                continue
            if machine is None:
                # The machine may have been created after the list was read.
                if self._backing.machine(doc["_machine"]) is None:
                    self._backend.remove(ref, doc)
            elif is_suspended(machine):
                continue
            elif machine.status == "running":
                running.add(machine.name)
                self._limit_run_time(ref, doc, machine)
            elif machine.status == "stopped":
                self._record_stop(ref, doc, machine)
            elif machine.status == "broken" and doc["scheduling"].get("automaticRestart") and not doc.get("_lost"):
                self._restart(ref, doc)
        self._listeners.keep(running)
        return self._managers.reconcile()

    def _limit_run_time(self, ref: Ref, doc: Doc, machine: Machine) -> None:
        limit_s = max_run_s(doc)
        over = limit_s > 0 and machine.seen_at - (machine.started_at or machine.created_at) > limit_s
        if over and doc["scheduling"].get("instanceTerminationAction") != "DELETE":
            self._backend.stop(ref)

    def _restart(self, ref: Ref, doc: Doc) -> None:
        """Boot a machine from its disk after its host failed, which here means that its shim was killed."""
        self._context.operations.done(ref, "compute.instances.hostError", target_id=doc["id"])
        try:
            self._backend.reset(ref)
        except (OutlastError, OperationFailure):
            self._context.change(ref, _lost=True)  # do not retry a machine that cannot boot
            return
        self._context.operations.done(ref, "compute.instances.automaticRestart", target_id=doc["id"])

    def _record_stop(self, ref: Ref, doc: Doc, machine: Machine) -> None:
        """Record an operation for a stop that no request caused, as Google does."""
        if doc.get("_ended") == machine.stopped_at:
            return
        # Record first: a client that sees the machine stopped must find the reason.
        if machine.why in UNREQUESTED_STOPS:
            self._context.operations.done(ref, UNREQUESTED_STOPS[machine.why], target_id=doc["id"])
        self._context.change(ref, _ended=machine.stopped_at)
        if machine.why == "preempted" and doc["scheduling"].get("instanceTerminationAction") == "DELETE":
            self._backend.delete(ref)
