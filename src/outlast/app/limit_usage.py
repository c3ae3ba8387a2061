"""The usage of spending limits as supervisors count it: for `outlast limits`, `outlast cost` and the dashboard."""

from __future__ import annotations

import msgspec

from outlast.app.dry_run import read_only_observer
from outlast.billing.limits import Limits, read_limits
from outlast.supervisor.limits import tallies
from outlast.supervisor.world import World
from outlast.workspace import Workspace


class LimitUsage(msgspec.Struct, frozen=True, kw_only=True):
    """One limit and its usage by runs, and by machines that no run owns."""

    limits: Limits
    used_usd: float
    used_hours: float


def limit_usages(workspace: Workspace, now: float) -> list[LimitUsage]:
    """Return the usage of all limits. Contacts the clouds if there are limits: only they know the cost of machines."""
    if not read_limits(workspace.bucket):
        return []
    return usages_in(read_only_observer(workspace).observe(now))


def usages_in(world: World) -> list[LimitUsage]:
    """Return the usage of all limits in an observed world."""
    return [
        LimitUsage(limits=tally.budget.limits, used_usd=tally.used_usd, used_hours=tally.used_s / 3600.0)
        for tally in tallies(world)
    ]
