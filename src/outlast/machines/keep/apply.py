"""The hands of a keeper: one step, one effect, and what it means for the memory. Each may be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import assert_never

import msgspec

from outlast.clouds.cloud import Boot, Machine, Workshop
from outlast.errors import CloudError, NoCapacity, NotFound, OverQuota
from outlast.machines import care, sshfiles
from outlast.machines.keep import job
from outlast.machines.keep.world import (
    Arrive,
    Copy,
    Count,
    End,
    Kill,
    Leave,
    Memory,
    Move,
    Rest,
    Restart,
    Revive,
    Run,
    Settle,
    Step,
)
from outlast.machines.make import facts
from outlast.machines.ssh import Link
from outlast.workspace.hand import Hands

# After a refusal: doubled with each, so that a zone without room is not asked all the time.
_REFUSED_S = {"local": 0.5}
_REFUSED_ELSEWHERE_S = 15.0
_REFUSED_S_MAX = 300.0

Write = Callable[[Memory], Memory]


class Applier:
    """Carries out steps on one machine. `write` keeps the memory; it is called before what it tells of is done."""

    def __init__(
        self, cloud: Workshop, hands: Hands, link: Link, *, write: Write, clock: Callable[[], float] = time.time
    ) -> None:
        self.cloud = cloud
        self.hands = hands
        self.link = link
        self.name = link.name
        self.write = write
        self.clock = clock

    def apply(self, step: Step, memory: Memory) -> Memory:
        """The memory after the step. Raises CloudError for what did not work; it is planned again."""
        match step:
            case Rest():
                return memory
            case Revive():
                return self._revive(memory)
            case Restart():
                self.cloud.stop(self.name)
                return memory
            case Copy():
                return self._copy(step, memory)
            case Leave():
                self.cloud.delete(self.name)
                return self._at(memory, "settling")
            case Settle():
                return self._settle(step, memory)
            case Arrive():
                return self._arrive(memory)
            case Run():
                job.start(self.link, memory.id, step.number, memory.order.command, boots=memory.boots)
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

    def _revive(self, memory: Memory) -> Memory:
        # Counted first: a command that ran before this boot must never be taken for one that was killed in it.
        memory = self.write(msgspec.structs.replace(memory, boots=memory.boots + 1))
        try:
            self.cloud.start(self.name)
        except (NoCapacity, OverQuota):
            return self._refused(memory)
        self.link.close()
        return self.write(msgspec.structs.replace(memory, refusals=0, refused_until=0.0))

    def _refused(self, memory: Memory) -> Memory:
        first_s = _REFUSED_S.get(self.cloud.name, _REFUSED_ELSEWHERE_S)
        wait_s = min(_REFUSED_S_MAX, first_s * 2 ** min(memory.refusals, 10))
        return self.write(
            msgspec.structs.replace(memory, refusals=memory.refusals + 1, refused_until=self.clock() + wait_s)
        )

    def _copy(self, step: Copy, memory: Memory) -> Memory:
        machine = self.cloud.machine(self.name)
        if memory.move is None:
            move = Move(
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

    def _settle(self, step: Settle, memory: Memory) -> Memory:
        move, hand = memory.move, self.hands.find(self.name)
        assert move is not None
        boot = Boot(
            image=move.image,
            script=hand.script if hand else "",
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
        """Boots count on: whatever ran on the old machine does not run on this one."""
        move = memory.move
        assert move is not None
        self.link.close()
        machine = self.cloud.machine(self.name)
        if machine.image == move.image:
            self._tell_record(move, machine)
        # Before the memory of it: an image that nobody remembers is one that somebody pays for.
        self.cloud.delete_image(move.image)
        return self.write(
            msgspec.structs.replace(memory, move=None, boots=memory.boots + 1, refusals=0, refused_until=0.0)
        )

    def _tell_record(self, move: Move, machine: Machine) -> None:
        """The record goes with the machine: what it cost before, and that this image is no drift. Once: a machine that
        the record knows already was told before we were cut short."""
        hand = self.hands.find(self.name)
        if hand is None or (hand.born is not None and hand.born.image == move.image):
            return
        born = hand.born or facts(machine, self.cloud.metadata(self.name))
        born = msgspec.structs.replace(born, image=machine.image)
        self.hands.write(msgspec.structs.replace(hand, born=born, extra_usd=hand.extra_usd + move.cost_usd))

    def _end(self, step: End, memory: Memory) -> Memory:
        memory = self.write(msgspec.structs.replace(memory, ending=step.ending, why=step.why, exit_code=step.exit_code))
        try:
            if step.then == "stop":
                care.stop(self.cloud, self.hands, self.name)
            elif step.then == "delete":
                care.delete(self.cloud, self.hands, self.name)
        except NotFound:
            pass  # it is gone, which is more than was asked
        except CloudError:
            # Over is over; but the machine must not go on billing because of one lost call.
            self.write(msgspec.structs.replace(memory, ending=None))
            raise
        return memory
