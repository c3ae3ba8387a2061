"""The story of a run as the witness of the simulation reads it, and how it reports a violated invariant."""

from __future__ import annotations

from typing import Any

from outlast.testing.sim_store import SimStore

_ENDS = ("finished", "failed", "cancelled")


class InvariantBroken(AssertionError):
    """A violated invariant; the message names it."""


def require(condition: bool, invariant: str, what: str) -> None:
    if not condition:
        raise InvariantBroken(f"{invariant}: {what}")


def is_readable(store: SimStore, run: str) -> bool:
    """Return whether no fault has damaged the story or the request of a run."""
    return not any(key.startswith((f"runs/{run}/story/", f"runs/{run}/spec.json")) for key in store.damaged)


class RunRecord:
    """The story of one run as raw data."""

    def __init__(self, run: str, spec: dict[str, Any]) -> None:
        self.run = run
        self.spec = spec
        self.events: list[dict[str, Any]] = []
        # Training steps of all its attempts.
        self.work = 0

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == kind]

    @property
    def nodes(self) -> int:
        """The number of machines of each attempt; of a range, the largest."""
        return int(self.spec["machine"]["nodes"])

    @property
    def nodes_least(self) -> int:
        return int(self.spec["machine"]["nodes_least"]) or self.nodes

    def nodes_of(self, attempt: int) -> int:
        """Return the number of machines of one attempt."""
        return len(self.of("placed")[attempt - 1]["members"]) or 1

    @property
    def ended(self) -> bool:
        return any(event["event"] in _ENDS for event in self.events)
