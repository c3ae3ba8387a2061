"""An executor with the interface of submitit: `from outlast.executor import submitit` replaces `import submitit`.

Jobs run on the machines of one `outlast.Executor`, and belong to the process that submits them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

from outlast.errors import UsageError, WaitTimeout
from outlast.executor.executor import DelayedCall, Executor

# Parameters of submitit → the argument here, or None if machines have no such setting.
_PARAMETERS = {
    "cpus_per_task": "cpus",
    "gpus_per_node": "gpu",
    "mem_gb": "memory",
    "name": "name",
    "timeout_min": None,
    "nodes": None,
    "tasks_per_node": None,
}
_FOREIGN = ("slurm_", "local_", "stderr_to_stdout")


class Job:
    """One submitted call."""

    def __init__(self, number: int, future: Future[Any]) -> None:
        self.job_id = str(number)
        self._future = future

    @property
    def state(self) -> str:
        if self._future.cancelled():
            return "CANCELLED"
        if self._future.done():
            return "FAILED" if self._future.exception() is not None else "COMPLETED"
        return "RUNNING" if self._future.running() else "PENDING"

    def done(self, force_check: bool = False) -> bool:
        return self._future.done()

    def result(self) -> Any:
        """Wait for the result; raises the exception of the call."""
        return self._future.result()

    def results(self) -> list[Any]:
        return [self.result()]

    def exception(self) -> BaseException | None:
        try:
            return self._future.exception()
        except CancelledError as cancelled:
            return cancelled

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the job is done. Raises WaitTimeout."""
        try:
            self._future.exception(timeout)
        except CancelledError:
            pass
        except TimeoutError as problem:
            raise WaitTimeout(f"job {self.job_id} has not ended within {timeout:g} s") from problem

    def cancel(self, check: bool = True) -> None:
        self._future.cancel()


class AutoExecutor:
    """The executor of submitit. `update_parameters` describes the machines; fields of `outlast.submit` work too."""

    def __init__(self, folder: str | os.PathLike[str] = "", cluster: str | None = None, **_: Any) -> None:
        self.folder = folder
        self._options: dict[str, Any] = {}
        self._executor: Executor | None = None
        self._count = 0

    def update_parameters(self, **parameters: Any) -> None:
        """Set parameters of submitit, or arguments of `outlast.Executor`. Raises UsageError after the first job."""
        if self._executor is not None:
            raise UsageError(
                "update_parameters: machines exist already", hint="set the parameters before the first job"
            )
        for name, value in parameters.items():
            if name == "slurm_array_parallelism":
                self._options["max_workers"] = value
            elif name in _PARAMETERS:
                self._set(name, value)
            elif not name.startswith(_FOREIGN):
                self._options[name] = value

    def _set(self, name: str, value: Any) -> None:
        if name in ("nodes", "tasks_per_node") and value != 1:
            raise UsageError(f"{name}: a job has one machine and one task, got {value!r}")
        argument = _PARAMETERS[name]
        if name == "mem_gb":
            self._options["memory"] = f"{math.ceil(value)}GB+"
        elif name == "gpus_per_node":
            if value and "gpu" not in self._options:
                raise UsageError("gpus_per_node: name the kind of GPU", hint='such as update_parameters(gpu="T4:1")')
        elif name == "cpus_per_task":
            self._options["cpus"] = f"{value}+"
        elif argument is not None:
            self._options[argument] = value

    def submit(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Job:
        if self._executor is None:
            self._executor = Executor(**self._options)
        self._count += 1
        return Job(self._count, self._executor.submit(fn, *args, **kwargs))

    def map_array(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> list[Job]:
        return [self.submit(fn, *items) for items in zip(*iterables, strict=False)]

    def submit_array(self, fns: Iterable[Callable[[], Any]]) -> list[Job]:
        return [self.submit(fn) for fn in fns]

    @contextmanager
    def batch(self, allow_implicit_submissions: bool = False) -> Iterator[None]:
        """Do nothing: calls are queued at once and need no array."""
        yield

    def shutdown(self, wait: bool = True) -> None:
        """End the machines when all jobs are done."""
        if self._executor is not None:
            self._executor.shutdown(wait)


class Checkpointable:
    """A callable that continues after a preemption with the state of its attributes."""

    def checkpoint(self, *args: Any, **kwargs: Any) -> DelayedCall:
        return DelayedCall(cast("Callable[..., Any]", self), *args, **kwargs)


DelayedSubmission = DelayedCall
helpers = SimpleNamespace(Checkpointable=Checkpointable, DelayedSubmission=DelayedCall)
