"""The effects of a distributed attempt, for the conductor: the real agent and the simulated one perform them alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
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
        """Restore the newest of the candidates that is intact."""

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
        if not checkpoint or (self.resumed is not None and self.resumed.id == checkpoint):
            return self.resumed if checkpoint else None
        self.tried = ""
        resumed = self._restore([one for one in self._with_retries(self.attempt.checkpoints) if one.id == checkpoint])
        if resumed is None or resumed.id != checkpoint:
            raise WorkspaceError(f"cannot restore checkpoint {checkpoint}, from which the other nodes resume")
        return resumed

    def read_nodes(self, since: float) -> NodesReport:
        node = self._required_node()
        self._with_retries(node.refresh)
        return node.report(since)

    def report_end(self, verdict: Verdict, exit_code: int | None, outputs: int, cut: bool) -> None:
        node = self._required_node()
        end = node_end(verdict, exit_code=exit_code, outputs=outputs, cut=cut, shards=node.shards)
        self._with_long_retries(lambda: node.report_end(end))

    def _required_node(self) -> Node:
        assert self.node is not None, "the run has one node"
        return self.node
