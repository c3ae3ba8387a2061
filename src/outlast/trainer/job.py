"""The training of a `@outlast.trainer` program: its total, its hyperparameters and its job folder."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from outlast.errors import UsageError
from outlast.trainer import files
from outlast.trainer.bucket_mirror import BucketMirror, is_bucket
from outlast.trainer.environment import Environment
from outlast.trainer.rng import rng_preserved
from outlast.trainer.training import Training

KEEP = 2
T = TypeVar("T")


class TrainingJob(Training):
    """A `Training` whose steps, intervals and parameters come from the command line."""

    def __init__(
        self, folder: JobFolder, *, params: Mapping[str, Any], settings: Mapping[str, Any], notes: Mapping[str, Any]
    ) -> None:
        super().__init__(
            folder.environment,
            every_s=0.0,
            every_steps=settings["checkpoint_steps"] or 0,
            keep=KEEP,
            replicated=settings["replicated"],
            pickle=settings["pickle"],
        )
        self.notes.update(notes)
        self.train_steps: int | None = settings["train_steps"]
        self.checkpoint_steps: int | None = settings["checkpoint_steps"]
        self.eval_steps: int | None = settings["eval_steps"]
        # Evaluates each checkpoint with `--eval-steps`; None without a registered function.
        self.evaluator: Callable[[Any], Mapping[str, float]] | None = None
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})
        self.ended = False
        self.folder = folder
        self._params = dict(params)
        # The step of the state that `save_if_due` last received.
        self._reached = -1

    @property
    def params(self) -> dict[str, Any]:
        """The hyperparameters of this job."""
        return self._params

    def steps(self, start: int = 0, total: int | None = None) -> Iterator[int]:
        """Yield steps as `Training.steps` does; `total` defaults to `--train-steps`."""
        yield from super().steps(start, self.train_steps if total is None else total)
        if self.stopped_early:
            self._mirror_now()

    def save(
        self,
        step: int,
        state: Any = None,
        *,
        wait: bool = False,
        into: Callable[[str], object] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        super().save(step, state, wait=wait, into=into, metrics=metrics)
        if wait:
            self._mirror_now()

    def save_if_due(self, step: int, make: Callable[[], Any]) -> bool:
        self._reached = step + 1
        saved = super().save_if_due(step, make)
        if saved:
            self._evaluate_state(step + 1, make)
        return saved

    def eval_batches(self, batches: Iterable[T]) -> Iterator[T]:
        """Return the first `--eval-steps` batches; all without that flag."""
        return itertools.islice(batches, self.eval_steps)

    def _evaluate_state(self, step: int, make: Callable[[], Any]) -> None:
        """Evaluate this state as `--mode evaluate` does, and log the result.

        Preserves the RNG state: a resumed training does not evaluate this state again, and must draw the same numbers.
        """
        if self.eval_steps is None or self.evaluator is None or self._evaluated[0] == step:
            return
        with rng_preserved():
            state = make()  # on all ranks: some states are gathered from all of them
            if self.environment.rank != 0:
                return
            scores = {f"eval_{name}": float(value) for name, value in self.evaluator(state).items()}
        self._evaluated = step, scores
        self.log(step - 1, **scores)

    def done(self, metrics: dict[str, float] | None = None) -> None:
        """Save the last state, which `--mode evaluate` reads, and declare the training complete."""
        if not self.stopped_early and self._make is not None and self._saved_step < self._reached:
            self.save(self._reached, self._make(), wait=True)
        if not self.stopped_early and self._make is not None:
            self._evaluate_state(self._reached, self._make)
        super().done({**(metrics or {}), **self._evaluated[1]})
        self.ended = True
        if self.environment.rank == 0:
            self.folder.finish(self.environment.done_file)

    def _mirror_now(self) -> None:
        if self.folder.mirror is not None and self.environment.rank == 0:
            self.folder.mirror.flush()

    def close(self) -> None:
        super().close()
        if self.folder.mirror is not None:
            self.folder.mirror.close()


@dataclass(frozen=True, kw_only=True)
class JobFolder:
    """The folder of a job, possibly with a mirror in a bucket."""

    shown: str
    environment: Environment
    # The file that records the job's end for later starts; empty if there is none.
    record: str
    mirror: BucketMirror | None = None

    def newest(self) -> tuple[int, dict[str, Any]] | None:
        """Return step and notes of the newest readable checkpoint; None without one."""
        for found in files.found_in(self.environment.checkpoints):
            try:
                return found.step, files.read_marker(found.path).get("notes", {})
            except files.BadCheckpoint:
                continue  # `restore` reports it
        return None

    def ending(self) -> dict[str, Any] | None:
        """Return the record of the job's end; None if it has not ended, or the file is not such a record."""
        if self.mirror is not None:
            body = self.mirror.record()
        elif self.record and os.path.exists(self.record):
            with open(self.record, "rb") as file:
                body = file.read()
        else:
            return None
        try:
            record = json.loads(body) if body else None
        except ValueError:
            return None
        return record if isinstance(record, dict) and "params" in record.get("notes", {}) else None

    def finish(self, done_file: str) -> None:
        if self.mirror is not None:
            with open(done_file, "rb") as file:
                self.mirror.finish(file.read())
        elif self.record and self.record != done_file:
            shutil.copyfile(done_file, self.record + ".part")
            os.replace(self.record + ".part", self.record)


def job_folder(job_dir: str, environment: Environment) -> JobFolder:
    """Return `--job-dir`; else the run's checkpoint folder, or on a laptop the one below `.outlast-local`."""
    if not job_dir:
        # The story of a run records its end; on a laptop, a file does.
        return JobFolder(
            shown=environment.checkpoints,
            environment=environment,
            record="" if environment.on_machine else environment.done_file,
        )
    if is_bucket(job_dir):
        url = job_dir.rstrip("/")
        name = hashlib.sha256(url.encode()).hexdigest()[:12]
        home = os.path.join(os.path.dirname(environment.checkpoints), "jobs", name)
        environment = environment if environment.on_machine else _below(environment, home)
        mirror = BucketMirror(url, environment.checkpoints, keep=KEEP)
        return JobFolder(shown=url, environment=environment, record="", mirror=mirror)
    folder = os.path.abspath(os.path.expanduser(job_dir))
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise UsageError(f"--job-dir {job_dir}: expected a folder, found a file")
    record = os.path.join(folder, "done.json")
    environment = (
        dataclasses.replace(environment, checkpoints=folder) if environment.on_machine else _below(environment, folder)
    )
    return JobFolder(shown=job_dir, environment=environment, record=record)


def _below(environment: Environment, folder: str) -> Environment:
    return dataclasses.replace(
        environment,
        checkpoints=folder,
        outputs=os.path.join(folder, "outputs"),
        metrics_file=os.path.join(folder, "metrics.jsonl"),
        notice_file=os.path.join(folder, "notice.json"),
        done_file=os.path.join(folder, "done.json"),
    )
