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

from outlast.clouds.cloud import LABEL_HAND, Cloud, Machine
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import IDLE_S
from outlast.workspace.books import Books
from outlast.workspace.hand import Hand, Hands
from outlast.workspace.lease import computer
from outlast.workspace.workspace import Workspace

# How often it asks whether it is still wanted.
_LOOK_S = 15.0


class Station:
    """One machine that supervises one workspace."""

    def __init__(
        self,
        workspace: Workspace,
        clouds: Mapping[str, Cloud],
        machine: Machine,
        *,
        say: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
    ) -> None:
        self.hands = Hands(workspace)
        self.cloud = clouds[machine.cloud]
        self.machine = machine
        self.say = say
        self.monotonic = monotonic
        self.idle_s = idle_s
        self.since = monotonic()
        self.looked_at = float("-inf")
        # Whether it has seen a run: before the first one it is patient.
        self.met = False
        self.supervisor = Supervisor(workspace, clouds, who=machine.name, station=machine.name, say=say)
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
        self.say(f"nobody wants {self.machine.name} any more; deleting it")
        hand = self.hands.find(self.machine.name)
        if hand is not None and hand.id == self.machine.labels.get(LABEL_HAND):
            Books(self.hands.workspace).close_machine(hand, self.cloud.machine(self.machine.name))
            self.hands.remove(self.machine.name)
        self.cloud.delete(self.machine.name)

    def _take_up(self) -> None:
        """One that was killed here while it looked a last time has said `deleting`, and may have found a run: it is the
        next one's to look again. What somebody elsewhere has said is meant."""
        hand = self.hands.find(self.machine.name)
        if hand is None or hand.id != self.machine.labels.get(LABEL_HAND) or hand.phase != "deleting":
            return
        if hand.until_idle and hand.by.rpartition(":")[0] == computer():
            self.hands.write(msgspec.structs.replace(hand, phase="ready"))
            self.met = True  # the dead one was done with its runs; nobody need wait for a first one again

    def _record(self) -> Hand | None:
        """Our record, while we are wanted."""
        hand = self.hands.find(self.machine.name)
        if hand is None or hand.id != self.machine.labels.get(LABEL_HAND) or hand.phase == "deleting":
            return None
        return hand

    def _relieved(self, holding: bool) -> bool:
        self.met = self.met or bool(self.supervisor.observer.watched)
        if self.monotonic() - self.looked_at < _LOOK_S and not (holding and self._idle()):
            return False
        self.looked_at = self.monotonic()
        hand = self._record()
        if hand is None:
            return True
        if not hand.until_idle or not holding or not self._idle():
            return False
        # Said first, then looked again: who submits rings first, and looks for us then, so one of us sees the other.
        self.hands.write(msgspec.structs.replace(hand, phase="deleting"))
        self.supervisor.round()
        if self._idle():
            return True
        self.hands.write(hand)
        return False

    def _idle(self) -> bool:
        patient = self.met or self.monotonic() - self.since > self.idle_s
        return patient and self.supervisor.idle()


def title(machine: Machine) -> str:
    """Who supervises, for `outlast ps`: a machine, where it is, and what it costs."""
    price = f"${machine.bills_usd_per_hour:.4f}/h"
    return f"{machine.name} on {machine.cloud} ({machine.type} in {machine.zone}, {price})"
