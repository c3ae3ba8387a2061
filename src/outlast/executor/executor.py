"""`outlast.Executor`: submit, map and shut down, as every `concurrent.futures.Executor`."""

from __future__ import annotations

import collections
import itertools
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as FuturesExecutor
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from outlast.app.project import find_workspace
from outlast.errors import UsageError
from outlast.executor.pool import WorkerPool
from outlast.spec.duration import duration_s

if TYPE_CHECKING:
    from typing import Unpack

    from outlast.api.fields import MachineOptions, Path
    from outlast.api.space import Space

P = ParamSpec("P")
T = TypeVar("T")
_WORKERS = 4


class DelayedCall:
    """The rest of a call, returned by the `checkpoint` method of its callable when the machine is preempted."""

    def __init__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs


class Executor(FuturesExecutor):
    """Runs functions on worker machines. A call whose machine is preempted runs again on another one.

    Workers are runs named `name`-N. They boot when calls need them, up to `max_workers`, serve many calls, and end
    after `idle` without one, except `min_workers` of them, which stay until the shutdown. Arguments that describe the
    machines are those of `outlast.submit`.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        min_workers: int = 0,
        per_machine: int = 1,
        idle: str | int | float = "2m",
        workspace: Path | Space = "",
        name: str = "executor",
        **fields: Unpack[MachineOptions],
    ) -> None:
        max_workers = _WORKERS if max_workers is None else max_workers
        _check(max_workers, min_workers, per_machine)
        try:
            idle_s = duration_s(idle)
        except ValueError as problem:
            raise UsageError(f"idle: {problem}", hint='write it like "2m"') from problem
        where = workspace.url if hasattr(workspace, "url") else os.fspath(workspace)
        self._pool = WorkerPool(
            find_workspace(where),
            {"name": name, **fields},
            min_workers=min_workers,
            max_workers=max_workers,
            per_machine=per_machine,
            idle_s=idle_s,
            report=lambda text: print(f"outlast: {text}", file=sys.stderr),
        )
        # As in the standard library: calls of an executor that was dropped are completed, then its workers end.
        weakref.finalize(self, self._pool.close).atexit = False

    @property
    def max_workers(self) -> int:
        return self._pool.max_workers

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the runs of live workers."""
        return self._pool.fleet.live

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Queue a call and return its future. Raises errors of pickling at once."""
        return cast("Future[T]", self._pool.submit(fn, args, kwargs))

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Call `fn` with the items of the iterables; results come in their order. A chunk is one call.

        With `buffersize` at most this many calls are submitted ahead of the results that were taken.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        end_at = None if timeout is None else time.monotonic() + timeout

        # A nested function travels with its code: the machine needs no module of ours.
        def call_chunk(items: list[tuple[Any, ...]]) -> list[T]:
            return [fn(*item) for item in items]

        items = iter(zip(*iterables, strict=False))
        chunks = iter(lambda: list(itertools.islice(items, chunksize)), [])
        ahead = itertools.islice(chunks, buffersize)
        # The first calls are submitted now, not when the first result is taken.
        futures = collections.deque(self.submit(call_chunk, chunk) for chunk in ahead)
        return self._results(futures, chunks, call_chunk, end_at)

    def _results(
        self,
        futures: collections.deque[Future[list[T]]],
        chunks: Iterator[list[tuple[Any, ...]]],
        call_chunk: Callable[[list[tuple[Any, ...]]], list[T]],
        end_at: float | None,
    ) -> Iterator[T]:
        """Yield the results of chunks; cancel the rest if the caller stops, or a call fails or takes too long."""
        try:
            while futures:
                for chunk in itertools.islice(chunks, 1):
                    futures.append(self.submit(call_chunk, chunk))
                found = futures[0].result(None if end_at is None else max(0.0, end_at - time.monotonic()))
                futures.popleft()
                yield from found
        finally:
            self._pool.cancel(futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls. Workers end, and their machines are deleted, when all calls are completed."""
        self._pool.close()
        if cancel_futures:
            self._pool.cancel(self._pool.pending())
        if wait:
            self._pool.join()


def _check(max_workers: int, min_workers: int, per_machine: int) -> None:
    """Raise UsageError for numbers that contradict each other."""
    for name, value, least in (
        ("max_workers", max_workers, 1),
        ("min_workers", min_workers, 0),
        ("per_machine", per_machine, 1),
    ):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UsageError(f"{name}: expected an integer of at least {least}, got {value!r}")
    if min_workers > max_workers:
        raise UsageError(f"min_workers: expected at most max_workers ({max_workers}), got {min_workers}")
