"""A simulated training on several machines: the ranks exchange values in lockstep, and save in several layouts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil

from outlast.testing.scheduler import Parked, Scheduler
from outlast.testing.simtraining import SimTraining

# `first`: rank 0 saves everything. `copies`: every rank writes the same. `shards`: every rank writes its own files.
# `same`: every rank writes its own content under the same name.
LAYOUTS = ("first", "copies", "shards", "same")
# On SIGTERM `together`: all ranks stop after the same step; `alone`: each saves and exits at once. A rank whose peer is
# gone fails with `together` and `alone`, and waits for ever with `hangs`.
KINDS = ("together", "alone", "hangs")
_KEPT = 2


def begin_of(rank: int, layout: str) -> str:
    """Return the first value of a rank: each has its own if it saves its own."""
    return f"begin{rank}" if rank and layout in ("shards", "same") else "begin"


def chain_of(steps: int, rank: int, layout: str) -> str:
    """Return the value of a rank after that many steps."""
    value = begin_of(rank, layout)
    for step in range(steps):
        value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()[:16]
    return value


class SimNodeTraining(SimTraining):
    """The state of one rank."""

    def __init__(self, folder: str, *, rank: int, nodes: int, layout: str) -> None:
        super().__init__(folder)
        self.rank = rank
        self.nodes = nodes
        self.layout = layout
        self.value = begin_of(rank, layout)

    def load(self) -> None:
        suffix = f"-{self.rank}" if self.layout == "shards" else ""
        folder = self.folder
        if self.layout in ("shards", "same"):
            steps = [name for name in os.listdir(folder) if os.path.exists(f"{folder}/{name}/state{suffix}")]
            assert steps, f"a_node_restores_its_shard: rank {self.rank} has none in {sorted(os.listdir(folder))}"
            folder = os.path.join(folder, max(steps))
        with open(f"{folder}/state{suffix}", encoding="utf-8") as file:
            state = json.load(file)
        with open(f"{folder}/step{suffix}", encoding="utf-8") as file:
            assert state["step"] == int(file.read()), "the checkpoint mixes two states"
        self.step, self.value = state["step"], state["value"]
        right = self.value == chain_of(self.step, self.rank, self.layout)
        assert right, f"a_node_restores_its_shard: rank {self.rank} resumes from the state of another"

    def files(self) -> dict[str, str]:
        state = json.dumps({"step": self.step, "value": self.value})
        if self.layout == "first" and self.rank:
            return {}
        if self.layout in ("first", "copies"):
            return {"state": state, "step": str(self.step)}
        suffix = f"-{self.rank}" if self.layout == "shards" else ""
        place = f"step-{self.step:06d}"
        return {f"{place}/state{suffix}": state, f"{place}/step{suffix}": str(self.step)}

    def tidy(self) -> None:
        """Delete all saves but the newest."""
        if self.layout in ("shards", "same") and os.path.isdir(self.folder):
            for name in sorted(name for name in os.listdir(self.folder) if name.startswith("step-"))[:-_KEPT]:
                shutil.rmtree(os.path.join(self.folder, name))


class SimCollective:
    """The exchange of one attempt: a rank waits at each step until all have come to it."""

    def __init__(self, scheduler: Scheduler, nodes: int) -> None:
        self.scheduler = scheduler
        self.nodes = nodes
        # By step: which ranks have come, and whether one wants to stop.
        self._come: dict[int, dict[int, bool]] = {}
        self._begun: dict[int, int] = {}
        self._waiting: list[Parked] = []
        self._left = False

    def begin(self, rank: int, step: int) -> None:
        """Enter the exchange. All ranks must resume from the same step."""
        self._begun[rank] = step
        assert len({*self._begun.values()}) == 1, f"the_nodes_resume_from_one_checkpoint: {self._begun}"

    def wait(self, rank: int, step: int, *, stops: bool, hangs: bool) -> bool | None:
        """Wait for all ranks; return whether one stops. None if one has left, unless the program hangs then."""
        come = self._come.setdefault(step, {})
        come[rank] = stops
        if len(come) == self.nodes:
            self._wake()
        while len(come) < self.nodes:
            if self._left and not hangs:
                return None
            parked = self.scheduler.park(None)
            self._waiting.append(parked)
            parked.wait()
        return any(come.values())

    def leave(self) -> None:
        """The process of a rank is gone."""
        self._left = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for parked in waiting:
            parked.wake()
