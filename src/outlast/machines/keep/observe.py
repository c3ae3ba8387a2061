"""All the looking of a keeper: cloud, record and, over ssh, the command. Decides nothing; what failed is said."""

from __future__ import annotations

import time
from collections.abc import Callable

from outlast.clouds.cloud import Machine, Needs, Offer, Workshop
from outlast.errors import CloudError, NotFound, OutlastError, WorkspaceError
from outlast.machines.care import record_of
from outlast.machines.keep import job
from outlast.machines.keep.plan import MOVE_AFTER
from outlast.machines.keep.world import Job, Memory, Sight
from outlast.machines.look import cost_usd
from outlast.machines.ssh import Link
from outlast.workspace.hand import Hand, Hands


class Observer:
    """The eyes of one keeper. Remembers only since when the machine is deaf."""

    def __init__(
        self, cloud: Workshop, hands: Hands, link: Link, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.cloud = cloud
        self.hands = hands
        self.link = link
        self.monotonic = monotonic
        self.deaf_since: float | None = None

    def observe(self, memory: Memory, now: float) -> Sight:
        try:
            machine, hand = self._look()
            elsewhere = self._elsewhere(memory, machine)
        except (CloudError, WorkspaceError) as problem:
            return Sight(now=now, memory=memory, blind=problem.message)
        found, deaf = self._ask(memory, machine)
        if not deaf:
            self.deaf_since = None
        elif self.deaf_since is None:
            self.deaf_since = self.monotonic()
        return Sight(
            now=now,
            memory=memory,
            machine=machine,
            hand=hand,
            job=found,
            deaf=deaf,
            deaf_s=0.0 if self.deaf_since is None else self.monotonic() - self.deaf_since,
            cost_usd=cost_usd(machine, hand),
            elsewhere=elsewhere,
        )

    def _look(self) -> tuple[Machine | None, Hand | None]:
        try:
            machine = self.cloud.machine(self.link.name)
        except NotFound:
            return None, self.hands.find(self.link.name)
        return machine, record_of(self.hands, self.cloud, machine)

    def _elsewhere(self, memory: Memory, machine: Machine | None) -> tuple[Offer, ...]:
        move = memory.move
        if move is not None:
            return tuple(self.cloud.offers(Needs(type=move.type, spot=move.spot, disk_gb=move.disk_gb)))
        if machine is None or machine.status != "stopped" or memory.refusals < MOVE_AFTER:
            return ()
        return tuple(self.cloud.offers(Needs(type=machine.type, spot=machine.spot, disk_gb=machine.disk_gb)))

    def _ask(self, memory: Memory, machine: Machine | None) -> tuple[Job | None, str]:
        """How the command is; why nobody can tell."""
        if machine is None or machine.status != "running" or not memory.order.command:
            return None, ""
        order = memory.order
        try:
            found = job.probe(
                self.link, memory.id, boots=memory.boots, halt_after_s=order.halt_after_s, watch=order.watch
            )
        except OutlastError as problem:
            # Whatever it was, the next look begins with the address that the cloud tells then.
            self.link.close()
            return None, problem.message
        return found, ""
