"""Spending: the lines of the ledger, of machines that users created, and of volumes and databases."""

from __future__ import annotations

import datetime
import re
import time
from typing import Any, cast

import msgspec

from outlast.app.clouds import clouds
from outlast.billing.ledger import CAUSE_LABELS as CAUSE_LABELS
from outlast.billing.ledger import CAUSES as CAUSES
from outlast.billing.ledger import By as By
from outlast.billing.ledger import LedgerLine, after
from outlast.billing.ledger import grouped as grouped
from outlast.billing.ledger import total as total
from outlast.billing.ledger_store import LedgerStore, resource_lines
from outlast.errors import UsageError
from outlast.spec.quantity import duration_s
from outlast.workspace import Workspace


class SpendingLines(msgspec.Struct, frozen=True, kw_only=True):
    """The lines since a time, and records and clouds that could not be read."""

    lines: list[LedgerLine]
    since: float
    damaged: dict[str, str]
    unreachable: dict[str, str]


class CostSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Spending in total and by day (UTC) or run, compared with on-demand prices."""

    total_usd: float
    on_demand_usd: float
    wasted_usd: float
    # The part that is an estimate for running machines.
    estimated_usd: float
    by_day: dict[str, float]
    by_run: dict[str, float]
    unreachable: dict[str, str]


def spending(
    workspace: Workspace, run: str = "", *, who: str = "", since: str = "", now: float | None = None
) -> SpendingLines:
    """Return the spending on everything, or on one run. Raises UsageError for a time or user that is unknown."""
    now = time.time() if now is None else now
    begin = when(since, now) if since else 0.0
    ledger = LedgerStore(workspace)
    lines, unreachable = _lines(workspace, ledger, run, now)
    if who:
        known = sorted({line.who for line in lines} | {page.who for page in ledger.runs(now)} - {""})
        check_user(who, known)
        lines = [line for line in lines if line.who == who]
    lines = [piece for line in lines if (piece := after(line, begin)) is not None]
    return SpendingLines(lines=lines, since=begin, damaged=dict(ledger.damaged), unreachable=unreachable)


def cost_summary(workspace: Workspace, *, since: str = "", who: str = "") -> CostSummary:
    """Return the spending since a duration ago or a day, as sums."""
    found = spending(workspace, since=since, who=who)
    whole = total(found.lines)
    return CostSummary(
        total_usd=whole.cost_usd,
        on_demand_usd=whole.on_demand_usd,
        wasted_usd=whole.wasted_usd,
        estimated_usd=whole.estimated_usd,
        by_day={day: one.cost_usd for day, one in grouped(found.lines, "day").items()},
        by_run={run: one.cost_usd for run, one in grouped(found.lines, "run").items()},
        unreachable=found.unreachable,
    )


def _lines(workspace: Workspace, ledger: LedgerStore, run: str, now: float) -> tuple[list[LedgerLine], dict[str, str]]:
    if run:
        return list(ledger.run(workspace.find(run), now).lines), {}
    from outlast.machines.billing import open_lines
    from outlast.records.machines import MachineRecords

    lines = [line for page in [*ledger.runs(now), *ledger.machines()] for line in page.lines]
    machine_records = MachineRecords(workspace)
    there, unreachable = (
        open_lines(cast(Any, clouds(workspace)), machine_records) if machine_records.names() else ([], {})
    )
    stores = resource_lines(workspace, now, ledger.damaged)
    ledger.damaged.update({f"machine {name}": why for name, why in machine_records.damaged.items()})
    return lines + there + stores, unreachable


def when(text: str, now: float) -> float:
    """Parse a duration before now, or the start of a day in UTC."""
    if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
        try:
            at = datetime.datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=datetime.UTC).timestamp()
        except ValueError as problem:
            raise UsageError(f"since {text}: invalid date", hint="write it like 2026-11-01") from problem
        if at > now:
            raise UsageError(f"since {text}: the date is in the future")
        return at
    try:
        return now - duration_s(text)
    except ValueError as problem:
        raise UsageError(f"since {text}: {problem}", hint="write it like 7d, 12h or 2026-11-01") from problem


def check_user(who: str, known: list[str]) -> None:
    if who not in known:
        import difflib

        close = difflib.get_close_matches(who, known, n=3, cutoff=0.4) or known[:8]
        hint = "known: " + ", ".join(f"`{one}`" for one in close) if close else "no user has submitted anything yet"
        raise UsageError(f"user `{who}` has never had a run or a machine in this workspace", hint=hint)
