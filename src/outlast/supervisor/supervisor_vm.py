"""The supervisor on a cloud machine, which deletes its own machine when it is not needed any more.

Its record in the workspace alone decides whether it is needed. The boot script restarts a supervisor that ends for any
other reason.
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

# How often it reads its record.
_CHECK_S = 15.0


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
        self.checked_at = float("-inf")
        # Whether it has seen a run: before the first one it waits for `idle_s`.
        self.seen_run = False
        self.supervisor = Supervisor(workspace, clouds, who=machine.name, supervisor_vm=machine.name, report=report)
        self.supervisor.lease.who = title(machine)

    def serve(self, stop: threading.Event) -> bool:
        """Supervise until `stop` is set (True), or until the machine is not needed any more (False; then call `go`)."""
        self._resume_after_crash()
        if self._record() is None:
            return False
        self.supervisor.run(stop=stop, should_exit=self._should_exit)
        return stop.is_set()

    def go(self) -> None:
        """Delete this machine. Raises CloudError.

        The record goes first: if we crash in between, any supervisor deletes a machine that has none.
        """
        self.report(f"{self.machine.name} is not needed any more; deleting it")
        machine_record = self.machine_records.find(self.machine.name)
        if machine_record is not None and machine_record.id == self.machine.labels.get(LABEL_MACHINE):
            LedgerStore(self.machine_records.workspace).close_machine(
                machine_record, self.cloud.machine(self.machine.name)
            )
            self.machine_records.remove(self.machine.name)
        self.cloud.delete(self.machine.name)

    def _resume_after_crash(self) -> None:
        """Take back `deleting` if a supervisor on this machine crashed during its last check for runs.

        It may have found one. `deleting` from another computer is a user's decision and stays.
        """
        machine_record = self.machine_records.find(self.machine.name)
        if (
            machine_record is None
            or machine_record.id != self.machine.labels.get(LABEL_MACHINE)
            or machine_record.phase != "deleting"
        ):
            return
        if machine_record.until_idle and machine_record.by.rpartition(":")[0] == host_name():
            self.machine_records.write(msgspec.structs.replace(machine_record, phase="ready"))
            self.seen_run = True  # it had seen its runs end: do not wait for a first run again

    def _record(self) -> MachineRecord | None:
        """Return our record; None once the machine is not needed any more."""
        machine_record = self.machine_records.find(self.machine.name)
        if (
            machine_record is None
            or machine_record.id != self.machine.labels.get(LABEL_MACHINE)
            or machine_record.phase == "deleting"
        ):
            return None
        return machine_record

    def _should_exit(self, working: bool) -> bool:
        self.seen_run = self.seen_run or bool(self.supervisor.observer.watched)
        if self.monotonic() - self.checked_at < _CHECK_S and not (working and self._idle()):
            return False
        self.checked_at = self.monotonic()
        machine_record = self._record()
        if machine_record is None:
            return True
        if not machine_record.until_idle or not working or not self._idle():
            return False
        # Write `deleting`, then check again: a submitter writes a wakeup, then reads this record, so one sees the
        # other.
        self.machine_records.write(msgspec.structs.replace(machine_record, phase="deleting"))
        self.supervisor.round()
        if self._idle():
            return True
        self.machine_records.write(machine_record)
        return False

    def _idle(self) -> bool:
        waited = self.seen_run or self.monotonic() - self.since > self.idle_s
        return waited and self.supervisor.idle()


def title(machine: Machine) -> str:
    """Return the holder of the lease for `outlast ps`: machine, zone and price."""
    price = f"${machine.bills_usd_per_hour:.4f}/h"
    return f"{machine.name} on {machine.cloud} ({machine.type} in {machine.zone}, {price})"
