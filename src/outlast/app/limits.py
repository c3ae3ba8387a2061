"""Spending limits of users and of the workspace: reading and changing them. `limit_usage` has their usage."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from outlast.errors import UsageError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.billing.limits import Limits

_AMOUNTS = ("cost_usd", "max_hours", "max_machines")


def limits_set(workspace: Workspace) -> list[Limits]:
    """Return the limits. Most workspaces have none, which takes one listing."""
    if not workspace.bucket.children("limits/"):
        return []
    from outlast.billing.limits import read_limits

    return list(read_limits(workspace.bucket))


def change_limits(workspace: Workspace, who: str, changes: Mapping[str, object], *, is_new: bool = False) -> Limits:
    """Change the limits of a user, or of the workspace if `who` is empty; 0 removes a limit. Raises UsageError.

    `changes` has `cost_usd`, `max_hours`, `max_machines` and `per`. `is_new` allows a user without runs.
    """
    import msgspec

    from outlast.billing.limits import Limits, key_of, read_limits, write_limits
    from outlast.user import current_user

    for name in _AMOUNTS:
        value = changes.get(name, 0)
        assert isinstance(value, int | float)
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"{name} {value}: must be zero or more", hint="0 removes the limit")
    key_of(who)
    if who and not is_new:
        check_limited_user(workspace, who)
    before = next((one for one in read_limits(workspace.bucket) if one.who == who), Limits(who=who))
    wanted = msgspec.structs.replace(before, **changes, by=current_user(), at=workspace.clock())
    if wanted.empty and before.empty:
        raise UsageError("per: a period needs a limit", hint="add a cost or hours")
    write_limits(workspace.bucket, wanted)
    return wanted


def check_limited_user(workspace: Workspace, who: str) -> None:
    """Raise UsageError for a user without runs, machines and limits in this workspace."""
    from outlast.app.costs import check_user
    from outlast.billing.ledger_store import LedgerStore
    from outlast.billing.limits import read_limits
    from outlast.records.machines import MachineRecords

    pages = LedgerStore(workspace).runs(time.time())
    known = {page.who for page in pages} | {record.who for record in MachineRecords(workspace).all()}
    known |= {one.who for one in read_limits(workspace.bucket)}
    if who not in known:
        try:
            check_user(who, sorted(known - {""}))
        except UsageError as problem:
            hint = f"{problem.hint}; add --new for a user without runs"
            raise UsageError(problem.message, hint=hint) from problem
