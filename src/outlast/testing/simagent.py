"""Agents in the simulated world: the real state logic, the real commits, a training that is a chain of hashes.

What is simulated is only what cannot be had without a machine: processes, signals, the time that training takes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from typing import TypeVar

from outlast.agent.attempt import Attempt, Verdict, verdict
from outlast.agent.instance import Notice
from outlast.agent.place import Place
from outlast.agent.save import Saver
from outlast.agent.whole import look
from outlast.errors import OutlastError, StoreUnreachable
from outlast.spec.spec import CheckpointSpec
from outlast.testing.hub import Actor, Hub
from outlast.testing.simcloud import GRACE_S, SimCloud, SimMachine
from outlast.testing.store import SimBucket, SimStore
from outlast.workspace.checkpoints import restore
from outlast.workspace.each import one_by_one
from outlast.workspace.state import Checkpoint
from outlast.workspace.workspace import Pulse, Request, Workspace

B = TypeVar("B")


def chain(steps: int) -> str:
    """What a training of so many steps must end with, however often it was interrupted."""
    value = "begin"
    for step in range(steps):
        value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()[:16]
    return value


class Training:
    """The trainer's own state: a step and a hash over all steps so far. A lost or a doubled step changes the hash."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.step = 0
        self.value = "begin"

    def load(self) -> None:
        with open(os.path.join(self.folder, "state"), encoding="utf-8") as file:
            state = json.load(file)
        with open(os.path.join(self.folder, "step"), encoding="utf-8") as file:
            assert state["step"] == int(file.read()), "the checkpoint mixes two states"
        self.step, self.value = state["step"], state["value"]

    def advance(self) -> None:
        self.value = hashlib.sha256(f"{self.value}{self.step}".encode()).hexdigest()[:16]
        self.step += 1

    def save(self) -> None:
        os.makedirs(self.folder, exist_ok=True)
        for name, text in (("state", json.dumps({"step": self.step, "value": self.value})), ("step", str(self.step))):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)


class SimAgent:
    """One machine's agent. Its life ends when its machine's does, unless it is a zombie."""

    # What the crash suite and the planted bugs replace.
    attempt_type: type[Attempt] = Attempt
    saver_type: type[Saver] = Saver
    training_type: type[Training] = Training

    def __init__(self, hub: Hub, store: SimStore, cloud: SimCloud, machine: SimMachine, *, root: str) -> None:
        self.hub = hub
        self.cloud = cloud
        self.machine = machine
        metadata = machine.boot.metadata
        self.run, self.number = metadata["outlast-run"], int(metadata["outlast-attempt"])
        self.actor = Actor(hub, "agent", f"agent {machine.facts.name}")
        machine.agent = self.actor
        self.workspace = Workspace(SimBucket(store, self.actor), clock=self.actor.time, ids=hub.id)
        self.folder = os.path.join(root, f"{machine.facts.name}-{len(cloud.history)}")
        self.over = ""
        self.limit: Notice | None = None

    def boot(self) -> None:
        self.hub.spawn(self.actor, self._live, after_s=self.hub.dice.uniform(0.5, 20.0))

    def _pen(self) -> Attempt:
        return self.attempt_type(
            self.workspace, self.run, self.number, clock=self.actor.time, ids=self.hub.id, persist=self._persist
        )

    def _persist(self, act: Callable[[], bool]) -> bool:
        while True:
            try:
                return act()
            except StoreUnreachable:
                self.actor.sleep(self.hub.dice.uniform(0.5, 5.0))

    def _patient(self, act: Callable[[], B]) -> B:
        while True:
            try:
                return act()
            except StoreUnreachable:
                self.actor.sleep(self.hub.dice.uniform(0.5, 5.0))

    def _live(self) -> None:
        try:
            self._carry_out()
        except OutlastError as problem:
            self.hub.log(f"{self.actor.name} ends: {problem.message}")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
        # The boot script switches the machine off when the agent has ended; the agent deletes it if nobody else does.
        self.actor.sleep(30.0)
        self.cloud.remove(self.machine.facts.name)

    def _carry_out(self) -> None:
        self.hub.spawn(self.actor, self._beat)
        attempt = self._pen()
        request = self._patient(lambda: self.workspace.request(self.run))
        place = self._place()
        saver = self.saver_type(
            self._pen(), place=place, rule=CheckpointSpec(path="c", keep=2), say=lambda _: None, each=one_by_one
        )
        training = self.training_type(place.checkpoints)
        resumed = self._await_turn(attempt, saver, place)
        if resumed == "leave":
            return
        assert resumed is None or isinstance(resumed, Checkpoint)
        if not attempt.start(resumed=resumed, code=""):
            return
        # As the agent does: a predecessor whose time was up may have committed once more until it was fenced.
        resumed = self._restore(attempt, saver, place, resumed)
        if resumed is not None:
            training.load()
        self._train(request, attempt, saver, training)

    def _place(self) -> Place:
        os.makedirs(os.path.join(self.folder, "outputs"), exist_ok=True)
        paths = {name: os.path.join(self.folder, name) for name in ("checkpoints", "outputs", "code", "cache")}
        return Place(home=self.folder, notice_file="", done_file="", **paths)

    def _await_turn(self, attempt: Attempt, saver: Saver, place: Place) -> Checkpoint | str | None:
        have: Checkpoint | None = None
        while True:
            turn = self._patient(attempt.turn)
            if turn == "over" or self.over:
                return "leave"
            if self.machine.noticed_at:
                self._patient(lambda: attempt.notice(Notice(why="preempted", grace_s=GRACE_S)))
                attempt.end(Verdict(finished=False, outcome="preempted", why="before it started"), exit_code=None)
                return "leave"
            have = self._restore(attempt, saver, place, have)
            if turn == "mine" or self._patient(attempt.predecessor_deadline_passed):
                return self._restore(attempt, saver, place, have)
            self.actor.sleep(1.0)

    def _restore(self, attempt: Attempt, saver: Saver, place: Place, have: Checkpoint | None) -> Checkpoint | None:
        candidates = self._patient(attempt.checkpoints)
        if not candidates or (have is not None and candidates[0].id == have.id):
            return have
        bucket = self.workspace.bucket
        manifest, _ = self._patient(lambda: restore(bucket, self.run, candidates, place.checkpoints, each=one_by_one))
        if manifest is None:
            return have
        saver.restored(manifest)
        return next(c for c in candidates if c.id == manifest.checkpoint)

    def _train(self, request: Request, attempt: Attempt, saver: Saver, training: Training) -> None:
        total = int(request.spec.params["steps"])
        pace_s = float(request.spec.params["pace_s"])
        crashes = self.cloud.faults.crashes and self.hub.dice.random() < self.cloud.faults.crashes
        notice: Notice | None = None
        preempted = Notice(why="preempted", grace_s=GRACE_S)
        while training.step < total:
            self.actor.sleep(pace_s)
            if self.over:
                return
            training.advance()
            if crashes and training.step % 7 == 0:
                attempt.end(verdict(1, notice=None, done=False), exit_code=1)
                return
            if self.machine.noticed_at and not self.actor.cut_off:
                notice = preempted
                self._persist(lambda: attempt.notice(preempted) or True)
            elif self.limit is not None:
                notice = self.limit
            if training.step % 4 == 0 or notice is not None:
                training.save()
                saver.commit(look(training.folder))
            if notice is not None:
                attempt.end(verdict(0, notice=notice, done=False), exit_code=0)
                return
        self._finish(attempt, saver, training)

    def _finish(self, attempt: Attempt, saver: Saver, training: Training) -> None:
        training.save()
        saver.commit_last(orderly=True, died_at=0.0)
        with open(os.path.join(saver.outputs, "result"), "w", encoding="utf-8") as file:
            file.write(training.value)
        outputs = self._patient(saver.send_outputs)
        attempt.end(verdict(0, notice=None, done=False), exit_code=0, outputs=outputs)

    def _beat(self) -> None:
        pen = self._pen()
        while not self.over:
            try:
                self.over, self.limit = pen.over(), pen.limit()
                if not self.over:
                    self.workspace.beat(self.run, Pulse(attempt=self.number, length=pen.story.state.length))
            except OutlastError:
                pass  # the store is away; the pulse stands still meanwhile
            self.actor.sleep(2.0)
