"""The joblib backend `outlast`: `Parallel` calls, such as those of scikit-learn, on machines."""

from __future__ import annotations

from typing import Any

from joblib._parallel_backends import ParallelBackendBase
from joblib.parallel import register_parallel_backend

from outlast.executor.executor import Executor

NAME = "outlast"


class OutlastBackend(ParallelBackendBase):  # type: ignore[misc]
    """Runs batches of a `Parallel` call on the machines of an Executor.

    The parameters of `joblib.parallel_config("outlast", …)` are those of `outlast.Executor`; `n_jobs` is the number of
    machines. All `Parallel` calls of one `parallel_config` share warm machines, those inside of an estimator included:
    they end with the backend. With `executor` they outlive it.
    """

    supports_retrieve_callback = True
    # Batches of one: a call on a machine takes milliseconds to hand over.
    default_n_jobs = -1

    def __init__(
        self,
        nesting_level: int | None = None,
        inner_max_num_threads: int | None = None,
        executor: Executor | None = None,
        max_workers: int = 4,
        **options: Any,
    ) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self._shared = executor
        self._max_workers = executor.max_workers if executor is not None else max_workers
        self._options = options
        self._own: Executor | None = None
        self._futures: list[Any] = []

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of machines; -1 and None mean as many as the Executor may have."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or n_jobs < 0:
            return self._max_workers
        return min(n_jobs, self._max_workers) if self._shared is not None else n_jobs

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        self.parallel = parallel
        count = self.effective_n_jobs(n_jobs)
        if self._shared is None:
            if self._own is None:
                self._own = Executor(max_workers=count, **self._options)
            self._own._pool.max_workers = max(self._own.max_workers, count)
        return count

    def submit(self, func: Any, callback: Any = None) -> Any:
        executor = self._shared or self._own
        assert executor is not None
        future = executor.submit(func)
        self._futures = [one for one in self._futures if not one.done()] + [future]
        if callback is not None:
            future.add_done_callback(callback)
        return future

    # The name of `submit` in joblib before 1.5.
    apply_async = submit

    def retrieve_result_callback(self, out: Any) -> Any:
        return out.result()

    def terminate(self) -> None:
        """Forget the calls of this `Parallel`. The Executor closes when joblib drops this backend."""
        self._futures = []

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Cancel what no machine has begun, after an exception of one task."""
        for future in self._futures:
            future.cancel()
        self._futures = []
        if not ensure_ready:
            self.terminate()


def register() -> None:
    """Register the backend under its name."""
    register_parallel_backend(NAME, OutlastBackend)
