"""The loop of `outlast machine keep`: observe, plan, apply; retries temporary errors. One process per machine."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import msgspec

from outlast.clouds.cloud import InteractiveCloud
from outlast.errors import BadRequest, CloudError, Missing, OutlastError, UsageError, WorkspaceError
from outlast.machines.keepalive import job
from outlast.machines.keepalive.apply import KeepaliveApplier
from outlast.machines.keepalive.observe import KeepaliveObserver
from outlast.machines.keepalive.plan import plan
from outlast.machines.keepalive.world import End, KeepaliveOptions, Memory, Rest, Step, describe
from outlast.machines.ssh import Link
from outlast.records.machines import MachineRecords
from outlast.store.codec import decoded
from outlast.store.lease import Lease, process_name

_LEASE_S = 20.0
_TROUBLE_S_MAX = 120.0


class KeepaliveLoop:
    """Keeps one machine running. Its memory is in the workspace, so another process can continue after a kill."""

    def __init__(
        self,
        cloud: InteractiveCloud,
        machine_records: MachineRecords,
        name: str,
        *,
        report: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cloud = cloud
        self.machine_records = machine_records
        self.name = name
        self.report = report
        self.clock = clock
        self.link = Link(cloud, name)
        self.observer = KeepaliveObserver(cloud, machine_records, self.link)
        self.applier = KeepaliveApplier(cloud, machine_records, self.link, write=self._write, clock=clock)
        self.lease = Lease(machine_records.bucket, f"machine-{name}", who=process_name(), ttl_s=_LEASE_S)
        # Another process holds the lease: stop all work here.
        self.lost = threading.Event()
        self.pace_s = cloud.traits.keepalive_poll_s

    def keep(
        self, options: KeepaliveOptions, *, stop: threading.Event, once: bool = False, reset: bool = False
    ) -> Memory:
        """Run until the end, until `stop` is set, or with `once` until the machine is in the requested state.

        Returns the memory. Raises BadRequest if another process keeps the machine, UsageError if it is kept for another
        command.
        """
        if not self.lease.hold():
            holder = self.lease.holder()
            raise BadRequest(
                f"{holder.who if holder else 'another process'} already keeps {self.name}",
                hint="stop that process first",
            )
        ended = threading.Event()
        self.lost.clear()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beating.start()
        try:
            return self._rounds(self._begin(options, reset=reset), stop, once=once)
        finally:
            ended.set()
            beating.join()
            self.link.close()
            try:
                self.lease.release()
            except OutlastError:
                pass  # it expires by itself

    def _beat(self, ended: threading.Event) -> None:
        """Renew the lease, also while a step takes minutes; set `lost` when another process has taken it."""
        while not ended.wait(_LEASE_S / 4):
            try:
                if not self.lease.hold():
                    self.report(f"{self.name}: another process keeps it now; exiting")
                    self.lost.set()
                    return
            except OutlastError:
                continue  # the store is unreachable, for other processes as well

    def _begin(self, options: KeepaliveOptions, *, reset: bool) -> Memory:
        """Return the memory of an earlier, unfinished process with the same command, or a new one."""
        machine_record = self.machine_records.find(self.name)
        if machine_record is not None and machine_record.wanted == "stopped":
            # Keeping a machine means running it.
            self.machine_records.write(msgspec.structs.replace(machine_record, wanted="running"))
        found = self.stored_memory()
        if found is not None and found.ending is None and not reset:
            if found.options.command != options.command:
                raise UsageError(
                    f"{self.name} is kept for another command: {found.options.command[:80] or 'none'}",
                    hint="use --reset to end that command, or repeat the same --command",
                )
            return self._write(msgspec.structs.replace(found, options=options))
        if found is not None and found.ending is None and found.move is not None:
            raise UsageError(
                f"{self.name} is moving to another zone", hint="repeat the same --command until the move is finished"
            )
        if found is not None and found.options.command:
            self._end_former(found)
        return self._write(Memory(id=secrets.token_hex(6), options=options))

    def _end_former(self, found: Memory) -> None:
        machine = self.cloud.machine(self.name)
        if machine.status == "running":
            now = job.probe(self.link, found.id, boots=found.boots)
            if now.alive:
                job.kill(self.link, found.id, now.number)

    def stored_memory(self) -> Memory | None:
        try:
            return decoded(self.machine_records.bucket.get(self._key), Memory, self._key)
        except Missing:
            return None

    def _rounds(self, memory: Memory, stop: threading.Event, *, once: bool) -> Memory:
        reported, troubles = "", 0
        while not stop.is_set() and not self.lost.is_set():
            step: Step = plan(self.observer.observe(memory, self.clock()))
            text = describe(self.name, step)
            if text != reported:
                self.report(text)
                reported = text
            trouble = isinstance(step, Rest) and step.trouble
            try:
                memory = self.applier.apply(step, memory)
            except (CloudError, WorkspaceError) as problem:
                self.report(f"{self.name}: failed: {problem.message}; retrying")
                reported, trouble = "", True
                memory = self.stored_memory_or(memory)
            else:
                if isinstance(step, End):
                    return memory
            if once and isinstance(step, Rest) and step.steady:
                return memory
            troubles = troubles + 1 if trouble else 0
            if isinstance(step, Rest) or trouble:
                stop.wait(min(_TROUBLE_S_MAX, self.pace_s * 2 ** min(troubles, 12)) if trouble else self.pace_s)
        return memory

    def stored_memory_or(self, memory: Memory) -> Memory:
        """Return the stored memory: a step may have written it before it failed."""
        try:
            return self.stored_memory() or memory
        except WorkspaceError:
            return memory

    @property
    def _key(self) -> str:
        return f"keep/{self.name}.json"

    def _write(self, memory: Memory) -> Memory:
        self.machine_records.bucket.put(self._key, msgspec.json.encode(memory), durable=True)
        return memory
