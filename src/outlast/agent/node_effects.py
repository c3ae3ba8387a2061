"""The effects of a distributed attempt, for the conductor: the real agent and the simulated one perform them alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from outlast.agent.attempt import AttemptWriter, Verdict
from outlast.agent.effects import NodesReport
from outlast.agent.node import Node, node_end
from outlast.errors import WorkspaceError
from outlast.runs.nodes import NodeStart
from outlast.runs.state import Checkpoint

T = TypeVar("T")


class NodeEffects(ABC):
    """A part of a performer: subclasses provide retries, the address and the restore."""

    attempt: AttemptWriter
    node: Node | None
    # The addresses of all machines, in the order of their ranks; known from the start on.
    addresses: tuple[str, ...] = ()
    # The checkpoint in the folder, and the newest one that was tried.
    resumed: Checkpoint | None
    tried: str

    @abstractmethod
    def _with_retries(self, act: Callable[[], T]) -> T:
        """Retry while the store is unreachable, while the machine prepares."""

    @abstractmethod
    def _with_long_retries(self, act: Callable[[], None]) -> None:
        """Retry for as long as the work of an attempt is worth."""

    @abstractmethod
    def _address(self) -> str:
        """Return the address of this machine for the others."""

    @abstractmethod
    def _restore(self, candidates: list[Checkpoint]) -> Checkpoint | None:
        """Restore the newest of the candidates that is intact. Returns the checkpoint in the folder."""

    def restore(self) -> Checkpoint | None:
        candidates = self._with_retries(self.attempt.checkpoints)
        node = self.node
        if node is None:
            return self._restore(candidates)
        # A checkpoint may be damaged in the part of one node only. All nodes must restore the same one.
        damaged = self._with_retries(node.damaged)
        candidates = [one for one in candidates if one.id not in damaged]
        resumed = self._restore(candidates)
        self._report_damaged(node, candidates, resumed)
        if resumed is not None and not any(one.id == resumed.id for one in candidates):
            raise WorkspaceError(
                f"checkpoint {resumed.id} is damaged on another node; the next attempt starts without it"
            )
        return resumed

    def _report_damaged(self, node: Node, candidates: list[Checkpoint], resumed: Checkpoint | None) -> None:
        """Report the candidates that are newer than the restored one: they were tried first."""
        for one in candidates:
            if resumed is not None and one.id == resumed.id:
                return
            self._with_retries(partial(node.report_damaged, one.id))

    def report_ready(self) -> None:
        node = self._required_node()
        self._with_retries(lambda: node.report_ready(self._address()))

    def all_ready(self) -> bool:
        return self._with_retries(self._required_node().all_ready)

    def report_start(self, resumed: Checkpoint | None) -> None:
        node = self._required_node()
        self._with_retries(lambda: node.report_start(resumed.id if resumed is not None else ""))
        self.read_start()

    def read_start(self) -> NodeStart | None:
        start = self._with_retries(self._required_node().read_start)
        if start is not None:
            self.addresses = start.addresses
        return start

    def restore_exactly(self, checkpoint: str) -> Checkpoint | None:
        if (self.resumed.id if self.resumed is not None else "") == checkpoint:
            return self.resumed
        if not checkpoint:
            raise WorkspaceError("the other nodes start without a checkpoint, and this one has restored one")
        self.tried = ""
        resumed = self._restore([one for one in self._with_retries(self.attempt.checkpoints) if one.id == checkpoint])
        if resumed is None or resumed.id != checkpoint:
            node = self._required_node()
            # The next attempt resumes from an older one.
            self._with_retries(lambda: node.report_damaged(checkpoint))
            raise WorkspaceError(f"cannot restore checkpoint {checkpoint}, from which the other nodes resume")
        return resumed

    def read_nodes(self, since: float) -> NodesReport:
        node = self._required_node()
        self._with_retries(node.refresh)
        return node.report(since)

    def report_end(
        self, verdict: Verdict, exit_code: int | None, outputs: int, cut: bool, unsaved: bool = False
    ) -> None:
        node = self._required_node()
        end = node_end(verdict, exit_code=exit_code, outputs=outputs, cut=cut, unsaved=unsaved, shards=node.shards)
        self._with_long_retries(lambda: node.report_end(end))

    def _required_node(self) -> Node:
        assert self.node is not None, "the run has one node"
        return self.node
