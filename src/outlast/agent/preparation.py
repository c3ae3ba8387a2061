"""Prepares one attempt on a real machine: code, data, environment, container and checkpoint."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from outlast.agent import container, mounts, permanent
from outlast.agent.attempt import AttemptWriter, hopeless
from outlast.agent.checkpoint.checkpointer import Checkpointer
from outlast.agent.checkpoint.commit import Committer
from outlast.agent.checkpoint.joint import LeaderCommitter, MemberCommitter
from outlast.agent.code import clear_for_code, ensure_git, fetch_code, refresh_code
from outlast.agent.conductor import Conductor
from outlast.agent.container_setup import engine_for
from outlast.agent.effects import AttemptAborted, TurnReport
from outlast.agent.environment import fetch_uv, machine_installer, present_environment, store_environment
from outlast.agent.group_member import GroupMember
from outlast.agent.handoff import HandoffEffects
from outlast.agent.instance import Instance
from outlast.agent.metrics import MetricsPump
from outlast.agent.node import ALONE, Node, NodePlace
from outlast.agent.node_effects import NodeEffects
from outlast.agent.output import OutputPump, Remarks, report
from outlast.agent.paths import AttemptPaths, paths_for
from outlast.agent.process import Command
from outlast.agent.retry import retry
from outlast.agent.usage import UsageSampler
from outlast.agent.watch import AgentWatch
from outlast.clouds.traits import traits_of
from outlast.code.record import CodeRecord
from outlast.environments.install import EnvironmentFailed
from outlast.runs import logs
from outlast.runs.checkpoints import restore
from outlast.runs.state import Checkpoint
from outlast.store.counted import traffic_of
from outlast.workspace import RunRequest, Workspace

UNREACHABLE_S = 1800.0
# How long a store may be unreachable while the machine prepares.
_PREPARE_S = 300.0
# Signs of life and polls of the machines of a distributed run: the loss of one must reach the others in seconds.
_NODE_BEAT_S = 5.0
_NODE_POLL_S, _NODE_POLL_LOCAL_S = 3.0, 0.25

T = TypeVar("T")


class AgentPreparation(NodeEffects, HandoffEffects):
    """The part of the agent that brings everything to this machine (`effects.Performer` has the contracts)."""

    def __init__(
        self,
        workspace: Workspace,
        run: str,
        number: int,
        *,
        instance: Instance,
        home: str,
        place: NodePlace = ALONE,
        warm: bool = False,
    ) -> None:
        """`warm`: an earlier attempt on this machine has brought code, environment and data."""
        self.workspace = workspace
        self.run = run
        self.number = number
        self.place = place
        self.warm = warm
        # Whether code, environment and data are here.
        self.prepared = warm
        self.instance = instance
        self.home = home
        remote = workspace.store.remote
        self.flush_s = 2.0 if remote else 0.2
        self.conductor = Conductor(
            number=number, now=time.monotonic, poll_s=1.0 if remote else 0.05, rank=place.rank, nodes=place.nodes
        )
        self.attempt = self._attempt_writer()
        beat_s = workspace.store.heartbeat_s
        self.watch = AgentWatch(self._attempt_writer(), instance, beat_s=beat_s, unreachable_s=UNREACHABLE_S)
        self.watch.phase = lambda: self.conductor.phase
        self.node = self.watch.node = self._make_node() if place.nodes > 1 else None
        self.request: RunRequest
        self.paths: AttemptPaths
        self.checkpointer: Checkpointer
        self.group_member: GroupMember | None = None
        self.engine: container.Engine | None = None
        self.secrets: dict[str, str] = {}
        self.environment_path = ""
        self.log_number = 1
        self.command: Command | None = None
        self.output: OutputPump | None = None
        self.metrics: MetricsPump | None = None
        self.usage: UsageSampler | None = None
        self.remarks = Remarks()
        # The checkpoint in the folder, and the newest one that was tried.
        self.resumed: Checkpoint | None = None
        self.tried = ""

    def _attempt_writer(self) -> AttemptWriter:
        return AttemptWriter(
            self.workspace,
            self.run,
            self.number,
            clock=time.time,
            ids=lambda: secrets.token_hex(8),
            persist=lambda act: retry(act, for_s=UNREACHABLE_S, report=report, despite_refusals=True),
            rank=self.place.rank,
        )

    def _make_node(self) -> Node:
        traits, store = traits_of(self.instance.attribute("outlast-cloud")), self.workspace.store
        return Node(
            self.workspace.bucket,
            self.run,
            self.number,
            rank=self.place.rank,
            nodes=self.place.nodes,
            now=time.monotonic,
            boot_s=traits.boot_s,
            silence_s=traits.silence_s,
            beat_s=min(store.heartbeat_s, _NODE_BEAT_S),
            poll_s=_NODE_POLL_S if store.remote else _NODE_POLL_LOCAL_S,
        )

    # Before the start

    def read_request(self) -> RunRequest:
        self.request = with_retries(lambda: self.workspace.request(self.run))
        return self.request

    def read_turn(self) -> TurnReport:
        turn = with_retries(self.attempt.turn)
        if turn != "over":
            return TurnReport(turn=turn)
        mine = self.attempt.mine
        active = mine is not None and mine.phase in ("started", "noticed") and self.attempt.story.state.alive
        started = mine is not None and bool(mine.started_at)
        why = with_retries(self.attempt.over)
        return TurnReport(turn=turn, why=why, restarted=active and started, noticed=active and not started)

    @property
    def gpus(self) -> int:
        """The number of GPUs of this machine: of alternatives in `[machine] gpu`, those that were requested."""
        mine, wanted = self.attempt.mine, self.request.spec.machine.gpus
        return mine.gpus if wanted and mine is not None and mine.gpus else wanted

    def prepare(self) -> str:
        self.paths = paths_for(self.request, self.home, cache=self.instance.attribute("outlast-cache"))
        self.group_member = GroupMember(self._attempt_writer(), self.request, instance=self.instance, paths=self.paths)
        with_retries(self.group_member.join)
        remote = traits_of(self.instance.attribute("outlast-cloud")).remote
        try:
            if remote:  # first, because packages may take minutes
                permanent.check_gpus(self.gpus)
                ensure_git(self.request.code, self._note)
            record = with_retries(self._keep_data if self.warm else self._fetch)
            self._install_environment()
            self.engine = engine_for(self.request, self._note, instance=self.instance if remote else None)
        except (container.ContainerUnavailable, permanent.GpuMissing) as problem:
            raise AttemptAborted(problem.message, hopeless(problem)) from problem
        self.prepared = True
        self.checkpointer = self._make_checkpointer()
        self.watch.writes = self.checkpointer.has_changes
        return record.commit or record.sha256

    def _make_checkpointer(self) -> Checkpointer:
        committer: Callable[..., Committer] = Committer
        if self.node is not None:
            committer = partial(MemberCommitter if self.place.rank else LeaderCommitter, node=self.node)
        return Checkpointer(
            self._attempt_writer(),
            paths=self.paths,
            rule=self.request.spec.checkpoint,
            report=self._log_remark,
            node=self.place.rank,
            committer_type=committer,
        )

    def _keep_data(self) -> CodeRecord:
        """Keep data and volumes of the attempt before. May be repeated.

        Its command may have left files anywhere in the code folder, which may also be its checkpoint folder: this
        machine must start with the same files as a new one.
        """
        for folder in (self.paths.checkpoints, self.paths.outputs):
            if os.path.relpath(folder, self.paths.code).startswith(os.pardir):
                shutil.rmtree(folder, ignore_errors=True)
        spec = self.request.spec
        record = refresh_code(
            self.workspace.bucket, self.request.code, self.paths.code, keep=(*spec.data, *spec.volumes)
        )
        self.paths.make()
        return record

    def _fetch(self) -> CodeRecord:
        """Code and data. May be repeated."""
        clear_for_code(self.paths.code, self._log_early)
        record = fetch_code(self.workspace.bucket, self.request.code, self.paths.code)
        self.paths.make()
        mounts.bring(self.request, self.paths, self.instance, self._note, traffic_of(self.workspace.bucket))
        return record

    def _install_environment(self) -> None:
        """Install the packages of the command. Raises AttemptAborted."""
        uv_url = self.instance.attribute("outlast-uv")
        self.environment_path = present_environment(self.request, built_here=not uv_url, report=self._log_early)
        record = self.request.code.environment
        if record is None or not uv_url or self.environment_path:
            return
        bucket, log = self.workspace.bucket, self._log_early
        installer = machine_installer(bucket, record, home=self.home, uv_url=uv_url, report=log, progress=log)
        try:
            self.environment_path = with_retries(installer.install)
        except EnvironmentFailed as problem:
            if problem.permanent:
                raise AttemptAborted(problem.message, hopeless(problem)) from problem
            raise OSError(problem.message) from problem
        if installer.needs_uv:
            self.watch.spawn(lambda: fetch_uv(installer, report))
        if installer.is_new or installer.came_from_workspace:
            # Storing may take minutes, and the command need not wait for it.
            self.watch.spawn(lambda: store_environment(installer, report))

    def _note(self, text: str) -> None:
        self.watch.note = text
        report(text)

    def _log_early(self, text: str) -> None:
        """Write to the run's log before the command starts."""
        self._note(text)
        self._write_log(self.log_number, f"outlast: {text}\n".encode())
        self.log_number += 1

    def _log_remark(self, text: str) -> None:
        """Write to the serial console, which is deleted with the machine, and to the run's log."""
        report(text)
        self.remarks.add(text)

    def _write_log(self, number: int, body: bytes) -> None:
        if body:
            bucket, rank = self.workspace.bucket, self.place.rank
            self._retry_write(lambda: logs.write_piece(bucket, self.run, self.number, number, body, node=rank))

    def _retry_write(self, act: Callable[[], None]) -> None:
        retry(act, for_s=UNREACHABLE_S, report=report, despite_refusals=True)

    def _restore(self, candidates: list[Checkpoint]) -> Checkpoint | None:
        if not candidates or candidates[0].id == self.tried:
            return self.resumed
        bucket, folder, names = self.workspace.bucket, self.paths.checkpoints, self.checkpointer.scanner.names
        rank = self.place.rank
        manifest, problems = with_retries(lambda: restore(bucket, self.run, candidates, folder, names=names, node=rank))
        # The newest, even if it is damaged: the next restore would find it damaged, too.
        self.tried = candidates[0].id
        for problem in problems:
            self._log_remark(problem)
        if manifest is not None:
            self.paths.make()  # the outputs may be inside the folder that was replaced
            self.checkpointer.restored(manifest)
            self.resumed = next(c for c in candidates if c.id == manifest.checkpoint)
        return self.resumed


def with_retries(act: Callable[[], T]) -> T:
    """Retry while the store is unreachable, for up to `_PREPARE_S`."""
    return retry(act, for_s=_PREPARE_S, report=report)
