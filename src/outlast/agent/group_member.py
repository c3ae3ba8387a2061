"""A run among others, on its machine: its seat in the group, where its peers are, and what it alone may have.

Whoever has something exclusive proves it by heartbeat. If the proof fails, whatever the reason, the command is killed
before anybody else may have it: a machine that slept, or cannot reach the workspace, must not go on as if nothing were.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from outlast.agent.attempt import AttemptWriter
from outlast.agent.effects import ExclusiveLost
from outlast.agent.instance import Instance
from outlast.agent.paths import AttemptPaths
from outlast.agent.watch import AgentWatch
from outlast.errors import OutlastError
from outlast.runs.group import Groups, Seat
from outlast.spec.spec import Member
from outlast.store.lease import Lease
from outlast.workspace import RunRequest, Workspace

# A lease lives for two heartbeats; whoever could not renew it stops before it has run out for others.
_HEARTBEATS = 2
_BEAT_FACTOR = 5.0
_STOP_AT = 0.7
# A holder that lives is seen to beat within so many of its beats, also by whoever's clock has just jumped.
_SURE_BEATS = 2.0


def now_s() -> float:
    """Time that also passes while the computer sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def exclusive_lease(workspace: Workspace, name: str, *, who: str, beat_s: float) -> Lease:
    """The lease on something that only one run may have."""
    ttl_s = _HEARTBEATS * _BEAT_FACTOR * beat_s
    name = f"exclusive/{quote(name, safe='')}"
    return Lease(workspace.bucket, name, who=who, ttl_s=ttl_s, sure_s=_SURE_BEATS * beat_s)


class GroupMember:
    """What one attempt has to do with other runs. For a run alone it does nothing."""

    def __init__(self, attempt: AttemptWriter, request: RunRequest, *, instance: Instance, place: AttemptPaths) -> None:
        self.workspace = attempt.workspace
        self.request = request
        self.attempt = attempt.number
        self.instance = instance
        self.beat_s = self.workspace.store.heartbeat_s
        self.peers_file = os.path.join(os.path.dirname(place.notice_file), "peers.json")
        self.groups = Groups(self.workspace)
        self.exclusive = request.spec.exclusive
        who = f"{request.run} attempt {attempt.number}"
        self.lease = exclusive_lease(self.workspace, self.exclusive, who=who, beat_s=self.beat_s)
        self.proven_at = 0.0
        # Why what was ours is not any more.
        self.lost = ""
        self._trouble = ""
        self._losing = threading.Lock()
        self._proving = threading.Lock()
        self._kill: Callable[[], None] = lambda: None
        self.seat = Seat(run=request.run, task="")
        self._left = False
        self._held = False
        self._noted = ""

    @property
    def member(self) -> Member | None:
        return self.request.spec.member

    def join(self) -> None:
        """Take the seat: here I am, and not ready yet."""
        if self.member is None:
            return
        self.seat = Seat(
            run=self.request.run, task=self.member.task, attempt=self.attempt, address=self.instance.address()
        )
        self.groups.sit(self.member.group, self.seat)

    def try_acquire(self, watch: AgentWatch, note: Callable[[str], None]) -> bool:
        """Try once to take the exclusive lock; from then on keep proving it, because to fetch a checkpoint may take
        longer than a lease lives. Returns True if it is held, or if the run needs none."""
        if not self.exclusive or self._held:
            return True
        if not self._prove():
            holder = self.lease.holder()
            text = f"waits for `{self.exclusive}`, which {holder.who} holds" if holder else self._noted
            if text != self._noted:
                note(text)
                self._noted = text
            return False
        self._held = True
        watch.holds = self.exclusive
        watch.spawn(lambda: self._keep(watch))
        watch.spawn(lambda: self._mind(watch))
        return True

    def environment(self) -> dict[str, str]:
        found = {"OUTLAST_FENCE": str(self.lease.epoch)} if self.exclusive else {}
        if self.member is not None:
            peers = self._peers()
            found |= {
                "OUTLAST_GROUP": self.member.group,
                "OUTLAST_TASK": self.member.task,
                "OUTLAST_PEERS": json.dumps(peers),
                "OUTLAST_PEERS_FILE": self.peers_file,
            }
            self._write_peers(peers)
        return found

    def begin(self, watch: AgentWatch, code: str, *, kill: Callable[[], None]) -> None:
        """The command runs: say when it is ready, and tell it where the others are. `kill` ends it, from any thread."""
        with self._losing:
            self._kill = kill
            lost = self.lost
        if lost:
            kill()
        if self.member is not None:
            watch.spawn(lambda: self._sit(watch, code))

    def leave(self) -> None:
        """The command is gone: somebody else may have it, and need not wait until it runs out."""
        if self._left:
            return
        self._left = True
        try:
            # A proof under way would be a beat after the release, or take it anew; the next one would wait for its end.
            with self._proving:
                self.lease.release()
            if self.member is not None and self.seat.task:
                self.groups.sit(self.member.group, msgspec.structs.replace(self.seat, address=""))
        except OutlastError:
            pass  # it runs out by itself

    # What is exclusive

    def _prove(self) -> bool:
        with self._proving:
            asked_at = now_s()
            if self._left or not self.lease.hold():
                return False
        self.proven_at, self._trouble = asked_at, ""
        return True

    def _keep(self, watch: AgentWatch) -> None:
        while not self._left:
            try:
                if not self._prove():
                    holder = self.lease.holder()
                    self._lose(watch, f"was taken over by {holder.who if holder else 'somebody else'}")
                    return
            except OutlastError as problem:
                self._trouble = problem.message
            if watch.pause(self.beat_s):
                return

    def _mind(self, watch: AgentWatch) -> None:
        """Stop in time. By a thread of its own: a store that neither answers nor fails keeps `_keep` waiting."""
        while not self._left:
            if now_s() - self.proven_at > _STOP_AT * self.lease.ttl_s:
                self._lose(watch, f"could not be held: {self._trouble or 'the workspace does not answer'}")
                return
            if watch.pause(self.beat_s / 2):
                return

    def _lose(self, watch: AgentWatch, why: str) -> None:
        """Killed from here: whoever carries out the attempt may be waiting for the same store."""
        with self._losing:
            if self.lost or self._left:
                return
            self.lost, kill = f"`{self.exclusive}` {why}", self._kill
        kill()
        watch.events.put(ExclusiveLost(self.lost))

    # The group

    def _sit(self, watch: AgentWatch, code: str) -> None:
        """Ready once is ready for good; where the others are changes all the time."""
        looked_at = 0.0
        while not self._left:
            try:
                if not self.seat.ready and self._is_ready(code):
                    self.seat = msgspec.structs.replace(self.seat, ready=True)
                    assert self.member is not None
                    self.groups.sit(self.member.group, self.seat)
                    self.workspace.wake(self.request.run)
                if now_s() - looked_at >= self.beat_s or not looked_at:
                    looked_at = now_s()
                    self._write_peers(self._peers())
            except OutlastError:
                pass  # the heartbeat says it if the workspace stays away
            if watch.pause(min(1.0, self.beat_s)):
                return

    def _is_ready(self, code: str) -> bool:
        assert self.member is not None
        kind, _, rest = self.member.ready.partition(":")
        if kind == "file":
            return os.path.exists(os.path.join(code, rest))
        if kind == "port":
            return any(_listens(address, int(rest)) for address in ("127.0.0.1", self.seat.address))
        return kind == "started"

    def _peers(self) -> dict[str, list[str]]:
        """Task → addresses of those who are there."""
        assert self.member is not None
        peers: dict[str, list[str]] = {}
        for seat in self.groups.seats(self.member.group):
            if seat.address and seat.run != self.request.run:
                peers.setdefault(seat.task, []).append(seat.address)
        return peers

    def _write_peers(self, peers: dict[str, list[str]]) -> None:
        draft = f"{self.peers_file}.draft"
        try:
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(peers, file)
            os.replace(draft, self.peers_file)
        except OSError:
            pass  # a full disk; the next time


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False
