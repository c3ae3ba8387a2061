"""The loop of a keeper: looks, decides, acts, and never gives up for an error that may pass. One keeper a machine."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import msgspec

from outlast.clouds.cloud import Workshop
from outlast.errors import BadRequest, CloudError, Missing, OutlastError, UsageError, WorkspaceError
from outlast.machines.keep import job
from outlast.machines.keep.apply import Applier
from outlast.machines.keep.observe import Observer
from outlast.machines.keep.plan import plan
from outlast.machines.keep.world import End, Memory, Order, Rest, Step, describe
from outlast.machines.ssh import Link
from outlast.workspace.codec import decoded
from outlast.workspace.hand import Hands, name_of_this_process
from outlast.workspace.lease import Lease

_LEASE_S = 20.0
_PACE_S = {"local": 0.5}
_PACE_ELSEWHERE_S = 10.0
_TROUBLE_S_MAX = 120.0


class Keeper:
    """Keeps one machine. What it must not forget is in the workspace: one that is killed is replaced by another."""

    def __init__(
        self,
        cloud: Workshop,
        hands: Hands,
        name: str,
        *,
        say: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cloud = cloud
        self.hands = hands
        self.name = name
        self.say = say
        self.clock = clock
        self.link = Link(cloud, name)
        self.observer = Observer(cloud, hands, self.link)
        self.applier = Applier(cloud, hands, self.link, write=self._write, clock=clock)
        self.lease = Lease(hands.bucket, f"machine-{name}", who=name_of_this_process(), ttl_s=_LEASE_S)
        # Another one holds the lease: nothing more may be done here.
        self.lost = threading.Event()
        self.pace_s = _PACE_S.get(cloud.name, _PACE_ELSEWHERE_S)

    def keep(self, order: Order, *, stop: threading.Event, once: bool = False, anew: bool = False) -> Memory:
        """Until it is over, or until told to stop; with `once`, until all is as it should be now. What is remembered
        then. Raises BadRequest when somebody else keeps the machine, or kept it for another command."""
        if not self.lease.hold():
            holder = self.lease.holder()
            raise BadRequest(
                f"{holder.who if holder else 'somebody'} keeps {self.name} already",
                hint="one keeper is enough; stop that one first",
            )
        ended = threading.Event()
        self.lost.clear()
        beating = threading.Thread(target=self._beat, args=(ended,), daemon=True)
        beating.start()
        try:
            return self._rounds(self._begin(order, anew=anew), stop, once=once)
        finally:
            ended.set()
            beating.join()
            self.link.close()
            try:
                self.lease.release()
            except OutlastError:
                pass  # it expires by itself

    def _beat(self, ended: threading.Event) -> None:
        """Hold the lease also while a step takes minutes. Whoever lost it leaves: another one is at it."""
        while not ended.wait(_LEASE_S / 4):
            try:
                if not self.lease.hold():
                    self.say(f"{self.name}: somebody else keeps it now; leaving")
                    self.lost.set()
                    return
            except OutlastError:
                continue  # the store does not answer; nor does it to anybody else

    def _begin(self, order: Order, *, anew: bool) -> Memory:
        """The memory to go on with: that of a keeper before us, if it was given the same order and is not through."""
        hand = self.hands.find(self.name)
        if hand is not None and hand.wanted == "stopped":
            # Whoever asks for it to be kept wants it to run.
            self.hands.write(msgspec.structs.replace(hand, wanted="running"))
        found = self.remembered()
        if found is not None and found.ending is None and not anew:
            if found.order.command != order.command:
                raise UsageError(
                    f"{self.name} is kept for another command: {found.order.command[:80] or 'none'}",
                    hint="say --anew to end that one, or keep it with the same --command",
                )
            return self._write(msgspec.structs.replace(found, order=order))
        if found is not None and found.ending is None and found.move is not None:
            raise UsageError(
                f"{self.name} is on its way to another zone", hint="keep it with the same --command until it is there"
            )
        if found is not None and found.order.command:
            self._end_former(found)
        return self._write(Memory(id=secrets.token_hex(6), order=order))

    def _end_former(self, found: Memory) -> None:
        machine = self.cloud.machine(self.name)
        if machine.status == "running":
            now = job.probe(self.link, found.id, boots=found.boots)
            if now.alive:
                job.kill(self.link, found.id, now.number)

    def remembered(self) -> Memory | None:
        try:
            return decoded(self.hands.bucket.get(self._key), Memory, self._key)
        except Missing:
            return None

    def _rounds(self, memory: Memory, stop: threading.Event, *, once: bool) -> Memory:
        said, troubles = "", 0
        while not stop.is_set() and not self.lost.is_set():
            step: Step = plan(self.observer.observe(memory, self.clock()))
            text = describe(self.name, step)
            if text != said:
                self.say(text)
                said = text
            trouble = isinstance(step, Rest) and step.trouble
            try:
                memory = self.applier.apply(step, memory)
            except (CloudError, WorkspaceError) as problem:
                self.say(f"{self.name}: that did not work: {problem.message}; trying again")
                said, trouble = "", True
                memory = self.remembered_or(memory)
            else:
                if isinstance(step, End):
                    return memory
            if once and isinstance(step, Rest) and step.settled:
                return memory
            troubles = troubles + 1 if trouble else 0
            if isinstance(step, Rest) or trouble:
                stop.wait(min(_TROUBLE_S_MAX, self.pace_s * 2 ** min(troubles, 12)) if trouble else self.pace_s)
        return memory

    def remembered_or(self, memory: Memory) -> Memory:
        """A step that failed half-way may have written before it failed."""
        try:
            return self.remembered() or memory
        except WorkspaceError:
            return memory

    @property
    def _key(self) -> str:
        return f"keep/{self.name}.json"

    def _write(self, memory: Memory) -> Memory:
        self.hands.bucket.put(self._key, msgspec.json.encode(memory), durable=True)
        return memory
