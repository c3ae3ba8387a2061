"""The observations of `outlast machine keep`: cloud, record and, over ssh, the command. Errors are part of the view."""

from __future__ import annotations

import time
from collections.abc import Callable

from outlast.clouds.cloud import InteractiveCloud, Machine, Offer, Requirements
from outlast.errors import CloudError, NotFound, OutlastError, WorkspaceError
from outlast.machines.keepalive import job
from outlast.machines.keepalive.plan import MOVE_AFTER
from outlast.machines.keepalive.world import KeepaliveView, KeptJob, Memory
from outlast.machines.lifecycle import record_of
from outlast.machines.ssh import Link
from outlast.machines.status import cost_usd
from outlast.records.machines import MachineRecord, MachineRecords


class KeepaliveObserver:
    """Observes one machine. Its only state is the time since which ssh fails."""

    def __init__(
        self,
        cloud: InteractiveCloud,
        machine_records: MachineRecords,
        link: Link,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cloud = cloud
        self.machine_records = machine_records
        self.link = link
        self.monotonic = monotonic
        self.unresponsive_since: float | None = None

    def observe(self, memory: Memory, now: float) -> KeepaliveView:
        try:
            machine, machine_record = self._read_machine()
            elsewhere = self._elsewhere(memory, machine)
        except (CloudError, WorkspaceError) as problem:
            return KeepaliveView(now=now, memory=memory, unreachable=problem.message)
        found, unresponsive = self._probe_job(memory, machine)
        if unresponsive:
            # It may have been preempted during the probe.
            try:
                machine, machine_record = self._read_machine()
            except (CloudError, WorkspaceError) as problem:
                return KeepaliveView(now=now, memory=memory, unreachable=problem.message)
            unresponsive = unresponsive if machine is not None and machine.status == "running" else ""
        if not unresponsive:
            self.unresponsive_since = None
        elif self.unresponsive_since is None:
            self.unresponsive_since = self.monotonic()
        return KeepaliveView(
            now=now,
            memory=memory,
            machine=machine,
            machine_record=machine_record,
            job=found,
            unresponsive=unresponsive,
            unresponsive_s=0.0 if self.unresponsive_since is None else self.monotonic() - self.unresponsive_since,
            cost_usd=cost_usd(machine, machine_record),
            elsewhere=elsewhere,
        )

    def _read_machine(self) -> tuple[Machine | None, MachineRecord | None]:
        try:
            machine = self.cloud.machine(self.link.name)
        except NotFound:
            return None, self.machine_records.find(self.link.name)
        return machine, record_of(self.machine_records, self.cloud, machine)

    def _elsewhere(self, memory: Memory, machine: Machine | None) -> tuple[Offer, ...]:
        move = memory.move
        if move is not None:
            return tuple(self.cloud.offers(Requirements(type=move.type, spot=move.spot, disk_gb=move.disk_gb)))
        if machine is None or machine.status != "stopped" or memory.refusals < MOVE_AFTER:
            return ()
        return tuple(self.cloud.offers(Requirements(type=machine.type, spot=machine.spot, disk_gb=machine.disk_gb)))

    def _probe_job(self, memory: Memory, machine: Machine | None) -> tuple[KeptJob | None, str]:
        """Return the state of the command, or why it cannot be read."""
        if machine is None or machine.status != "running" or not memory.options.command:
            return None, ""
        options = memory.options
        try:
            found = job.probe(
                self.link, memory.id, boots=memory.boots, halt_after_s=options.halt_after_s, watch=options.watch
            )
        except OutlastError as problem:
            # Reconnect in the next round, with the address that the cloud reports then.
            self.link.close()
            return None, problem.message
        return found, ""
