"""The usage of spending limits, and the check of a new request against them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.billing.ledger import after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore
from outlast.billing.limits import Limits, begin_of, read_limits
from outlast.errors import OverLimit
from outlast.workspace import Workspace


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and its usage."""

    limits: Limits
    used_usd: float
    used_hours: float


def limit_usages(workspace: Workspace, now: float, found: Sequence[Limits] | None = None) -> list[LimitUsage]:
    """Return the usage of all limits by runs and deleted machines.

    Live machines that no run owns are not included: only their cloud knows their cost. Supervisors count them.
    """
    found = read_limits(workspace.bucket) if found is None else found
    ledger = LedgerStore(workspace)
    pages = [*ledger.runs(now), *ledger.machines()] if found else []
    return measured(found, pages, now)


def measured(found: Sequence[Limits], pages: Sequence[LedgerPage], now: float) -> list[LimitUsage]:
    """Return the usage of these limits by the given pages."""
    rows = []
    for limits in found:
        since = begin_of(limits.per, now)
        lines = [line for page in pages if limits.who in ("", page.who) for line in page.lines]
        used = total(piece for line in lines if (piece := after(line, since)) is not None)
        rows.append(LimitUsage(limits=limits, used_usd=used.cost_usd, used_hours=used.seconds / 3600.0))
    return rows


def check_budget(workspace: Workspace, *, who: str, hour_usd: float, now: float) -> None:
    """Raise OverLimit if a budget of the user or the workspace does not pay for one hour."""
    found = [limits for limits in read_limits(workspace.bucket) if limits.who in ("", who)]
    for usage in limit_usages(workspace, now, found):
        limits = usage.limits
        left = limits.cost_usd - usage.used_usd
        hint = "see `outlast cost` and `outlast limits`; the user who set the limit can raise it"
        if limits.cost_usd and left <= hour_usd:
            raise OverLimit(
                f"{limits.whose} has ${max(0.0, left):.4g} left of ${limits.cost_usd:g}{_span(limits)}; "
                f"the cheapest matching machine costs ${hour_usd:.4g}/h",
                hint=hint,
            )
        if limits.max_hours and usage.used_hours >= limits.max_hours:
            raise OverLimit(
                f"{limits.whose} has used all of {limits.max_hours:g} machine hours{_span(limits)}", hint=hint
            )


def _span(limits: Limits) -> str:
    return "" if limits.per == "total" else f"/{limits.per}"
