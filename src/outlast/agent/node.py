"""One machine of a distributed attempt: what it reports to the leader, and as the leader, its view of the others.

Uses no threads and no network besides the workspace, so that the simulation runs the same code.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outlast.agent.attempt import AttemptWriter, Verdict
from outlast.agent.effects import NodeFailed, NodesReport
from outlast.runs.members import survivors
from outlast.runs.nodes import NodeAlive, NodeEnd, NodeObjects, NodeReady, NodeShard, NodeStart
from outlast.runs.state import Attempt, RunState
from outlast.spec.quantity import describe_s
from outlast.store.bucket import Bucket

# A machine that shows no sign of life for this many intervals is not waited for after a notice.
_MISSED = 4
# The time to save after the loss of a machine: a training that waits for it does not react to SIGTERM.
LOST_GRACE_S = 20.0


class NodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """The rank of this machine among those of its attempt, and its name."""

    rank: int = 0
    nodes: int = 1
    machine: str = ""


def place_in(attempt: Attempt, machine: str) -> NodePlace:
    """Return the place of a machine among those of an attempt."""
    return NodePlace(rank=attempt.machines.index(machine), nodes=attempt.nodes, machine=machine)


ALONE = NodePlace()


class Node:
    """The reports of one machine. `now` is a monotonic clock."""

    def __init__(
        self,
        bucket: Bucket,
        run: str,
        attempt: int,
        *,
        rank: int,
        nodes: int,
        now: Callable[[], float],
        boot_s: float,
        silence_s: float,
        beat_s: float,
        poll_s: float,
    ) -> None:
        self.rank = rank
        self.nodes = nodes
        self.beat_s = beat_s
        # The pause between two reads of the story and of the reports.
        self.poll_s = poll_s
        # The number of shards that this machine has stored.
        self.shards = 0
        self._objects = NodeObjects(bucket, run, attempt)
        self._now = now
        self._boot_s = boot_s
        self._silence_s = silence_s
        self._began = now()
        self._changed_at: dict[tuple[int, str], float] = {}
        # By rank: when its signs of life were seen.
        self._beats: dict[int, list[float]] = {}
        self._numbers: dict[int, list[int]] = {}
        self._ends: dict[int, NodeEnd] = {}
        self._failed: set[int] = set()

    @property
    def others(self) -> range:
        """The ranks that report to the leader."""
        return range(1, self.nodes)

    # Reports of this machine

    def report_alive(self, phase: str, *, writes: bool) -> None:
        # Also when all is stored: the leader may have listed the shards before it reads this.
        self._objects.report_alive(self.rank, NodeAlive(phase=phase, writes=writes or self.shards > 0))

    def report_ready(self, address: str) -> None:
        self._objects.report_ready(self.rank, NodeReady(address=address))

    def report_shard(self, number: int, shard: NodeShard) -> None:
        self._objects.report_shard(self.rank, number, shard)
        self.shards = number

    def report_end(self, end: NodeEnd) -> None:
        self._objects.report_end(self.rank, end)

    def read_start(self) -> NodeStart | None:
        return self._objects.start()

    def report_damaged(self, checkpoint: str) -> None:
        self._objects.report_damaged(checkpoint)

    def damaged(self) -> frozenset[str]:
        """Return the checkpoints that this node or another one could not restore."""
        return self._objects.damaged()

    # The leader's view

    def refresh(self) -> None:
        """Read which reports are new. One listing."""
        now, numbers = self._now(), {rank: list[int]() for rank in self.others}
        for (rank, kind), at in self._objects.changed_at().items():
            if kind.startswith("shards/") and rank in numbers:
                numbers[rank].append(int(kind.removeprefix("shards/")))
            # An older listing may arrive after a newer one.
            if at <= self._changed_at.get((rank, kind), 0.0):
                continue
            if kind == "end" and rank in numbers and (end := self._objects.end(rank)) is not None:
                self._ends[rank] = end
            elif kind == "alive":
                self._beats.setdefault(rank, []).append(now)
            # Last: a read that fails is repeated.
            self._changed_at[rank, kind] = at
        self._numbers = numbers

    def all_ready(self) -> bool:
        self.refresh()
        return all((rank, "ready") in self._changed_at for rank in range(self.nodes))

    def report_start(self, checkpoint: str) -> None:
        ready = [self._objects.ready(rank) for rank in range(self.nodes)]
        addresses = tuple(one.address if one is not None else "" for one in ready)
        self._objects.report_start(NodeStart(checkpoint=checkpoint, addresses=addresses))

    def lost(self) -> list[tuple[int, str]]:
        """Return the machines that have not started in time or are silent, each with the reason."""
        found, now = [], self._now()
        for rank in self.others:
            if rank in self._ends:
                continue
            if rank not in self._beats and now - self._began > self._boot_s:
                found.append((rank, f"its machine has not started after {describe_s(now - self._began)}"))
            elif rank in self._beats and now - self._seen_at(rank) > self._silence_s:
                found.append((rank, f"no heartbeat for {describe_s(now - self._seen_at(rank))}"))
        return found

    def watch(self, attempt: AttemptWriter) -> list[NodeFailed]:
        """Give up the machines that are lost, and return the failures on others that are new."""
        self.refresh()
        failed = [NodeFailed(rank, end) for rank, end in self._ends.items() if not end.finished]
        new = [one for one in failed if one.rank not in self._failed]
        self._failed |= {one.rank for one in new}
        mine = attempt.mine
        for rank, why in self.lost():
            if mine is not None and mine.phase != "over" and rank not in mine.gone:
                attempt.lose_node(rank, why, LOST_GRACE_S)
        return new

    def beats(self, rank: int) -> int:
        """Return how many signs of life of a machine were seen."""
        return len(self._beats.get(rank, ()))

    def is_responsive(self, rank: int) -> bool:
        return self._now() - (self._seen_at(rank) or self._began) < _MISSED * self.beat_s

    def _seen_at(self, rank: int) -> float:
        """Return when the last sign of life was seen; 0 without one."""
        beats = self._beats.get(rank)
        return beats[-1] if beats else 0.0

    def count_alive(self) -> int:
        """Return the number of machines that show signs of life, this one included."""
        return 1 + sum(rank in self._beats and self.is_responsive(rank) for rank in self.others)

    def alive(self, rank: int) -> NodeAlive | None:
        return self._objects.alive(rank)

    def shard_numbers(self, rank: int) -> list[int]:
        """Return the numbers of the shards that a machine has stored, oldest first."""
        return sorted(self._numbers.get(rank, []))

    def shard(self, rank: int, number: int) -> NodeShard | None:
        return self._objects.shard(rank, number)

    def forget_shard(self, rank: int, number: int) -> None:
        self._objects.delete_shard(rank, number)

    def end_of(self, rank: int) -> NodeEnd | None:
        return self._ends.get(rank)

    def report(self, since: float) -> NodesReport:
        """Return how far the other machines are, as of the last refresh."""
        left = [rank for rank in self.others if rank not in self._ends]
        failed = [NodeFailed(rank, end) for rank, end in self._ends.items() if not end.finished]
        return NodesReport(
            ended=not left,
            responsive=any(self.is_responsive(rank) for rank in left),
            # The first sign of life after a moment may have been written before it.
            seen=all(len([at for at in self._beats.get(rank, []) if at > since]) > 1 for rank in left),
            outputs=sum(end.outputs for end in self._ends.values()),
            failed=tuple(sorted(failed, key=lambda one: (one.end.outcome != "preempted", one.rank))),
        )


def node_end(
    verdict: Verdict, *, exit_code: int | None, outputs: int, cut: bool, unsaved: bool, shards: int
) -> NodeEnd:
    """Return the report of the end of the command on one machine."""
    return NodeEnd(
        finished=verdict.finished,
        outcome=verdict.outcome,
        why=verdict.why,
        hopeless=verdict.hopeless,
        hint=verdict.hint,
        exit_code=exit_code,
        cut=cut,
        outputs=outputs,
        unsaved=unsaved,
        shards=shards,
    )


def next_attempt(state: RunState, number: int, machine: str) -> Attempt | bool | None:
    """Return the next attempt of this machine; False if it has none; None while that is not decided."""
    if not state.alive:
        return False
    for attempt in reversed(state.attempts[number:]):
        if machine in attempt.machines and attempt.phase != "over":
            return attempt
    return None if machine in survivors(state).values() else False
