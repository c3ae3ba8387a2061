"""The futures of calls on machines: cancelled only if no worker will execute the call, set exactly once."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import TYPE_CHECKING, Any

from outlast.errors import CallFailed

if TYPE_CHECKING:
    from outlast.executor.pool import PendingCall, WorkerPool


class BrokenPool(CallFailed, BrokenExecutor):
    """The workers of an Executor fail, so that its calls have no result."""


class CallFuture(Future[Any]):
    """The future of one call."""

    def __init__(self, pool: WorkerPool) -> None:
        super().__init__()
        self._pool = pool
        self.call: PendingCall | None = None

    def cancel(self) -> bool:
        """Cancel the call, unless a worker has claimed it."""
        if self.cancelled():
            return True
        if self.call is None or self.done() or not self._pool.withdraw(self.call):
            return False
        cancelled = super().cancel()
        # Nothing else will run it: those who wait for it are notified now.
        self.set_running_or_notify_cancel()
        return cancelled

    def mark_running(self) -> None:
        """Record that a worker has claimed the call."""
        if not self.running() and not self.done():
            self.set_running_or_notify_cancel()

    def deliver(self, decoding: Future[Any]) -> None:
        """Set the decoded outcome of the call."""
        value, problem = decoding.result()
        if problem is not None:
            settle(self, problem)
            return
        self.mark_running()
        self.set_result(value)


def settle(future: CallFuture, problem: BaseException) -> None:
    """Set an exception, if the future is not done."""
    if not future.done():
        future.mark_running()
        future.set_exception(problem)
