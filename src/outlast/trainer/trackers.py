"""Forwards logged values to experiment trackers, so that a preempted training stays one run with one curve.

Each tracker has a thread and a queue: one that is slow or unreachable never delays or ends the training. A resumed
training repeats steps; a tracker receives each of them once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from outlast.errors import UsageError
from outlast.runs.tensorboard import file_begin, restart, scalars
from outlast.trainer.environment import Environment

NAMES = ("mlflow", "tensorboard", "wandb")
_RETRY_S = 30.0
# Values that wait for an unreachable tracker. Older ones are dropped.
_ROWS_MAX = 100_000
# Rows of one call: MLflow accepts a thousand values.
_BATCH = 200
# How long the end of the training waits for the last values, and the notice of a machine.
_FINISH_S, _LEAVE_S = 60.0, 15.0

# What networks, disks and refused values raise in every tracker. Another error ends the thread, never the training.
_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, TypeError)

Row = tuple[int, float, Mapping[str, float]]


class Tracker(Protocol):
    """A run in a tracker. Raises errors of its library."""

    def send(self, rows: list[Row]) -> None:
        """Send values in the order in which they were logged, without steps that it has from earlier attempts."""

    def finish(self, *, complete: bool) -> None:
        """Flush, and mark the run as complete or as about to be continued."""


class Trackers:
    """The trackers of one training. Rank 0 logs."""

    def __init__(self, environment: Environment) -> None:
        for name in environment.trackers:
            if name not in NAMES:
                raise UsageError(f"unknown tracker `{name}`: expected some of {', '.join(NAMES)}")
        self._finished = not environment.trackers or environment.rank != 0
        # At once: importing a tracker takes seconds, and a short attempt must not lose its values.
        self._forwarders = [] if self._finished else [_Forwarder(name, environment) for name in environment.trackers]

    def log(self, step: int, at: float, values: Mapping[str, float], *, begin: int | None) -> None:
        """Forward the values of a step. `begin`: the step of the checkpoint that this attempt resumed from."""
        if self._finished:
            return
        for forwarder in self._forwarders:
            if forwarder.begin is None:
                forwarder.begin = step if begin is None else min(step, begin)
            forwarder.rows.append((step, at, values))
            forwarder.wake.set()

    def finish(self, *, complete: bool) -> None:
        """Wait for the last values, for a while. May be repeated."""
        if self._finished:
            return
        self._finished = True
        for forwarder in self._forwarders:
            forwarder.end(complete=complete)
        until = time.monotonic() + (_FINISH_S if complete else _LEAVE_S)
        for forwarder in self._forwarders:
            forwarder.thread.join(max(0.0, until - time.monotonic()))
            if forwarder.thread.is_alive():
                _report(f"{forwarder.name} has not received the last values; `outlast metrics` has them")


class _Forwarder:
    """The thread of one tracker."""

    def __init__(self, name: str, environment: Environment) -> None:
        self.name = name
        # The first step of this attempt.
        self.begin: int | None = None
        self.rows: deque[Row] = deque(maxlen=_ROWS_MAX)
        self.wake = threading.Event()
        self._environment = environment
        self._sending: list[Row] = []
        self._complete = False
        self._ended = threading.Event()
        self._named = ""
        self.thread = threading.Thread(target=self._run, name=f"tracker-{name}", daemon=True)
        self.thread.start()

    def end(self, *, complete: bool) -> None:
        self._complete = complete
        self._ended.set()
        self.wake.set()

    def _run(self) -> None:
        tracker: Tracker | None = None
        errors = _ERRORS
        while True:
            last = self._ended.is_set()
            try:
                opened, errors = _class_of(self.name)
                self.wake.wait()
                if tracker is None and not self.rows:
                    return  # the training ended without a value
                tracker = tracker or opened(self._environment, self.begin or 0)
                self._send_all(tracker)
                return
            except ImportError as problem:
                _report(f"tracker {self.name}: {problem}; install it in the environment of the run")
                self.rows = deque(maxlen=0)
                return
            except errors as problem:
                self._report_once(f"tracker {self.name}: {type(problem).__name__}: {problem}")
                if last:
                    return
                self._ended.wait(_RETRY_S)
                self.wake.set()

    def _send_all(self, tracker: Tracker) -> None:
        while True:
            self.wake.wait()
            self.wake.clear()
            ended = self._ended.is_set()
            while self._sending or self.rows:
                self._sending = self._sending or [self.rows.popleft() for _ in range(min(_BATCH, len(self.rows)))]
                tracker.send(self._sending)
                self._sending = []
            if ended:
                tracker.finish(complete=self._complete)
                return

    def _report_once(self, text: str) -> None:
        if text != self._named:
            self._named = text
            _report(text)


def _class_of(name: str) -> tuple[Callable[[Environment, int], Tracker], tuple[type[Exception], ...]]:
    """Return the class of a tracker, and the errors after which it is tried again."""
    if name == "wandb":
        import wandb

        from outlast.trainer.integrations.wandb import WandbTracker

        return WandbTracker, (*_ERRORS, wandb.Error)
    if name == "mlflow":
        import mlflow

        from outlast.trainer.integrations.mlflow import MlflowTracker

        return MlflowTracker, (*_ERRORS, mlflow.MlflowException)
    return TensorBoardTracker, _ERRORS


class TensorBoardTracker:
    """An event file per attempt in the outputs. Its readers drop what later attempts repeat."""

    def __init__(self, environment: Environment, begin: int) -> None:
        folder = os.path.join(environment.outputs, "tensorboard")
        os.makedirs(folder, exist_ok=True)
        # Readers sort files by name.
        now = time.time()
        name = f"events.out.tfevents.{int(now):010d}.{environment.attempt:04d}.{os.getpid()}.outlast"
        self._file: Any = open(os.path.join(folder, name), "wb", buffering=0)  # noqa: SIM115 - closed by `finish`
        again = environment.attempt > 1 or len(os.listdir(folder)) > 1
        self._file.write(file_begin(now) + (restart(begin, now) if again else b""))

    def send(self, rows: list[Row]) -> None:
        self._file.write(b"".join(scalars(*row) for row in rows))

    def finish(self, *, complete: bool) -> None:
        self._file.close()


def _report(text: str) -> None:
    print(f"outlast: {text}", file=sys.stderr, flush=True)
