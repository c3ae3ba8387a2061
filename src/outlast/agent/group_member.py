"""An attempt's relations to other runs: its seat in the group, the addresses of its peers, its exclusive lock.

The holder of the lock renews its lease by heartbeat. If a renewal fails, for any reason, the command is killed before
another run can take the lock: a machine that slept, or that cannot reach the workspace, must not continue.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from urllib.parse import quote

import msgspec

from outlast.agent.attempt import AttemptWriter
from outlast.agent.database_lock import DatabaseLock, database_lock, now_s
from outlast.agent.effects import ExclusiveLost
from outlast.agent.instance import Instance
from outlast.agent.paths import AttemptPaths
from outlast.agent.watch import AgentWatch
from outlast.errors import OutlastError
from outlast.runs.group import Groups, Seat
from outlast.spec.spec import Member
from outlast.store.lease import Lease
from outlast.workspace import RunRequest, Workspace

# A lease lives for two heartbeats; a holder that could not renew it stops before it expires.
_HEARTBEATS = 2
_BEAT_FACTOR = 5.0
_STOP_AT = 0.7
# An observer sees a renewal of a living holder within this many heartbeats, even if its own clock has just jumped.
_SURE_BEATS = 2.0


def exclusive_lease(workspace: Workspace, name: str, *, who: str, beat_s: float) -> Lease:
    """Return the lease behind an exclusive lock."""
    ttl_s = _HEARTBEATS * _BEAT_FACTOR * beat_s
    name = f"exclusive/{quote(name, safe='')}"
    return Lease(workspace.bucket, name, who=who, ttl_s=ttl_s, sure_s=_SURE_BEATS * beat_s)


class GroupMember:
    """The seat and the exclusive lock of one attempt. Does nothing for a run that has neither."""

    def __init__(self, attempt: AttemptWriter, request: RunRequest, *, instance: Instance, paths: AttemptPaths) -> None:
        self.workspace = attempt.workspace
        self.request = request
        self.attempt = attempt.number
        self.instance = instance
        self.beat_s = self.workspace.store.heartbeat_s
        self.peers_file = os.path.join(os.path.dirname(paths.notice_file), "peers.json")
        self.groups = Groups(self.workspace)
        self.exclusive = request.spec.exclusive
        who = f"{request.run} attempt {attempt.number}"
        self.lease = exclusive_lease(self.workspace, self.exclusive, who=who, beat_s=self.beat_s)
        # The same lock in the database that it names; workspaces do not see each other's leases.
        self.database: DatabaseLock | None = None
        self.renewed_at = 0.0
        # Why the lock was lost.
        self.lost = ""
        self._trouble = ""
        self._losing = threading.Lock()
        self._renewing = threading.Lock()
        self._kill: Callable[[], None] = lambda: None
        self.seat = Seat(run=request.run, task="")
        self._left = False
        self._held = False
        self._noted = ""

    @property
    def member(self) -> Member | None:
        return self.request.spec.member

    def join(self) -> None:
        """Publish the seat of this attempt: its address, not ready yet."""
        if self.member is None:
            return
        self.seat = Seat(
            run=self.request.run, task=self.member.task, attempt=self.attempt, address=self.instance.address()
        )
        self.groups.sit(self.member.group, self.seat)

    def try_acquire(
        self, watch: AgentWatch, note: Callable[[str], None], secrets: Mapping[str, str] | None = None
    ) -> bool:
        """Try once to take the exclusive lock, and renew it from then on: a restore may take longer than the lease.

        `secrets` may have the address of the database that the lock names. Returns True if it is held, or if the run
        needs none. Raises AttemptAborted if its database refuses it.
        """
        if not self._try_acquire_here(watch, note):
            return False
        if self.database is None and self.exclusive:
            variables = {**self.request.spec.env, **(secrets or {})}
            who = f"{self.lease.who} in {self.workspace.url}"
            self.database = database_lock(self.exclusive, variables, who=who, bucket=self.workspace.bucket)
        if self.database is None:
            return True
        return self.database.try_acquire(watch, note, lambda why: self._lose_lock(watch, why))

    def _try_acquire_here(self, watch: AgentWatch, note: Callable[[str], None]) -> bool:
        """Try once to take the lock of this workspace."""
        if not self.exclusive or self._held:
            return True
        if not self._renew():
            holder = self.lease.holder()
            text = f"waiting for `{self.exclusive}`, held by {holder.who}" if holder else self._noted
            if text != self._noted:
                note(text)
                self._noted = text
            return False
        self._held = True
        watch.holds = self.exclusive
        watch.spawn(lambda: self._keep_renewing(watch))
        watch.spawn(lambda: self._watch_expiry(watch))
        return True

    def environment(self) -> dict[str, str]:
        fence = self.lease.epoch if self.database is None else self.database.fence
        found = {"OUTLAST_FENCE": str(fence)} if self.exclusive else {}
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
        """Publish when the started command is ready, and write its peers file. `kill` ends it, from any thread."""
        with self._losing:
            self._kill = kill
            lost = self.lost
        if lost:
            kill()
        if self.member is not None:
            watch.spawn(lambda: self._update_seat(watch, code))

    def leave(self) -> None:
        """Release the lock and clear the seat, so that the next run need not wait for the lease to expire."""
        if self._left:
            return
        self._left = True
        try:
            # A renewal in progress could follow the release and take the lock again.
            with self._renewing:
                self.lease.release()
            if self.database is not None:
                self.database.leave()
            if self.member is not None and self.seat.task:
                self.groups.sit(self.member.group, msgspec.structs.replace(self.seat, address=""))
        except OutlastError:
            pass  # the lease expires by itself

    # The exclusive lock

    def _renew(self) -> bool:
        with self._renewing:
            began_at = now_s()
            if self._left or not self.lease.hold():
                return False
        self.renewed_at, self._trouble = began_at, ""
        return True

    def _keep_renewing(self, watch: AgentWatch) -> None:
        while not self._left:
            try:
                if not self._renew():
                    holder = self.lease.holder()
                    self._lose_lock(watch, f"was taken over by {holder.who if holder else 'another run'}")
                    return
            except OutlastError as problem:
                self._trouble = problem.message
            if watch.pause(self.beat_s):
                return

    def _watch_expiry(self, watch: AgentWatch) -> None:
        """Stop before the lease expires. In a separate thread: an unresponsive store blocks `_keep_renewing`."""
        while not self._left:
            if now_s() - self.renewed_at > _STOP_AT * self.lease.ttl_s:
                self._lose_lock(watch, f"could not be renewed: {self._trouble or 'the workspace does not respond'}")
                return
            if watch.pause(self.beat_s / 2):
                return

    def _lose_lock(self, watch: AgentWatch, why: str) -> None:
        """Kill the command from this thread: the agent's main thread may be waiting for the same store."""
        with self._losing:
            if self.lost or self._left:
                return
            self.lost, kill = f"`{self.exclusive}` {why}", self._kill
        kill()
        watch.events.put(ExclusiveLost(self.lost))

    # The group

    def _update_seat(self, watch: AgentWatch, code: str) -> None:
        """Publish once that the command is ready; update the peers file all the time."""
        read_at = 0.0
        while not self._left:
            try:
                if not self.seat.ready and self._is_ready(code):
                    self.seat = msgspec.structs.replace(self.seat, ready=True)
                    assert self.member is not None
                    self.groups.sit(self.member.group, self.seat)
                    self.workspace.wake(self.request.run)
                if now_s() - read_at >= self.beat_s or not read_at:
                    read_at = now_s()
                    self._write_peers(self._peers())
            except OutlastError:
                pass  # the heartbeat thread handles an unreachable workspace
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
        """Return the addresses of the present peers by task."""
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
            pass  # a full disk; the next round tries again


def _listens(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=1.0):
            return True
    except OSError:
        return False
