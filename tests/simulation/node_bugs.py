"""Planted bugs of distributed runs: each breaks one promise in a typical way."""

from __future__ import annotations

from typing import Any

import msgspec

from outlast.agent.attempt import AttemptWriter, Verdict
from outlast.agent.checkpoint.joint import Incomplete, LeaderCommitter
from outlast.agent.effects import NodesReport
from outlast.agent.node import Node
from outlast.errors import WorkspaceError
from outlast.runs import events as ev
from outlast.runs.events import Event
from outlast.runs.state import Attempt, Checkpoint, RunState
from outlast.supervisor.apply import Applier
from outlast.supervisor.loop import Supervisor
from outlast.supervisor.plan import plan
from outlast.supervisor.world import LoseNode, PlaceAttempt, Release, RetireNodes, Step, World
from outlast.testing.simagent import SimAgent
from outlast.testing.simcloud import SimCloudView
from outlast.testing.simulate import Simulation


class CommitsAlone(LeaderCommitter):
    def _complete(self, stored: Any) -> dict[int, int] | Incomplete:
        found = super()._complete(stored)
        return {} if isinstance(found, Incomplete) else found


class TakesAnyShard(LeaderCommitter):
    def _matches(self, stored: Any, rank: int, number: int) -> bool:
        super()._matches(stored, rank, number)
        return self._shards[rank, number] is not None


class ForgetsWriters(LeaderCommitter):
    def restored(self, manifest: Any, snapshot: Any) -> None:
        super().restored(manifest, snapshot)
        self.writers, self.quiet = set(), set(self.node.others)


class ForgetfulAgent(SimAgent):
    leader_type = ForgetsWriters


class LonelyAgent(SimAgent):
    leader_type = CommitsAlone


class MixingAgent(SimAgent):
    leader_type = TakesAnyShard


class ImpatientNode(Node):
    def all_ready(self) -> bool:
        self.refresh()
        return True


class MembersWrite(SimAgent):
    """Every rank ends the attempt in the story."""

    def report_end(
        self, verdict: Verdict, exit_code: int | None, outputs: int, cut: bool, unsaved: bool = False
    ) -> None:
        super().report_end(verdict, exit_code, outputs, cut, unsaved)
        if verdict.finished:
            self.attempt.end(verdict, exit_code=exit_code, outputs=outputs)


class OwnCheckpoint(SimAgent):
    """A member restores its own choice of a checkpoint."""

    def restore_exactly(self, checkpoint: str) -> Checkpoint | None:
        return self.resumed if self.resumed is not None else super().restore_exactly(checkpoint)

    def restore(self) -> Checkpoint | None:
        candidates = self.retried(self.attempt.checkpoints)
        return self._restore(candidates[1:] if self.place.rank and len(candidates) > 1 else candidates)


class OptimisticLeader(SimAgent):
    """Takes its own exit 0 for the end of all."""

    def read_nodes(self, since: float) -> NodesReport:
        report = super().read_nodes(since)
        return msgspec.structs.replace(report, ended=True, failed=())


class OneByOne(SimCloudView):
    """Keeps a part of the machines if the zone has no room for all."""

    def launch_all(self, offer: Any, names: Any, *, boot: Any, labels: Any) -> Any:
        return [self.launch(offer, name, boot=boot, labels=labels) for name in names]


class HoldsRefused(Supervisor):
    """Keeps the machines of a refused attempt, waiting for the others."""

    def decide(self, world: World) -> tuple[Step, ...]:
        attempts = {view.run: view.state.attempts for view in world.runs if view.state.alive}

        def holds(step: Step) -> bool:
            if not isinstance(step, Release) or step.run not in attempts:
                return False
            return attempts[step.run][step.attempt - 1].outcome == "refused"

        return tuple(step for step in plan(world) if not holds(step))


class ReplacesAll(Applier):
    """Replaces survivors with the same rank while others stay."""

    def _placed(self, step: PlaceAttempt) -> Event:
        kept = dict(list(step.kept.items())[:1])
        return super()._placed(msgspec.structs.replace(step, kept=kept))


class KeepsTheLost(Applier):
    """Does not record which machine was lost."""

    def _event(self, step: Step) -> Event:
        event = super()._event(step)
        if isinstance(step, LoseNode) and isinstance(event, ev.Noticed):
            return msgspec.structs.replace(event, node=0)
        return event


class DeletesSurvivors(Applier):
    """Deletes every machine of an attempt with its release."""

    def _release(self, step: Release) -> Event:
        attempt = self.observer.state(step.run).attempts[step.attempt - 1]
        for name in attempt.machines:
            self.clouds[step.cloud].delete(name)
        return super()._release(step)


class UnlinksSize(SimAgent):
    """Does not record how many machines a checkpoint needs."""

    class _Writer(AttemptWriter):
        def saved(self, checkpoint: str, **options: Any) -> bool:
            return super().saved(checkpoint, **{**options, "nodes": 0})

    attempt_type = _Writer


class IgnoresPeers(Supervisor):
    """Does not act on the loss of a machine that does not lead, nor retire what it holds."""

    def decide(self, world: World) -> tuple[Step, ...]:
        return tuple(step for step in plan(world) if not isinstance(step, LoseNode | RetireNodes))


class DeafNode(Node):
    def lost(self) -> list[tuple[int, str]]:
        return []


class DeafAgent(SimAgent):
    node_type = DeafNode


def _keeps_going(state: RunState, number: int, machine: str) -> Attempt | bool | None:
    """Return the next attempt of the run, whether or not it keeps this machine."""
    newer = [attempt for attempt in state.attempts[number:] if attempt.phase != "over"]
    return newer[-1] if newer else None if state.alive else False


class UninvitedAgent(SimAgent):
    find_next = staticmethod(_keeps_going)


class ImpatientAgent(SimAgent):
    node_type = ImpatientNode


def _with(**types: Any) -> type[Simulation]:
    return type("Planted", (Simulation,), types)


NODE_BUGS: dict[str, tuple[type[Simulation], tuple[str, ...]]] = {
    "the leader commits without the shards of the others": (
        _with(agent_type=LonelyAgent),
        ("a_joint_checkpoint_is_complete", "a_node_restores_its_shard"),
    ),
    "shards of different steps are joined": (
        _with(agent_type=MixingAgent),
        ("a_joint_checkpoint_is_complete", "a_node_restores_its_shard", "the_nodes_resume_from_one_checkpoint"),
    ),
    "a new leader forgets which machines write shards": (
        _with(agent_type=ForgetfulAgent),
        ("a_joint_checkpoint_is_complete", "a_node_restores_its_shard"),
    ),
    "a member appends the end of the attempt": (
        _with(agent_type=MembersWrite),
        ("only_the_leader_writes", "results_are_right"),
    ),
    "a member restores another checkpoint": (
        _with(agent_type=OwnCheckpoint),
        (
            "the_nodes_resume_from_one_checkpoint",
            "training_begins_with_the_newest_checkpoint",
            "a_node_restores_its_shard",
        ),
    ),
    "the leader finishes although others were preempted": (
        _with(agent_type=OptimisticLeader),
        ("results_are_right", "a_finished_run_has_trained", "a_joint_checkpoint_is_complete"),
    ),
    "two runs hold parts of a zone and wait for each other": (
        type("Holding", (Simulation,), {"cloud_view_type": OneByOne, "supervisor_type": HoldsRefused}),
        ("every_run_ended", "no_partial_run_is_billed", "every_machine_is_gone"),
    ),
    "survivors are replaced": (_with(applier_type=ReplacesAll), ("survivors_are_not_doubled",)),
    "survivors are deleted with the attempt before": (
        _with(applier_type=DeletesSurvivors),
        ("no_living_machine_is_deleted",),
    ),
    "a lost machine keeps the run waiting": (
        type("Deaf", (Simulation,), {"agent_type": DeafAgent, "supervisor_type": IgnoresPeers}),
        ("every_run_ended", "no_partial_run_is_billed"),
    ),
}

# Planted bugs of runs with a range of machines.
ELASTIC_BUGS: dict[str, tuple[type[Simulation], tuple[str, ...]]] = {
    "parts are resumed by another number of machines": (
        _with(agent_type=UnlinksSize),
        ("parts_are_resumed_by_as_many", "a_node_restores_its_shard"),
    ),
}

__all__ = ["ELASTIC_BUGS", "NODE_BUGS", "ImpatientAgent", "KeepsTheLost", "UninvitedAgent", "WorkspaceError"]
