"""How much of each limit is used, and whether what is asked for can still be paid. Reads books; launches nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outlast.billing.ledger import after, total
from outlast.billing.ledger_store import LedgerPage, LedgerStore
from outlast.billing.limits import Limits, begin_of, read_limits
from outlast.errors import OverLimit
from outlast.workspace import Workspace


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit, and what is used of it."""

    limits: Limits
    used_usd: float
    used_hours: float


def limit_usages(workspace: Workspace, now: float, found: Sequence[Limits] | None = None) -> list[LimitUsage]:
    """Of all limits that are set, by all runs, and by machines made by hand that are gone. What a machine by hand has
    cost that is still there only its cloud can tell, and the supervisor counts it."""
    found = read_limits(workspace.bucket) if found is None else found
    ledger = LedgerStore(workspace)
    pages = [*ledger.runs(now), *ledger.machines()] if found else []
    return measured(found, pages, now)


def measured(found: Sequence[Limits], pages: Sequence[LedgerPage], now: float) -> list[LimitUsage]:
    """How much of these limits is used, by pages that were read before."""
    rows = []
    for limits in found:
        since = begin_of(limits.per, now)
        lines = [line for page in pages if limits.who in ("", page.who) for line in page.lines]
        used = total(piece for line in lines if (piece := after(line, since)) is not None)
        rows.append(LimitUsage(limits=limits, used_usd=used.cost_usd, used_hours=used.seconds / 3600.0))
    return rows


def refuse_if_spent(workspace: Workspace, *, who: str, hour_usd: float, now: float) -> None:
    """Raises OverLimit if a budget of the user or of the workspace does not pay for an hour of what is wanted."""
    found = [limits for limits in read_limits(workspace.bucket) if limits.who in ("", who)]
    for standing in limit_usages(workspace, now, found):
        limits = standing.limits
        left = limits.cost_usd - standing.used_usd
        hint = "see `outlast cost` and `outlast limits`; whoever set the limit can raise it"
        if limits.cost_usd and left <= hour_usd:
            raise OverLimit(
                f"of the budget of {limits.whose} of ${limits.cost_usd:g}{_span(limits)} ${max(0.0, left):.4g} are "
                f"left, and an hour of the cheapest machine that fits costs ${hour_usd:.4g}",
                hint=hint,
            )
        if limits.max_hours and standing.used_hours >= limits.max_hours:
            raise OverLimit(
                f"the {limits.max_hours:g} machine hours{_span(limits)} of {limits.whose} are used", hint=hint
            )


def _span(limits: Limits) -> str:
    return "" if limits.per == "total" else f" a {limits.per}"
