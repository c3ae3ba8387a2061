"""A cache of spending limits and closed ledger pages, refreshed every few seconds."""

from __future__ import annotations

from collections.abc import Collection, Container

from outlast.billing.ledger import after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore
from outlast.billing.limits import Limits, begin_of, read_limits
from outlast.errors import Damaged
from outlast.store.parallel import ParallelMap
from outlast.supervisor.world import Budget
from outlast.workspace import Workspace

# Limits change rarely, and closed pages change only when a run ends.
_FRESH_S = 15.0


class BudgetReader:
    """The budgets that one supervisor has read. Only a cache."""

    def __init__(self, workspace: Workspace, *, each: ParallelMap) -> None:
        self.workspace = workspace
        self.ledger = LedgerStore(workspace, each=each)
        self._limits: list[Limits] = []
        self._pages: list[LedgerPage] = []
        self._read_at = float("-inf")
        self._stale = True

    def mark_stale(self) -> None:
        """Read the pages again next time: a run has ended and its page is new."""
        self._stale = True

    def budgets(
        self, now: float, *, observed_at: float, open_runs: Container[str], others: Collection[str] = ()
    ) -> tuple[Budget, ...]:
        """Return each limit with its use by closed pages and by the runs of other supervisors (`others`).

        `observed_at` is monotonic.
        """
        if observed_at - self._read_at >= _FRESH_S:
            try:
                self._limits = read_limits(self.workspace.bucket)
            except Damaged:
                pass  # keep the limits read before: one damaged object must not stop the supervision
            self._read_at, self._stale = observed_at, True
        if not self._limits:
            return ()
        if self._stale:
            self._read_pages(now, others)
        return tuple(self._budget(limits, now, open_runs) for limits in self._limits)

    def _read_pages(self, now: float, others: Collection[str]) -> None:
        # A page that was closed just now is also in `closed`.
        pages = {page.name: page for page in (self.ledger.run(run, now) for run in others)}
        closed = self.ledger.closed()
        self._pages = [*closed, *(page for name, page in pages.items() if name not in {p.name for p in closed})]
        self._stale = False

    def _budget(self, limits: Limits, now: float, open_runs: Container[str]) -> Budget:
        since = begin_of(limits.per, now)
        pages = [page for page in self._pages if limits.who in ("", page.who)]
        lines = [line for page in pages if page.name not in open_runs for line in page.lines]
        used = total(piece for line in lines if (piece := after(line, since)) is not None)
        return Budget(limits=limits, since=since, closed_usd=used.cost_usd, closed_s=used.seconds)
