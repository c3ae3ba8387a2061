"""Records of the machines that no run owns: made by people, or for a while by a command. Refuses to ask a cloud.

A record is written before its machine is launched and removed after it was deleted. A machine that carries the label of
such a record and has none, or one whose maker is gone, is an orphan: so whoever is killed leaves nothing unknown.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import msgspec

from outlast.errors import Damaged, Exists, Missing, UsageError
from outlast.workspace.codec import decoded, readable
from outlast.workspace.lease import Holder, began, computer
from outlast.workspace.workspace import Workspace

# `making`, `deleting`: somebody is at it, and says so again and again; `ready`: it stays until it is deleted.
Phase = Literal["making", "ready", "deleting"]

# Whoever makes a machine and has not said so for this long is gone.
QUIET_S = 900.0
_CLUSTER = "cluster:"


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What can be told of a machine from outside, at one moment."""

    type: str = ""
    disk_gb: float = 0.0
    image: str = ""
    labels: dict[str, str] = {}
    metadata: dict[str, str] = {}


class Hand(msgspec.Struct, frozen=True, kw_only=True):
    """One machine that no run owns: who wanted it, how it was asked for, how it was when it was new."""

    name: str
    # Also a label of the machine. Another machine of that name, made by somebody else, is told apart by it.
    id: str
    cloud: str
    phase: Phase = "making"
    # `host:pid.began` of the process that makes or deletes it.
    by: str = ""
    who: str = ""
    # What it is for: `hand`, or the name of the command that made it for its own use.
    purpose: str = "hand"
    asked_at: float = 0.0
    # Nobody's after this time, by the store's clock, though it is `ready`; 0: it stays until it is deleted.
    until: float = 0.0
    spot: bool = False
    script: str = ""
    image: str = ""
    zones: tuple[str, ...] = ()
    # How it was when it was made; what differs now has drifted.
    born: Facts | None = None
    # Stopped on purpose: whoever keeps it alive leaves it alone.
    wanted: Literal["running", "stopped"] = "running"
    # It supervises, and the end of the last run is its own: whoever finds it idle may delete it.
    until_idle: bool = False
    # What it cost beyond what its cloud's figures tell: under another type, in another zone, before it came here.
    extra_usd: float = 0.0


class HandView(msgspec.Struct, frozen=True, kw_only=True):
    """A record as the supervisor sees it: enough to tell whether its machine is anybody's."""

    id: str
    phase: Phase
    # Since its maker last said something, by the store's clock; endless for one that is known to be gone.
    quiet_s: float = 0.0
    # It was to be kept until a time that has passed.
    overdue: bool = False
    until_idle: bool = False
    who: str = ""
    # The cluster that it is of.
    cluster: str = ""
    # It is a worker of a cluster whose head is gone, and has waited for another for long enough.
    headless: bool = False

    @property
    def abandoned(self) -> bool:
        return self.overdue or self.headless or (self.phase != "ready" and self.quiet_s > QUIET_S)


class _ClusterSpec(msgspec.Struct, frozen=True, kw_only=True):
    orphan_s: float = 300.0


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """As much of a cluster's record as tells whether its machines are anybody's."""

    phase: Phase = "making"
    by: str = ""
    # The machine without which its workers are of no use, and for how long they wait for another.
    head: str = ""
    spec: _ClusterSpec = _ClusterSpec()


def cluster_purpose(cluster: str) -> str:
    """What a machine of a cluster is for: with the cluster's record it becomes nobody's."""
    return f"{_CLUSTER}{cluster}"


def cluster_of(purpose: str) -> str:
    """The other way round; empty if it is for something else."""
    return purpose.removeprefix(_CLUSTER) if purpose.startswith(_CLUSTER) else ""


def name_of_this_process() -> str:
    """For people, and for leases, which run out by themselves."""
    return f"{computer()}:{os.getpid()}"


def mark_of_this_process() -> str:
    """For records, whose maker is believed for long: another process may have its number by then, and is not it."""
    begun = began(os.getpid())
    return f"{name_of_this_process()}.{begun}" if begun else name_of_this_process()


def supervisor_name(workspace: Workspace) -> str:
    """Of the machine that supervises a workspace: derived, so that whoever asks for one finds the one that is there."""
    return f"outlast-supervisor-{workspace.id[:6]}"


def is_stationed(who: str) -> bool:
    """Whether it is a machine of a cloud that holds a lease, and not a process of somebody's computer."""
    return who.startswith("outlast-supervisor-")


class Hands:
    """The records of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.bucket = workspace.bucket
        # Records that could not be read, and why: whose those machines are nobody can tell.
        self.damaged: dict[str, str] = {}

    def create(self, hand: Hand) -> Hand:
        """Write the intent. Raises Exists when the name is taken; a record whose maker is gone is taken over only by
        whoever has seen to its machine, and removed it."""
        fresh = msgspec.structs.replace(hand, by=mark_of_this_process())
        try:
            self.bucket.create(_key(hand.name), msgspec.json.encode(fresh))
        except Exists:
            found = self.find(hand.name)
            if found is None or found.id != hand.id:
                raise
        return fresh

    def write(self, hand: Hand) -> Hand:
        """Replace a record; also how a maker says that it is still there. Raises UsageError for one that was given up
        for gone, as after a long sleep, while somebody else made another machine of that name."""
        found = self._other(hand)
        if found is not None:
            raise UsageError(
                f"`{hand.name}` is another machine by now: {found.who or 'somebody'} made it on {found.cloud}",
                hint="take another name",
            )
        fresh = msgspec.structs.replace(hand, by=mark_of_this_process())
        self.bucket.put(_key(hand.name), msgspec.json.encode(fresh), durable=True)
        return fresh

    def find(self, name: str) -> Hand | None:
        """The record of that name. Raises Damaged."""
        try:
            return decoded(self.bucket.get(_key(name)), Hand, _key(name))
        except Missing:
            return None

    def legible(self, name: str) -> Hand | None:
        """The record, or none if it cannot be read: whoever ends a machine must be able to without it."""
        try:
            return self.find(name)
        except Damaged:
            return None

    def all(self) -> Sequence[Hand]:
        """All that can be read; the others are in `damaged`."""
        names = [child.removesuffix(".json") for child in self.bucket.children("machines/") if child.endswith(".json")]
        return readable(names, self.find, self.damaged)

    def recorded(self, name: str) -> bool:
        """Whether there is a record of that name, legible or not."""
        return f"{name}.json" in self.bucket.children("machines/")

    def any(self) -> bool:
        """Whether there is a record at all; one listing."""
        return any(child.endswith(".json") for child in self.bucket.children("machines/"))

    def view(self, name: str) -> HandView | None:
        """What a supervisor need know. Raises Damaged."""
        hand = self.find(name)
        if hand is None:
            return None
        if (cluster := cluster_of(hand.purpose)) and self.without_cluster(cluster):
            return HandView(id=hand.id, phase="deleting", quiet_s=float("inf"))
        if hand.phase == "ready":
            overdue = bool(hand.until) and self.now() > hand.until
            return HandView(
                id=hand.id,
                phase=hand.phase,
                overdue=overdue,
                until_idle=hand.until_idle,
                who=hand.who,
                cluster=cluster_of(hand.purpose),
            )
        if Holder(who=hand.by, epoch=0).plainly_dead():
            return HandView(id=hand.id, phase=hand.phase, quiet_s=float("inf"), who=hand.who)
        try:
            said_at = self.bucket.head(_key(name)).modified_at
        except Missing:
            return None
        quiet_s = max(0.0, self.now() - said_at)
        return HandView(id=hand.id, phase=hand.phase, quiet_s=quiet_s, who=hand.who)

    def without_cluster(self, name: str) -> bool:
        """Whether the cluster is gone, or whoever brought it up or down was killed. Raises Damaged."""
        key = f"clusters/{name}.json"
        try:
            cluster = decoded(self.bucket.get(key), ClusterView, key)
            if cluster.phase == "ready":
                return False
            said_at = self.bucket.head(key).modified_at
        except Missing:
            return True
        return Holder(who=cluster.by, epoch=0).plainly_dead() or self.now() - said_at > QUIET_S

    def cluster(self, name: str) -> ClusterView | None:
        """Raises Damaged."""
        key = f"clusters/{name}.json"
        try:
            return decoded(self.bucket.get(key), ClusterView, key)
        except Missing:
            return None

    def head_silent_s(self, cluster: str, head: str) -> float:
        """Since the head last said something, by the store's clock; endless if it never did, or took its leave."""
        try:
            said_at = self.bucket.head(f"clusters/{cluster}/state/{head}").modified_at
        except Missing:
            return float("inf")
        return max(0.0, self.now() - said_at)

    def now(self) -> float:
        """The store's own now: the time it gives to a write of ours."""
        return self.bucket.put("clock", b"").modified_at

    def remove(self, name: str) -> None:
        """Removing what is not there is fine."""
        self.bucket.delete(_key(name))

    def take_back(self, hand: Hand) -> None:
        """Remove this very record, and not that of another machine which has its name by now: without it that one would
        be reaped."""
        if self._other(hand) is None:
            self.remove(hand.name)

    def _other(self, hand: Hand) -> Hand | None:
        """The record in the place of this one, of another machine."""
        found = self.legible(hand.name)
        return found if found is not None and found.id != hand.id else None


def _key(name: str) -> str:
    return f"machines/{name}.json"
