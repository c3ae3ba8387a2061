"""`outlast.training()`: resume, step, save, log, done; the same code on a laptop, in a drill and on a cloud."""

from __future__ import annotations

import atexit
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outlast.errors import UsageError
from outlast.spec.duration import duration_s
from outlast.trainer import files
from outlast.trainer import state as states
from outlast.trainer.background import BackgroundSaver
from outlast.trainer.environment import Environment, detect_environment
from outlast.trainer.files import FoundCheckpoint

# What must fit between a notice and the end on Google's machines, with something in hand.
_WINDOW_S = 30.0 * 0.8
_FIRST_SAVE_S = 10.0


class Training:
    """One training, from its restored state to its end. Made by `outlast.training()`."""

    def __init__(
        self,
        around: Environment,
        *,
        every_s: float,
        every_steps: int,
        keep: int,
        replicated: bool,
        pickle: bool = False,
    ) -> None:
        self.around = around
        self.pickle = pickle
        self.every_s = every_s
        self.every_steps = every_steps
        self.replicated = replicated
        self.resumed = False
        self.left = False
        self._told = threading.Event()
        self._saver = BackgroundSaver(
            folder=around.checkpoints, rank=around.rank, ranks=1 if replicated else around.ranks, keep=keep
        )
        self._born_at = time.time()
        self._last_named = False
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._stall_s = 0.0
        self._step_s = 0.0
        self._make: Callable[[], Any] | None = None
        self._warned = False
        self._held: set[tuple[str, int]] = set()
        os.makedirs(around.checkpoints, exist_ok=True)

    @property
    def params(self) -> dict[str, Any]:
        return self.around.params

    @property
    def notes(self) -> dict[str, Any]:
        """What is stored with every checkpoint and with the end, and can be read without loading a state."""
        return self._saver.notes

    @property
    def outputs(self) -> str:
        """The folder for results; made when asked for."""
        os.makedirs(self.around.outputs, exist_ok=True)
        return self.around.outputs

    @property
    def leaving(self) -> bool:
        """The machine is about to go: a signal or the notice file says so."""
        if not self._told.is_set() and self.around.on_machine and os.path.exists(self.around.notice_file):
            self._told.set()
        return self._told.is_set()

    def leave(self) -> None:
        """End at the next step, after saving; what SIGTERM does."""
        self._told.set()

    # Resume

    def restore(self) -> Any | None:
        """The newest state that holds, or None if there is none. One that does not hold is told, and the one before
        it taken. Raises PickleRefused for a pickle, unless this training has `pickle=True`."""
        rank = 0 if self.replicated else self.around.rank
        for found in files.found_in(self.around.checkpoints):
            try:
                state = files.load(found, rank=rank, pickle=self.pickle)
            except files.BadCheckpoint as problem:
                print(f"outlast: {problem.message}; trying the one before", file=sys.stderr, flush=True)
                continue
            self.resumed, self._saved_step = True, found.step
            return state
        return None

    # Steps

    def steps(self, start: int = 0, total: int | None = None) -> Iterator[int]:
        """`start`, `start + 1`, … below `total` (None: for ever). Ends early, after saving, when the machine is about
        to go; with several ranks all of them after the same step."""
        step = start
        while total is None or step < total:
            if self._leave_before(step):
                self._save_last(step)
                return
            began = time.monotonic()
            yield step
            took_s = time.monotonic() - began
            self._step_s = took_s if not self._step_s else 0.9 * self._step_s + 0.1 * took_s
            step += 1
        if self._leave_before(step):
            self._save_last(step)

    def _leave_before(self, step: int) -> bool:
        if self.around.ranks == 1:
            return self.leaving
        named = self._named("leave", step, request=self.leaving and not self._last_named)
        self._last_named = named is not None
        return named is not None and step > named

    def _named(self, what: str, step: int, *, request: bool) -> int | None:
        """The step after which all ranks do something. Rank 0 names it, one ahead: ranks move in lockstep, so that each
        sees it before it gets there."""
        path = os.path.join(self.around.checkpoints, f"{what}-{self.around.attempt}.tmp")
        named = self._read_named(path)
        if self.around.rank == 0 and request and (named is None or named < step):
            named = step + 1
            with open(path + ".part", "w", encoding="utf-8") as file:
                file.write(str(named))
            os.replace(path + ".part", path)
        return named

    def _read_named(self, path: str) -> int | None:
        try:
            with open(path, encoding="utf-8") as file:
                # On a laptop every start is attempt 1: what an earlier one left is no word of ours.
                if not self.around.on_machine and os.fstat(file.fileno()).st_mtime < self._born_at:
                    return None
                return int(file.read())
        except FileNotFoundError:
            return None

    def _save_last(self, step: int) -> None:
        self.left = True
        if self._make is not None and self._saved_step < step:
            self.save(step, self._make(), wait=True)
        else:
            self._saver.wait()

    # Save

    def save(
        self,
        step: int,
        state: Any = None,
        *,
        wait: bool = False,
        into: Callable[[str], object] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Save the state as of this step: numbers, text, bytes, containers, arrays, tensors, with `pickle=True`
        anything picklable; or let `into(folder)` write it.

        Returns when the state is copied; it is written in the background, whole or not at all. `wait=True` returns
        when it is on disk. A failure in the background is raised at the next call. `metrics` are stored with it, for
        `[checkpoint] keep_best`; without them, what was logged counts.
        """
        if self.replicated and self.around.rank != 0:
            self._saved_at, self._saved_step = time.monotonic(), step  # by rank 0
            return
        began = time.monotonic()
        if into is not None:
            self._save_files(step, into, metrics or {})
        else:
            stream, body, buffers = states.dump(state, pickle=self.pickle)
            self._saver.save(step, stream, body, buffers, metrics=metrics or {})
        # Without what a caller waits who asks for it: the interval is chosen for saves in the background.
        stall_s = time.monotonic() - began
        if wait:
            self._saver.wait()
        self._saved_at, self._saved_step = time.monotonic(), step
        self._stall_s = stall_s if not self._stall_s else 0.5 * (self._stall_s + stall_s)
        self._warn_if_it_does_not_fit()

    def _save_files(self, step: int, into: Callable[[str], object], metrics: Mapping[str, float]) -> None:
        self._saver.wait()
        staged = os.path.join(self.around.checkpoints, files.folder_name(step) + ".tmp")
        shutil.rmtree(staged, ignore_errors=True)
        files.write_into(staged, into)
        stream, body, _ = states.dump(None, pickle=False)
        files.write_rank(staged, 0, stream=stream, body=body, arena=memoryview(b""), sizes=[])
        parts = files.parts_written(staged, 1)
        assert parts is not None
        files.give_name(staged, step, parts=parts, keep=self._saver.keep, told=self._saver.told(metrics))

    @property
    def files(self) -> str:
        """The folder that `into` wrote of the newest checkpoint that holds; empty if there is none."""
        for found in files.found_in(self.around.checkpoints):
            folder = os.path.join(found.path, "rank-0", "files")
            if os.path.isdir(folder) and self._holds(found):
                return folder
        return ""

    def _holds(self, found: FoundCheckpoint) -> bool:
        """Looked at once: it takes as long as reading the files."""
        mark = (found.path, os.stat(os.path.join(found.path, "rank-0", "files")).st_mtime_ns)
        if mark not in self._held:
            try:
                files.check(found)
            except files.BadCheckpoint as problem:
                print(f"outlast: {problem.message}; trying the one before", file=sys.stderr, flush=True)
                return False
            self._held.add(mark)
        return True

    def save_if_due(self, step: int, make: Callable[[], Any]) -> bool:
        """Save if it is time; `make` is called only then, and once more before the machine goes."""
        self._make = make
        self._saver.check()
        # One rank alone may be late with its last save: to pass this one over it would have to ask the others.
        if not self._due(step) or (self.around.ranks == 1 and self._saver.busy):
            return False
        self.save(step + 1, make())
        return True

    def _due(self, step: int) -> bool:
        if self.every_steps:
            return (step + 1) % self.every_steps == 0
        late = time.monotonic() - self._saved_at >= self.interval_s
        return late if self.around.ranks == 1 else self._named("save", step, request=late) == step

    @property
    def interval_s(self) -> float:
        """Between saves: what was asked for, or Young's √(2 · stall · mean life) from what a save was seen to cost."""
        if self.every_s:
            return self.every_s
        if not self._stall_s:
            return min(_FIRST_SAVE_S, self.around.mean_life_s / 10)
        return max(1.0, math.sqrt(2.0 * self._stall_s * self.around.mean_life_s))

    def _warn_if_it_does_not_fit(self) -> None:
        needed_s = self._step_s + self._stall_s + self._saver.took_s
        if needed_s > _WINDOW_S and not self._warned:
            self._warned = True
            print(
                f"outlast: a step and a save take {needed_s:.0f} s; a spot machine may give only 30 s of notice. "
                "Make steps shorter, or the state smaller",
                file=sys.stderr,
                flush=True,
            )

    # Metrics and the end

    def log(self, step: int, **metrics: float) -> None:
        """Numbers of this step: into the workspace on a machine, into a file on a laptop."""
        if self.around.rank != 0:
            return
        line = json.dumps({"step": step, "at": time.time(), **{name: float(value) for name, value in metrics.items()}})
        os.makedirs(os.path.dirname(self.around.metrics_file), exist_ok=True)
        with open(self.around.metrics_file, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def done(self, metrics: dict[str, float] | None = None) -> None:
        """The training did what it was asked for. After an early end it did not: then this leaves the process."""
        self._saver.wait()
        if self.left:
            sys.exit(0)
        if self.around.rank != 0:
            return
        os.makedirs(os.path.dirname(self.around.done_file), exist_ok=True)
        temporary = self.around.done_file + ".part"
        with open(temporary, "w", encoding="utf-8") as file:
            told: dict[str, Any] = {"metrics": {name: float(value) for name, value in (metrics or {}).items()}}
            json.dump(told | ({"notes": self.notes} if self.notes else {}), file)
        os.replace(temporary, self.around.done_file)

    def close(self) -> None:
        self._saver.close()


def training(
    *,
    every: str | float = "auto",
    every_steps: int = 0,
    keep: int = 2,
    replicated: bool = False,
    pickle: bool = False,
    folder: str = "",
) -> Training:
    """The training of this process. Knows whether it is on a machine, in a drill, or on a laptop.

    `every`: the time between saves (`"5m"`, seconds, or `"auto"` for the best from measured stall and lifetimes);
    `every_steps` instead of it; `keep`: how many checkpoints stay in the folder; `replicated`: all ranks hold the same
    state, so that rank 0 saves for all; `pickle`: save and restore any Python object, which runs code from the
    checkpoint on a restore; `folder`: where a laptop keeps `.outlast-local`.
    """
    try:
        every_s = 0.0 if every == "auto" else duration_s(every)
    except ValueError as problem:
        raise UsageError(f"training(every=…): {problem}") from problem
    made = Training(
        detect_environment(folder=folder),
        every_s=every_s,
        every_steps=every_steps,
        keep=max(1, keep),
        replicated=replicated,
        pickle=pickle,
    )
    attach(made)
    return made


def attach(made: Training) -> None:
    """To this process: its signals from now on, and its end."""
    atexit.register(made.close)
    _listen(made)


def _listen(made: Training) -> None:
    """SIGTERM means: save and leave. Whoever handled it before still hears of it."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may; the notice file tells the others
    before = signal.getsignal(signal.SIGTERM)

    def told(number: int, frame: Any) -> None:
        made.leave()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, told)
