"""The effects of `outlast machine keep`: carries out one step and stores the new memory. Each may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_never

import msgspec

from outlast.clouds.cloud import Boot, InteractiveCloud, Machine
from outlast.errors import CloudError, NoCapacity, NotFound, OverQuota
from outlast.machines import lifecycle, sshfiles
from outlast.machines.create import facts
from outlast.machines.keepalive import job
from outlast.machines.keepalive.world import (
    Arrive,
    Copy,
    Count,
    End,
    Kill,
    Leave,
    Memory,
    Relaunch,
    Relocation,
    Rest,
    StartJob,
    StartMachine,
    Step,
    StopUnresponsive,
)
from outlast.machines.ssh import Link
from outlast.records.machines import MachineRecords

# Longest pause after a refused start; the first is the cloud's, and each refusal doubles it.
_REFUSED_S_MAX = 300.0

Write = Callable[[Memory], Memory]


class KeepaliveApplier:
    """Carries out steps on one machine. `write` stores the memory before the effect that it describes."""

    def __init__(
        self,
        cloud: InteractiveCloud,
        machine_records: MachineRecords,
        link: Link,
        *,
        write: Write,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cloud = cloud
        self.machine_records = machine_records
        self.link = link
        self.name = link.name
        self.write = write
        self.clock = clock

    def apply(self, step: Step, memory: Memory) -> Memory:
        """Return the memory after the step. Raises CloudError on failure; the caller plans again."""
        match step:
            case Rest():
                return memory
            case StartMachine():
                return self._start_machine(memory)
            case StopUnresponsive():
                self.cloud.stop(self.name)
                return memory
            case Copy():
                return self._copy(step, memory)
            case Leave():
                self.cloud.delete(self.name)
                return self._at(memory, "relaunching")
            case Relaunch():
                return self._relaunch(step, memory)
            case Arrive():
                return self._arrive(memory)
            case StartJob():
                job.start(self.link, memory.id, step.number, memory.options.command, boots=memory.boots)
                return memory
            case Kill():
                job.kill(self.link, memory.id, step.number)
                return memory
            case Count():
                return self.write(msgspec.structs.replace(memory, counted=step.number, crashes=memory.crashes + 1))
            case End():
                return self._end(step, memory)
            case _:
                assert_never(step)

    def _start_machine(self, memory: Memory) -> Memory:
        # Count first: a command of an earlier boot must never look like one that was killed in this boot.
        memory = self.write(msgspec.structs.replace(memory, boots=memory.boots + 1))
        try:
            self.cloud.start(self.name)
        except (NoCapacity, OverQuota):
            return self._refused(memory)
        self.link.close()
        return self.write(msgspec.structs.replace(memory, refusals=0, refused_until=0.0))

    def _refused(self, memory: Memory) -> Memory:
        first_s = self.cloud.traits.refused_s
        wait_s = min(_REFUSED_S_MAX, first_s * 2 ** min(memory.refusals, 10))
        return self.write(
            msgspec.structs.replace(memory, refusals=memory.refusals + 1, refused_until=self.clock() + wait_s)
        )

    def _copy(self, step: Copy, memory: Memory) -> Memory:
        machine = self.cloud.machine(self.name)
        if memory.move is None:
            move = Relocation(
                image=step.image,
                stage="copying",
                zone=machine.zone,
                type=machine.type,
                spot=machine.spot,
                disk_gb=machine.disk_gb,
                metadata=dict(self.cloud.metadata(self.name)),
                labels=dict(machine.labels),
                cost_usd=machine.cost_usd,
            )
            memory = self.write(msgspec.structs.replace(memory, move=move, moves=memory.moves + 1))
        self.cloud.snapshot(self.name, step.image, note=f"the disk of {self.name}, on its way to another zone")
        return self._at(memory, "leaving", cost_usd=machine.cost_usd)

    def _at(self, memory: Memory, stage: str, **changes: object) -> Memory:
        assert memory.move is not None
        move = msgspec.structs.replace(memory.move, stage=stage, **changes)
        return self.write(msgspec.structs.replace(memory, move=move))

    def _relaunch(self, step: Relaunch, memory: Memory) -> Memory:
        move, machine_record = memory.move, self.machine_records.find(self.name)
        assert move is not None
        boot = Boot(
            image=move.image,
            script=machine_record.script if machine_record else "",
            metadata=move.metadata,
            disk_gb=move.disk_gb,
            ssh_keys=(sshfiles.public_key(),),
        )
        try:
            self.cloud.launch(step.offer, self.name, boot=boot, labels=move.labels)
        except (NoCapacity, OverQuota):
            return self._refused(memory)
        return memory

    def _arrive(self, memory: Memory) -> Memory:
        """Finish the move. The boot count grows, since no command of the old machine runs on the new one."""
        move = memory.move
        assert move is not None
        self.link.close()
        machine = self.cloud.machine(self.name)
        if machine.image == move.image:
            self._update_record(move, machine)
        # Delete the image before the memory of it: a forgotten image would be billed.
        self.cloud.delete_image(move.image)
        return self.write(
            msgspec.structs.replace(memory, move=None, boots=memory.boots + 1, refusals=0, refused_until=0.0)
        )

    def _update_record(self, move: Relocation, machine: Machine) -> None:
        """Add the earlier cost to the record, and its new image, which is not drift. Does nothing if repeated."""
        machine_record = self.machine_records.find(self.name)
        if machine_record is None or (machine_record.born is not None and machine_record.born.image == move.image):
            return
        born = machine_record.born or facts(machine, self.cloud.metadata(self.name))
        born = msgspec.structs.replace(born, image=machine.image)
        self.machine_records.write(
            msgspec.structs.replace(machine_record, born=born, extra_usd=machine_record.extra_usd + move.cost_usd)
        )

    def _end(self, step: End, memory: Memory) -> Memory:
        memory = self.write(msgspec.structs.replace(memory, ending=step.ending, why=step.why, exit_code=step.exit_code))
        try:
            if step.then == "stop":
                lifecycle.stop(self.cloud, self.machine_records, self.name)
            elif step.then == "delete":
                lifecycle.delete(self.cloud, self.machine_records, self.name)
        except NotFound:
            pass  # it is deleted already
        except CloudError:
            # Try again: the machine must not be billed on because one call failed.
            self.write(msgspec.structs.replace(memory, ending=None))
            raise
        return memory
