"""A simulated training: a chain of hashes that any lost or repeated step changes, and its process."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from outlast.agent.effects import CommandExited
from outlast.testing.scheduler import Actor, Died

if TYPE_CHECKING:
    from outlast.testing.simgang import SimCollective

# Between the two files of a checkpoint: shorter than the time after which a folder counts as complete.
_BETWEEN_FILES_S = 0.3
_SAVE_EVERY = 4
_CRASH_EVERY = 7
_SIGKILL = 137


def chain(steps: int) -> str:
    """Return the result of a training with that many steps."""
    value = "begin"
    for step in range(steps):
        value = hashlib.sha256(f"{value}{step}".encode()).hexdigest()[:16]
    return value


class SimTraining:
    """The trainer's state: a step and a hash over all steps so far."""

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

    def tidy(self) -> None:
        """Delete saves that are not needed any more."""

    def advance(self) -> None:
        self.value = hashlib.sha256(f"{self.value}{self.step}".encode()).hexdigest()[:16]
        self.step += 1

    def files(self) -> dict[str, str]:
        """Return the files of a checkpoint, which is complete only with both."""
        return {"state": json.dumps({"step": self.step, "value": self.value}), "step": str(self.step)}


def _write(path: str, text: str, at: float) -> None:
    """Write a file with the simulated time: the detection of changes must not depend on the real clock."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.utime(path, (at, at))


class SimCommand:
    """The process of a training. It saves every few steps, and once more after SIGTERM."""

    def __init__(
        self,
        actor: Actor,
        training: SimTraining,
        *,
        total: int,
        pace_s: float,
        outputs: str,
        saved: Callable[[], None],
        exited: Callable[[CommandExited], None],
        worked: Callable[[], None] = lambda: None,
    ) -> None:
        self.actor = actor
        self.training = training
        self.total = total
        self.pace_s = pace_s
        self.outputs = outputs
        self.saved = saved
        self.exited = exited
        self.worked = worked
        self.crashes = False
        # The exit code after SIGTERM, which differs between trainers.
        self.sigterm_code = actor.scheduler.rng.choice([0, 1, 143])
        self.terminated = False
        self.over = False
        # Of a distributed training.
        self.collective: SimCollective | None = None
        self.rank = 0
        self.kind = ""
        # It is in the middle of a save.
        self.saving = False

    def join(self, collective: SimCollective, rank: int, *, kind: str) -> None:
        """Train together with other ranks."""
        self.collective, self.rank, self.kind = collective, rank, kind

    def start(self) -> None:
        self.actor.scheduler.spawn(self.actor, self._run)

    def members(self) -> list[int]:
        """Return no process ids: the process is simulated."""
        return []

    def is_alive(self) -> bool:
        return not self.over

    def terminate(self) -> bool | None:
        self.terminated = True
        return None if self.over else True

    def kill(self) -> None:
        self._exit(_SIGKILL)

    def _exit(self, code: int) -> None:
        if not self.over:
            self.over = True
            self.exited(CommandExited(code, self.actor.time()))
            if self.collective is not None:
                self.collective.leave()

    def _save(self) -> bool:
        """Write the checkpoint; return False if the process was killed meanwhile. Time passes after each file."""
        os.makedirs(self.training.folder, exist_ok=True)
        self.saving = True
        try:
            return self._write_files()
        finally:
            self.saving = False

    def _write_files(self) -> bool:
        for name, text in self.training.files().items():
            if self.over:
                return False
            os.makedirs(os.path.dirname(os.path.join(self.training.folder, name)), exist_ok=True)
            _write(os.path.join(self.training.folder, name), text, self.actor.time())
            self.actor.sleep(_BETWEEN_FILES_S * self.actor.scheduler.rng.random())
        self.training.tidy()
        return not self.over

    def _exchange(self) -> bool:
        """Wait for the other ranks. Returns False if the process has exited meanwhile."""
        if self.collective is None:
            return True
        if self.terminated and self.kind == "alone":
            if self._save():
                self._exit(self.sigterm_code)
            return False
        hangs = self.kind == "hangs"
        stops = self.collective.wait(self.rank, self.training.step, stops=self.terminated, hangs=hangs)
        if self.actor.dead:
            raise Died
        if stops is None:
            self._exit(1)
        self.terminated = self.terminated or (bool(stops) and self.kind != "alone")
        return not self.over

    def _run(self) -> None:
        training = self.training
        if self.collective is not None:
            self.collective.begin(self.rank, training.step)
        while training.step < self.total:
            self.actor.sleep(self.pace_s)
            if self.over or not self._exchange():
                return
            training.advance()
            self.worked()
            if self.crashes and training.step % _CRASH_EVERY == 0:
                self._exit(1)
                return
            if training.step % _SAVE_EVERY == 0 or self.terminated:
                if not self._save():
                    return
                if self.terminated:
                    self._exit(self.sigterm_code)
                    return
                self.saved()
        if self._save():
            with open(os.path.join(self.outputs, "result"), "w", encoding="utf-8") as file:
                file.write(training.value)
            self._exit(0)
