"""`outlast.training()`: resume, step, save, log, done; the same code on a laptop, in a drill and on a cloud."""

from __future__ import annotations

import atexit
import dataclasses
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from outlast.errors import UsageError
from outlast.spec.duration import duration_s
from outlast.trainer import files
from outlast.trainer import state as states
from outlast.trainer.agreement import Action, agreement_of
from outlast.trainer.background import BackgroundSaver
from outlast.trainer.environment import Environment, detect_environment
from outlast.trainer.files import FoundCheckpoint
from outlast.trainer.template import fill
from outlast.trainer.trackers import Trackers

T = TypeVar("T")
# A step and a save must fit into this time: the notice on Google's machines, with a reserve.
_WINDOW_S = 30.0 * 0.8
_FIRST_SAVE_S = 10.0


class Training:
    """One training, from its restored state to its end. Created by `outlast.training()`."""

    def __init__(
        self,
        environment: Environment,
        *,
        every_s: float,
        every_steps: int,
        keep: int,
        replicated: bool,
        pickle: bool = False,
    ) -> None:
        self.environment, self.pickle, self.replicated = environment, pickle, replicated
        self.every_s, self.every_steps = every_s, every_steps
        self.resumed = self.stopped_early = False
        self._stop = threading.Event()
        self._saver = BackgroundSaver(
            folder=environment.checkpoints,
            rank=environment.rank,
            ranks=1 if replicated else environment.ranks,
            local=range(1) if replicated else environment.local_ranks,
            node=environment.node,
            keep=keep,
        )
        self._agreement = agreement_of(environment)
        self._trackers = Trackers(environment)
        self._stop_named = False
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._restored_step: int | None = None
        self._stall_s = 0.0
        self._step_s = 0.0
        self._reported_s = 0.0
        self._make: Callable[[], Any] | None = None
        self._warned = False
        self._valid: set[tuple[str, int]] = set()
        os.makedirs(environment.checkpoints, exist_ok=True)

    @property
    def params(self) -> dict[str, Any]:
        return self.environment.params

    @property
    def notes(self) -> dict[str, Any]:
        """Values that are stored with every checkpoint and with the end, readable without loading a state."""
        return self._saver.notes

    @property
    def outputs(self) -> str:
        """The folder for results, created on first use."""
        os.makedirs(self.environment.outputs, exist_ok=True)
        return self.environment.outputs

    @property
    def stop_requested(self) -> bool:
        """Whether the training must stop: a signal arrived, or the notice file exists."""
        if not self._stop.is_set() and self.environment.on_machine and os.path.exists(self.environment.notice_file):
            self._stop.set()
        return self._stop.is_set()

    def request_stop(self) -> None:
        """Request a stop at the next step, after a save, as SIGTERM does."""
        self._stop.set()

    # Resume

    def restore(self, into: Any = None, *, partial: bool = False) -> Any | None:
        """Return the newest valid state, or None. A damaged checkpoint is reported and skipped.

        `into`: a state of the same form. Its arrays and tensors are filled in place, so that no second copy of the
        state is needed; what only the checkpoint has is left out. With `partial`, values that the checkpoint lacks, or
        has with another shape, are reported and stay as they are. Raises PickleRefused for a pickle, unless this
        training has `pickle=True`.
        """
        rank = 0 if self.replicated else self.environment.rank
        mapped = into is not None
        saved = self.restore_with(lambda found: files.load(found, rank=rank, pickle=self.pickle, mapped=mapped))
        if into is None or saved is None:
            return saved
        filled, problems = fill(into, saved, partial=partial)
        for problem in problems:
            print(f"outlast: not restored: {problem}", file=sys.stderr, flush=True)
        return filled

    def restore_with(self, load: Callable[[FoundCheckpoint], T]) -> T | None:
        """Return `load` of the newest valid checkpoint, or None. `load` raises BadCheckpoint for a damaged one."""
        for found in files.found_in(self.environment.checkpoints):
            try:
                state = load(found)
            except files.BadCheckpoint as problem:
                print(f"outlast: {problem.message}; trying the previous one", file=sys.stderr, flush=True)
                continue
            self.resumed, self._saved_step, self._restored_step = True, found.step, found.step
            self._prepare(state)
            return state
        return None

    def _prepare(self, state: Any) -> None:
        """Prepare the first save for a state of this size."""
        if not self.replicated or self.environment.rank == 0:
            self._saver.prepare(states.size_of(state))

    # Steps

    def steps(self, start: int = 0, total: int | None = None) -> Iterator[int]:
        """Yield `start`, `start + 1`, … below `total` (None: forever).

        Ends early, after a save, when a stop is requested; with several ranks, all end after the same step.
        """
        step = start
        while total is None or step < total:
            if self._stops_before(step):
                self._save_last(step)
                return
            began = time.monotonic()
            yield step
            took_s = time.monotonic() - began
            self._step_s = took_s if not self._step_s else 0.9 * self._step_s + 0.1 * took_s
            step += 1
        if self._stops_before(step):
            self._save_last(step)

    def _stops_before(self, step: int) -> bool:
        if self.environment.ranks == 1:
            return self.stop_requested
        named = self._named("stop", step, request=self.stop_requested and not self._stop_named)
        self._stop_named = named is not None
        self._agreement.begin(step)
        return named is not None and step > named

    def _named(self, action: Action, step: int, *, request: bool) -> int | None:
        """Return the step after which all ranks save or stop, if rank 0 has named one.

        Rank 0 names it one step ahead, so that each rank learns it in time.
        """
        named = self._agreement.named(action, step)
        if self.environment.rank == 0 and request and (named is None or named < step):
            named = step + 1
            self._agreement.publish(action, named)
        return named

    def _save_last(self, step: int) -> None:
        self.stopped_early = True
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

        Returns when the state is copied; it is written in the background, completely or not at all. `wait=True` returns
        when it is on disk. A failure in the background is raised at the next call. `metrics` are stored with it, for
        `[checkpoint] keep_best`; without them, the logged values count.
        """
        if self.replicated and self.environment.rank != 0:
            self._saved_at, self._saved_step = time.monotonic(), step  # rank 0 saves
            return
        began = time.monotonic()
        if into is not None:
            self._save_files(step, into, metrics or {})
        else:
            stream, body, buffers = states.dump(state, pickle=self.pickle)
            self._saver.save(step, stream, body, buffers, metrics=metrics or {})
        # Without the time that `wait` takes: the interval is for saves in the background.
        stall_s = time.monotonic() - began
        if wait:
            self._saver.wait()
        self._saved_at, self._saved_step = time.monotonic(), step
        self._stall_s = stall_s if not self._stall_s else 0.5 * (self._stall_s + stall_s)
        self._warn_if_too_slow()
        self._report_saving()

    def _save_files(self, step: int, into: Callable[[str], object], metrics: Mapping[str, float]) -> None:
        self._saver.wait()
        staged = os.path.join(self.environment.checkpoints, files.folder_name(step) + ".tmp")
        shutil.rmtree(staged, ignore_errors=True)
        files.write_user_files(staged, into)
        stream, body, _ = states.dump(None, pickle=False)
        files.write_rank(staged, 0, stream=stream, body=body, arena=memoryview(b""), sizes=[])
        parts = files.parts_written(staged, range(1))
        assert parts is not None
        marker = {"step": step, "ranks": 1, "parts": parts, **self._saver.extra(metrics)}
        files.publish(staged, marker, keep=self._saver.keep)

    @property
    def files(self) -> str:
        """The folder that `into` wrote, of the newest valid checkpoint; empty without one."""
        for found in files.found_in(self.environment.checkpoints):
            folder = os.path.join(found.path, "rank-0", "files")
            if os.path.isdir(folder) and self._is_valid(found):
                return folder
        return ""

    def _is_valid(self, found: FoundCheckpoint) -> bool:
        """Return whether the hashes match. Checked once, because it takes as long as reading the files."""
        mark = (found.path, os.stat(os.path.join(found.path, "rank-0", "files")).st_mtime_ns)
        if mark not in self._valid:
            try:
                files.check(found)
            except files.BadCheckpoint as problem:
                print(f"outlast: {problem.message}; trying the previous one", file=sys.stderr, flush=True)
                return False
            self._valid.add(mark)
        return True

    def save_if_due(self, step: int, make: Callable[[], Any]) -> bool:
        """Save if a save is due; return whether it saved.

        Calls `make` only then, once more for the last save, and in the first step of a training that has not resumed.
        """
        if self._make is None and not self.resumed:
            # The size of the state is not known before, unless it was restored.
            self._prepare(make())
        self._make = make
        self._saver.check()
        self._report_saving()
        # Only a single rank may skip a save while the last one is still being written: several would have to agree.
        if not self._due(step) or (self.environment.ranks == 1 and self._saver.busy):
            return False
        self.save(step + 1, make())
        return True

    def _report_saving(self) -> None:
        """Report how long a step and a save take, so that at a notice the agent knows when this program must save."""
        saving_s = self._stall_s + self._saver.took_s
        if not self.environment.on_machine or self.environment.rank != 0 or not self._saver.took_s:
            return
        # Small changes are not worth a write.
        if saving_s > 1.1 * self._reported_s or saving_s < 0.5 * self._reported_s:
            self._reported_s = saving_s
            folder = os.path.dirname(self.environment.metrics_file)
            os.makedirs(folder, exist_ok=True)
            draft = os.path.join(folder, "saving.json.part")
            with open(draft, "w", encoding="utf-8") as file:
                json.dump({"step_s": self._step_s, "save_s": saving_s}, file)
            os.replace(draft, draft.removesuffix(".part"))

    def _due(self, step: int) -> bool:
        if self.every_steps:
            return (step + 1) % self.every_steps == 0
        late = time.monotonic() - self._saved_at >= self.interval_s
        if self.environment.ranks == 1:
            return late
        self._agreement.begin(step)
        return self._named("save", step, request=late) == step

    @property
    def interval_s(self) -> float:
        """The time between saves: `every`, or Young's √(2 · stall · mean life) with the measured stall of a save."""
        if self.every_s:
            return self.every_s
        if not self._stall_s:
            return min(_FIRST_SAVE_S, self.environment.mean_life_s / 10)
        return max(1.0, math.sqrt(2.0 * self._stall_s * self.environment.mean_life_s))

    def _warn_if_too_slow(self) -> None:
        needed_s = self._step_s + self._stall_s + self._saver.took_s
        if needed_s > _WINDOW_S and not self._warned:
            self._warned = True
            print(
                f"outlast: a step and a save take {needed_s:.0f} s, but a spot machine may have only 30 s of notice. "
                "Make steps shorter, or the state smaller",
                file=sys.stderr,
                flush=True,
            )

    # Metrics and the end

    def log(self, step: int, **metrics: float) -> None:
        """Log numbers of this step: to the workspace on a machine, to a file on a laptop."""
        if self.environment.rank != 0:
            return
        at, values = time.time(), {name: float(value) for name, value in metrics.items()}
        line = json.dumps({"step": step, "at": at, **values})
        os.makedirs(os.path.dirname(self.environment.metrics_file), exist_ok=True)
        with open(self.environment.metrics_file, "a", encoding="utf-8") as file:
            file.write(line + "\n")
        self._trackers.log(step, at, values, begin=self._restored_step)

    def done(self, metrics: dict[str, float] | None = None) -> None:
        """Declare the training complete. After an early end it is not: then exit the process instead."""
        self._saver.wait()
        self._trackers.finish(complete=not self.stopped_early)
        if self.stopped_early:
            sys.exit(0)
        if self.environment.rank != 0:
            return
        os.makedirs(os.path.dirname(self.environment.done_file), exist_ok=True)
        temporary = self.environment.done_file + ".part"
        with open(temporary, "w", encoding="utf-8") as file:
            record: dict[str, Any] = {"metrics": {name: float(value) for name, value in (metrics or {}).items()}}
            json.dump(record | ({"notes": self.notes} if self.notes else {}), file)
        os.replace(temporary, self.environment.done_file)

    def close(self) -> None:
        self._trackers.finish(complete=False)
        self._saver.close()
        self._agreement.close()


def training(
    *,
    every: str | float = "auto",
    every_steps: int = 0,
    keep: int = 2,
    replicated: bool = False,
    pickle: bool = False,
    trackers: Sequence[str] = (),
    folder: str = "",
) -> Training:
    """Return the training of this process, on a machine, in a drill or on a laptop.

    `every`: the time between saves (`"5m"`, seconds, or `"auto"` for the best by measured stall and lifetimes);
    `every_steps` instead of it; `keep`: the number of checkpoints to keep; `replicated`: all ranks hold the same
    state, so that rank 0 saves for all; `pickle`: save and restore any Python object, which runs code from the
    checkpoint on a restore; `trackers`: `wandb`, `mlflow`, `tensorboard` also receive what `log` logs; `folder`: the
    parent of `.outlast-local` on a laptop.
    """
    try:
        every_s = 0.0 if every == "auto" else duration_s(every)
    except ValueError as problem:
        raise UsageError(f"training(every=…): {problem}") from problem
    environment = detect_environment(folder=folder)
    made = Training(
        dataclasses.replace(environment, trackers=tuple(trackers)) if trackers else environment,
        every_s=every_s,
        every_steps=every_steps,
        keep=max(1, keep),
        replicated=replicated,
        pickle=pickle,
    )
    attach(made)
    return made


def attach(made: Training) -> None:
    """Attach the training to the signals and the end of this process."""
    atexit.register(made.close)
    _handle_sigterm(made)


def _handle_sigterm(made: Training) -> None:
    """Request a stop on SIGTERM, and call the previous handler."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may set handlers; the notice file works anywhere
    before = signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        made.request_stop()
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGTERM, handle)
