"""The local cloud itself: its zones, and all of its machines, whatever workspace they belong to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outlast.clouds.cloud import LABEL_ATTEMPT, LABEL_RUN, LABEL_WORKSPACE
from outlast.clouds.local import catalog
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.zones import ZoneConditions
from outlast.errors import BadRequest, CloudError, UsageError

if TYPE_CHECKING:
    from outlast.clouds.cloud import Machine

ZONES: Sequence[str] = tuple(catalog.ZONES)
ALL = "all"


@contextmanager
def local_cloud() -> Iterator[LocalCloud]:
    """Yield the local cloud; turn errors of the operating system into CloudError."""
    cloud = LocalCloud()
    try:
        yield cloud
    except OSError as problem:
        raise CloudError(
            f"the local cloud in {cloud.root} cannot be used: {problem.strerror or problem}",
            hint="set OUTLAST_LOCAL_CLOUD to a folder that you can write to",
        ) from problem


def root_of_local_cloud() -> str:
    """Return the folder of its data."""
    return LocalCloud().root


def owner_of(machine: Machine) -> dict[str, str]:
    """Return the run, the attempt and the workspace of a machine; empty without an owner."""
    labels = {"run": LABEL_RUN, "attempt": LABEL_ATTEMPT, "workspace": LABEL_WORKSPACE}
    return {name: machine.labels.get(label, "") for name, label in labels.items()}


def zone_rows() -> list[dict[str, Any]]:
    """Return the zones: capacity, running machines, mean life of spot machines, prices."""
    with local_cloud() as cloud:
        return [_zone(zone, settings, cloud.machines()) for zone, settings in cloud.zone_settings().items()]


def _zone(zone: str, settings: dict[str, Any], machines: Any) -> dict[str, Any]:
    conditions = ZoneConditions(settings)
    trace = settings.get("trace")
    return {
        "zone": zone,
        "capacity": settings.get("capacity"),
        "quota": settings.get("quota"),
        "rate": settings.get("rate"),
        "running": sum(m.zone == zone and m.status in ("pending", "running", "stopping") for m in machines),
        "mean_life_s": conditions.mean_life_s,
        "grace_s": conditions.grace_s,
        "trace": {name: value for name, value in trace.items() if name != "ticks"} if trace else None,
        "outage": conditions.is_out(time.time()),
        "spot_usd_per_hour": _prices(zone, spot=True),
        "on_demand_usd_per_hour": _prices(zone, spot=False),
    }


def _prices(zone: str, *, spot: bool) -> list[float]:
    """Return the prices of the cheapest and the most expensive machine."""
    prices = [catalog.offer(kind, zone, spot=spot).price_usd_per_hour for kind in catalog.TYPES]
    return [min(prices), max(prices)]


def set_zone(zone: str, changes: dict[str, Any]) -> list[str]:
    """Change the conditions of a zone, or of `all`; return the zones. Raises UsageError."""
    meant = list(ZONES) if zone == ALL else [zone]
    with local_cloud() as cloud:
        for each in meant:
            try:
                cloud.set_zone(each, **changes)
            except BadRequest as problem:
                raise UsageError(problem.message, hint=problem.hint) from problem
    return meant
