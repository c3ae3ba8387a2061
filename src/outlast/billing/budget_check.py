"""The check of a new request against the spending limits."""

from __future__ import annotations

from collections.abc import Sequence

from outlast.billing.ledger import Sum, after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore
from outlast.billing.limits import Limits, begin_of, read_limits
from outlast.errors import OverLimit
from outlast.workspace import Workspace


def check_budget(workspace: Workspace, *, who: str, hour_usd: float, now: float) -> None:
    """Raise OverLimit if a budget of the user or the workspace does not pay for one hour.

    Live machines that no run owns are not included: only their cloud knows their cost. Supervisors count them.
    """
    found = [limits for limits in read_limits(workspace.bucket) if limits.who in ("", who)]
    if not found:
        return
    ledger = LedgerStore(workspace)
    pages = [*ledger.runs(now), *ledger.machines()]
    for limits in found:
        used = _used(limits, pages, now)
        left = limits.cost_usd - used.cost_usd
        hint = "see `outlast cost` and `outlast limits`; the user who set the limit can raise it"
        if limits.cost_usd and left <= hour_usd:
            raise OverLimit(
                f"{limits.whose} has ${max(0.0, left):.4g} left of ${limits.cost_usd:g}{_span(limits)}; "
                f"the cheapest matching machine costs ${hour_usd:.4g}/h",
                hint=hint,
            )
        if limits.max_hours and used.seconds >= limits.max_hours * 3600.0:
            raise OverLimit(
                f"{limits.whose} has used all of {limits.max_hours:g} machine hours{_span(limits)}", hint=hint
            )


def _used(limits: Limits, pages: Sequence[LedgerPage], now: float) -> Sum:
    since = begin_of(limits.per, now)
    lines = [line for page in pages if limits.who in ("", page.who) for line in page.lines]
    return total(piece for line in lines if (piece := after(line, since)) is not None)


def _span(limits: Limits) -> str:
    return "" if limits.per == "total" else f"/{limits.per}"
