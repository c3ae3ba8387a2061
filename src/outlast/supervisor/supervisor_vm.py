"""The supervisor on a machine of a cloud: it knows who it is, whether it is wanted, and how to take itself down.

Whether it is wanted says its record in the workspace and nothing else. One whose record is gone deletes its machine; as
nobody restarts a deleted machine, and the boot script restarts whatever else ended, it is there exactly while it is
wanted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import msgspec

from outlast.billing.ledger_store import LedgerStore
from outlast.clouds.cloud import LABEL_MACHINE, Cloud, Machine
from outlast.records.machines import MachineRecord, MachineRecords
from outlast.store.lease import host_name
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import IDLE_S
from outlast.workspace import Workspace

# How often it asks whether it is still wanted.
_LOOK_S = 15.0


class SupervisorVm:
    """One machine that supervises one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        machine: Machine,
        *,
        report: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
    ) -> None:
        self.machine_records = MachineRecords(workspace)
        self.cloud = clouds[machine.cloud]
        self.machine = machine
        self.report = report
        self.monotonic = monotonic
        self.idle_s = idle_s
        self.since = monotonic()
        self.looked_at = float("-inf")
        # Whether it has seen a run: before the first one it is patient.
        self.met = False
        self.supervisor = Supervisor(workspace, clouds, who=machine.name, station=machine.name, report=report)
        self.supervisor.lease.who = title(machine)

    def serve(self, stop: threading.Event) -> bool:
        """Supervise until told to stop, or until it is wanted no more; whether it is. Then `go`."""
        self._take_up()
        if self._record() is None:
            return False
        self.supervisor.run(stop=stop, relieved=self._relieved)
        return stop.is_set()

    def go(self) -> None:
        """Delete this machine. The record goes first: a machine without one is deleted by whoever sees it, if this is
        cut short here. Raises CloudError."""
        self.report(f"nobody wants {self.machine.name} any more; deleting it")
        machine_record = self.machine_records.find(self.machine.name)
        if machine_record is not None and machine_record.id == self.machine.labels.get(LABEL_MACHINE):
            LedgerStore(self.machine_records.workspace).close_machine(
                machine_record, self.cloud.machine(self.machine.name)
            )
            self.machine_records.remove(self.machine.name)
        self.cloud.delete(self.machine.name)

    def _take_up(self) -> None:
        """One that was killed here while it looked a last time has said `deleting`, and may have found a run: it is the
        next one's to look again. What somebody elsewhere has said is meant."""
        machine_record = self.machine_records.find(self.machine.name)
        if (
            machine_record is None
            or machine_record.id != self.machine.labels.get(LABEL_MACHINE)
            or machine_record.phase != "deleting"
        ):
            return
        if machine_record.until_idle and machine_record.by.rpartition(":")[0] == host_name():
            self.machine_records.write(msgspec.structs.replace(machine_record, phase="ready"))
            self.met = True  # the dead one was done with its runs; nobody need wait for a first one again

    def _record(self) -> MachineRecord | None:
        """Our record, while we are wanted."""
        machine_record = self.machine_records.find(self.machine.name)
        if (
            machine_record is None
            or machine_record.id != self.machine.labels.get(LABEL_MACHINE)
            or machine_record.phase == "deleting"
        ):
            return None
        return machine_record

    def _relieved(self, record: bool) -> bool:
        self.met = self.met or bool(self.supervisor.observer.watched)
        if self.monotonic() - self.looked_at < _LOOK_S and not (record and self._idle()):
            return False
        self.looked_at = self.monotonic()
        machine_record = self._record()
        if machine_record is None:
            return True
        if not machine_record.until_idle or not record or not self._idle():
            return False
        # Said first, then looked again: who submits rings first, and looks for us then, so one of us sees the other.
        self.machine_records.write(msgspec.structs.replace(machine_record, phase="deleting"))
        self.supervisor.round()
        if self._idle():
            return True
        self.machine_records.write(machine_record)
        return False

    def _idle(self) -> bool:
        patient = self.met or self.monotonic() - self.since > self.idle_s
        return patient and self.supervisor.idle()


def title(machine: Machine) -> str:
    """Who supervises, for `outlast ps`: a machine, where it is, and what it costs."""
    price = f"${machine.bills_usd_per_hour:.4f}/h"
    return f"{machine.name} on {machine.cloud} ({machine.type} in {machine.zone}, {price})"
