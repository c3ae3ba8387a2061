"""The futures of calls on machines: cancelled only if no worker will execute the call, set exactly once."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, Future
from typing import TYPE_CHECKING, Any

from outlast.errors import CallFailed

if TYPE_CHECKING:
    from outlast.executor.pool import PendingCall, Pool


class BrokenPool(CallFailed, BrokenExecutor):
    """The workers of an Executor fail, so that its calls have no result."""


class RemoteTraceback(Exception):
    """The traceback of an exception on a machine: the `__cause__` of the exception here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


class CallFuture(Future[Any]):
    """The future of one call."""

    def __init__(self, pool: Pool) -> None:
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
        """Set the result from the decoded outcome of the call."""
        problem = decoding.exception()
        if problem is not None:
            text = f"the result of the call cannot be loaded here: {type(problem).__name__}: {problem}"
            failure = CallFailed(text, hint="its classes must be importable in this process")
            failure.__cause__ = problem
            settle(self, failure)
            return
        kind, value, *text = decoding.result()
        if kind == "value":
            self.mark_running()
            self.set_result(value)
            return
        if text and text[0]:
            value.__cause__ = RemoteTraceback(text[0])
        settle(self, value)


def settle(future: CallFuture, problem: BaseException) -> None:
    """Set an exception, if the future is not done."""
    if not future.done():
        future.mark_running()
        future.set_exception(problem)
