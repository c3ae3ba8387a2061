"""Agents of the simulated world: the real conductor, story and commits on a simulated machine.

Only processes, signals and their timing are simulated.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import TypeVar

from outlast.agent import handoff
from outlast.agent.attempt import AttemptWriter, Verdict
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.commit import Committer
from outlast.agent.checkpoint.joint import LeaderCommitter, MemberCommitter
from outlast.agent.conductor import Conductor
from outlast.agent.effects import AgentEvent, NoticeReceived, OutputsReport, RunOver, TurnReport, drive
from outlast.agent.instance import Notice
from outlast.agent.node import ALONE, Node, NodePlace, next_attempt, place_in
from outlast.agent.node_effects import NodeEffects
from outlast.agent.paths import AttemptPaths
from outlast.agent.retry import retry
from outlast.errors import OutlastError, WorkspaceError
from outlast.runs.checkpoints import restore
from outlast.runs.events import Ending
from outlast.runs.state import Attempt, Checkpoint
from outlast.store.parallel import one_by_one
from outlast.testing import simplace
from outlast.testing.scheduler import Actor, Mailbox, Scheduler, SchedulerLock
from outlast.testing.sim_store import SNAPSHOT_GAP, SimBucket, SimStore
from outlast.testing.simcloud import GRACE_S, SimCloud, SimMachine
from outlast.testing.simgang import SimCollective, SimNodeTraining
from outlast.testing.simtraining import SimCommand, SimTraining
from outlast.workspace import Heartbeat, RunRequest, Workspace

T = TypeVar("T")

_HEARTBEAT_S = 2.0
_COMMIT_POLL_S = 0.25
_POLL_S = 1.0
# The retry times of the real agent: during preparation, and afterwards.
_PREPARE_S = 300.0
_UNREACHABLE_S = 1800.0
_LINGER_S = 30.0
_NEXT_S = 120.0


class SimAgent(NodeEffects):
    """The agent of one machine: the conductor's performer. It dies with its machine, unless it is a zombie."""

    # Replaced by the crash suite and by planted bugs.
    attempt_type: type[AttemptWriter] = AttemptWriter
    conductor_type: type[Conductor] = Conductor
    committer_type: type[Committer] = Committer
    training_type: type[SimTraining] = SimTraining
    node_type: type[Node] = Node
    member_type: type[MemberCommitter] = MemberCommitter
    leader_type: type[LeaderCommitter] = LeaderCommitter
    find_next = staticmethod(next_attempt)

    def __init__(
        self,
        scheduler: Scheduler,
        store: SimStore,
        cloud: SimCloud,
        machine: SimMachine,
        *,
        root: str,
        before: SimAgent | None = None,
        following: Attempt | None = None,
    ) -> None:
        """`before` carried out an earlier attempt of a distributed run on this machine; `following` is the next one."""
        self.scheduler = scheduler
        self.store = store
        self.root = root
        self.cloud = cloud
        self.machine = machine
        metadata = machine.boot.metadata
        self.run = metadata["outlast-run"]
        self.number = int(metadata["outlast-attempt"]) if following is None else following.number
        self.place: NodePlace = ALONE if following is None else place_in(following, machine.facts.name)
        self.actor: Actor = Actor(scheduler, "agent", f"agent {machine.facts.name}") if before is None else before.actor
        self.actor.crashed = lambda: machine.incidents.append("killed at a point")
        machine.agent = self.actor
        bucket = SimBucket(store, self.actor)
        self.workspace = Workspace(bucket, clock=self.actor.time, ids=scheduler.id, snapshot_gap=SNAPSHOT_GAP)
        self.folder = os.path.join(root, f"{machine.facts.name}-{len(cloud.history)}-{self.number}")
        self.node: Node | None = None
        self.events: Mailbox[AgentEvent] = Mailbox(self.actor)
        self.paths = self._make_paths()
        self.request: RunRequest
        self.checkpointer: Checkpointer
        self.command: SimCommand | None = None
        self.resumed: Checkpoint | None = None
        self.tried = ""
        self.over = False
        self._saves: Mailbox[bool] = Mailbox(self.actor)
        self._committing = False
        self._successor_ready = False
        self._prepared = False

    def boot(self) -> None:
        self.scheduler.spawn(self.actor, self._live, after_s=self.scheduler.rng.uniform(0.5, 20.0))

    def _attempt_writer(self) -> AttemptWriter:
        return self.attempt_type(
            self.workspace,
            self.run,
            self.number,
            clock=self.actor.time,
            ids=self.scheduler.id,
            persist=self._persist,
            rank=self.place.rank,
        )

    def _persist(self, act: Callable[[], bool]) -> bool:
        return retry(act, for_s=_UNREACHABLE_S, report=_ignore, despite_refusals=True, clock=self.actor)

    def retried(self, act: Callable[[], T]) -> T:
        return retry(act, for_s=_PREPARE_S, report=_ignore, clock=self.actor)

    def _make_paths(self) -> AttemptPaths:
        paths = {name: os.path.join(self.folder, name) for name in ("checkpoints", "outputs", "code", "cache")}
        return AttemptPaths(home=self.folder, notice_file="", done_file="", **paths)

    def _live(self) -> None:
        if "outlast-nodes" in self.machine.boot.metadata:
            self.place = simplace.find_place(self)
        agent = self
        agent.carry_out()
        while agent.place.nodes > 1 and (following := simplace.await_next(agent)):
            agent = type(self)(
                self.scheduler, self.store, self.cloud, self.machine, root=self.root, before=agent, following=following
            )
            agent.carry_out()
        # The agent deletes its machine if no supervisor does.
        self.actor.sleep(_LINGER_S)
        self.cloud.remove(self.machine.facts.name)

    def _begin(self) -> None:
        place = self.place
        self.conductor = self.conductor_type(
            number=self.number, now=self.actor.monotonic, poll_s=_POLL_S, rank=place.rank, nodes=place.nodes
        )
        self.attempt = self._attempt_writer()
        if place.nodes > 1:
            self.node = simplace.make_node(self)

    def carry_out(self) -> None:
        self._begin()
        self.machine.notify = self._receive_notice
        if self.machine.noticed_at:
            self._receive_notice()
        self.scheduler.spawn(self.actor, self._write_heartbeats)
        try:
            drive(self.conductor.conduct(), self)
        except OutlastError as problem:
            self.scheduler.log(f"{self.actor.name} ends: {problem.message}")
        finally:
            self.over = True
            if self.command is not None:
                self.command.kill()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _receive_notice(self) -> None:
        self.events.put(NoticeReceived(Notice(why="preempted", grace_s=GRACE_S)))

    def _write_heartbeats(self) -> None:
        """Write heartbeats, and check with each whether the run is over or at a limit."""
        writer, limited = self._attempt_writer(), False
        while not self.over:
            try:
                if why := writer.over():
                    self.events.put(RunOver(why))
                    return
                if not limited and (limit := writer.limit()) is not None:
                    limited = True
                    self.events.put(NoticeReceived(limit))
                phase = self.conductor.phase
                if self.node is not None:
                    self.node.report_alive(phase, writes=self._prepared and self.checkpointer.has_changes())
                if not self.place.rank:
                    self.workspace.write_heartbeat(
                        self.run, Heartbeat(attempt=self.number, phase=phase, length=writer.story.state.length)
                    )
                    for failed in self.node.watch(writer) if self.node is not None else ():
                        self.events.put(failed)
            except OutlastError:
                pass  # the store is unreachable: no heartbeat meanwhile
            self.actor.sleep(_HEARTBEAT_S)

    # The performer (`agent/effects.py` has the contract)

    def read_request(self) -> RunRequest:
        self.request = self.retried(lambda: self.workspace.request(self.run))
        return self.request

    def read_turn(self) -> TurnReport:
        turn = self.retried(self.attempt.turn)
        mine = self.attempt.mine
        lost = turn == "over" and mine is not None and mine.phase == "noticed" and not mine.started_at
        return TurnReport(turn=turn, why="the run is over" if turn == "over" else "", noticed=lost)

    def prepare(self) -> str:
        os.makedirs(self.paths.outputs, exist_ok=True)
        self.checkpointer = Checkpointer(
            self._attempt_writer(),
            paths=self.paths,
            rule=self.request.spec.checkpoint,
            report=_ignore,
            each=one_by_one,
            clock=self.actor,
            lock=SchedulerLock(self.actor),
            node=self.place.rank,
            committer_type=simplace.committer_of(self),
        )
        self._prepared = True
        return ""

    def _restore(self, candidates: list[Checkpoint]) -> Checkpoint | None:
        if not candidates or candidates[0].id == self.tried:
            return self.resumed
        bucket, folder = self.workspace.bucket, self.paths.checkpoints
        manifest, _ = self.retried(
            lambda: restore(bucket, self.run, candidates, folder, node=self.place.rank, each=one_by_one)
        )
        self.tried = candidates[0].id
        if manifest is not None:
            self.checkpointer.restored(manifest)
            self.resumed = next(c for c in candidates if c.id == manifest.checkpoint)
        return self.resumed

    def predecessor_deadline_passed(self) -> bool:
        return self.retried(self.attempt.predecessor_deadline_passed)

    def next_event(self, until: float | None) -> AgentEvent | None:
        return self.events.get(until)

    def read_secrets(self) -> None:
        """Take some time: between the last restore and `Started`, a late predecessor may commit."""
        if self.request.spec.secrets:
            self.actor.sleep(self.scheduler.rng.uniform(0.1, 10.0))

    def try_exclusive(self) -> bool:
        return True

    def append_started(self, resumed: Checkpoint | None, code: str) -> str:
        return "" if self.attempt.start(resumed=resumed, code=code) else "the attempt was fenced"

    def start_command(self, resumed: Checkpoint | None) -> str:
        params = self.request.spec.params
        if not {"steps", "pace_s"} <= params.keys():
            return "the request is damaged: it has no `steps`"
        training = simplace.training_of(self)
        if resumed is not None:
            training.load()
        self.cloud.began(self.run, self.number, resumed.id if resumed else "")
        self.command = SimCommand(
            self.actor,
            training,
            total=int(params["steps"]),
            pace_s=float(params["pace_s"]),
            outputs=self.paths.outputs,
            saved=lambda: self._saves.put(True),
            exited=self.events.put,
            worked=lambda: None if self.place.rank else self.cloud.worked(self.run),
        )
        if isinstance(training, SimNodeTraining):
            collective = self.cloud.collectives.setdefault(
                (self.run, self.number), SimCollective(self.scheduler, training.nodes)
            )
            self.command.join(collective, training.rank, kind=str(params["kind"]))
        faults = self.cloud.faults
        self.command.crashes = bool(faults.crashes) and self.scheduler.rng.random() < faults.crashes
        if self.command.crashes:
            self.machine.incidents.append("crashes")
        self.scheduler.spawn(self.actor, self._commit_saves)
        self.command.start()
        return ""

    def _with_retries(self, act: Callable[[], T]) -> T:
        return self.retried(act)

    def _with_long_retries(self, act: Callable[[], None]) -> None:
        retry(act, for_s=_UNREACHABLE_S, report=_ignore, clock=self.actor)

    def _address(self) -> str:
        return self.machine.facts.name

    def _commit_saves(self) -> None:
        """Commit each checkpoint that the training has written, as the checkpointer's thread does on a real machine."""
        assert self.command is not None
        while not self.over:
            self._saves.get()
            self._committing = True
            while self.command.is_alive() and not self.checkpointer.commit_if_complete(
                self.command, most_bytes=sys.maxsize
            ):
                # Of two files that change one after the other, a scan in between takes the first for a whole save.
                while self.command.saving:
                    self.actor.sleep(_COMMIT_POLL_S)
                self.actor.sleep(_COMMIT_POLL_S)
            self._committing = False

    def announce_ready(self) -> None:
        handoff.announce_ready(self.workspace, self.run, self.number)

    def saving_s(self, notice: Notice) -> float | None:
        # Every second attempt runs a program whose saves were measured.
        if self.number % 2:
            return None
        step_s = float(self.request.spec.params["pace_s"])
        measured = handoff.SavingMeasured(step_s=step_s, save_s=1.0)
        self.scheduler.spawn(self.actor, self._watch_successor)
        return handoff.needed_s(
            self.request.spec.checkpoint, measured, commit_s=self.checkpointer.commit_s, grace_s=notice.grace_s
        )

    def _watch_successor(self) -> None:
        while not self.over and not self._successor_ready:
            try:
                self._successor_ready = handoff.is_successor_ready(self.workspace, self.run, self.number)
            except OutlastError:
                pass  # only a hint
            self.actor.sleep(_POLL_S)

    def successor_ready(self) -> bool:
        return self._successor_ready

    def write_notice_file(self, notice: Notice) -> None:
        pass

    def commit_quickly(self, within_s: float) -> None:
        assert self.command is not None
        self.checkpointer.commit_quickly(self.command)

    def send_sigterm(self) -> bool | None:
        assert self.command is not None
        return self.command.terminate()

    def kill_command(self) -> None:
        assert self.command is not None
        self.command.kill()

    def append_noticed(self, notice: Notice) -> None:
        self.attempt.notice(notice)

    def append_warned(self, notice: Notice) -> None:
        self.attempt.warn(notice)

    def stop_following(self, within_s: float) -> None:
        while self._committing:
            self.actor.sleep(0.1)

    def declared_done(self) -> bool:
        return False

    def commit_last(self, ending: Ending, died_at: float, within_s: float) -> str:
        return self.checkpointer.commit_last(ending, died_at=died_at, within_s=within_s)

    def permanent_failure(self, exit_code: int, ran_s: float) -> Verdict | None:
        return None

    def failure_context(self) -> str:
        return ""

    def send_outputs(self, within_s: float) -> OutputsReport:
        try:
            sent = retry(
                self.checkpointer.outputs.send_all,
                for_s=within_s,
                report=_ignore,
                despite_refusals=True,
                clock=self.actor,
            )
        except (WorkspaceError, OSError) as problem:
            self.machine.incidents.append("outputs not copied")
            return OutputsReport(missing=f"could not copy outputs: {problem}")
        return OutputsReport(sent=sent)

    def flush_logs(self, within_s: float) -> None:
        pass

    def append_end(self, verdict: Verdict, exit_code: int | None, outputs: int, keep_s: float, unsaved: str) -> None:
        self.attempt.end(verdict, exit_code=exit_code, outputs=outputs, keep_s=keep_s, unsaved=unsaved)

    def keep_machine(self, for_s: float) -> None:
        self.actor.sleep(for_s)

    def log(self, text: str) -> None:
        self.scheduler.log(f"{self.actor.name}: {text}")


def _ignore(_: str) -> None:
    """Discard a message: the simulated world has no console."""
