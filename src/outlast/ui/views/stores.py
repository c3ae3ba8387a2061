"""Volumes and databases as rows: what they are, who made them, who uses them, what they cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from outlast.clouds.cloud import Cloud
from outlast.errors import Damaged
from outlast.front.clouds import clouds
from outlast.front.stores import database_standing, volume_standing
from outlast.volumes import care
from outlast.workspace.holdings import Holding, Holdings
from outlast.workspace.workspace import Workspace

_TONES = {"ready": "good", "full": "warn", "making": "busy", "deleting": "busy", "stopped": "off", "unknown": "warn"}


class StoreRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    cloud: str
    zone: str
    state: str
    tone: str
    why: str
    who: str
    made_at: float
    size_gb: float
    # None where only who mounts it can tell.
    used_gb: float | None = None
    usd_per_month: float = 0.0
    # Of a volume what machines mount; of a database its address. Never a password.
    where: str = ""
    engine: str = ""
    version: str = ""
    users: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()

    @property
    def filled(self) -> float | None:
        """From 0 to 1."""
        return None if self.used_gb is None or not self.size_gb else min(1.0, self.used_gb / self.size_gb)


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    volumes: tuple[StoreRow, ...]
    databases: tuple[StoreRow, ...]

    @property
    def usd_per_month(self) -> float:
        return sum(one.usd_per_month for one in (*self.volumes, *self.databases))


class StoreReader:
    """The records of a workspace, and what their clouds say. A cloud that does not answer is told of in its rows."""

    def __init__(self, workspace: Workspace, known: Callable[[Workspace], Mapping[str, Cloud]] = clouds) -> None:
        self.workspace = workspace
        self.known = known

    def __call__(self) -> Stores:
        there = self.known(self.workspace)
        volumes, databases = Holdings(self.workspace, "volume"), Holdings(self.workspace, "database")
        return Stores(
            volumes=(*(_volume(there, volumes, one) for one in volumes.all()), *_damaged(volumes)),
            databases=(*(_database(there, databases, one) for one in databases.all()), *_damaged(databases)),
        )


def _damaged(holdings: Holdings) -> list[StoreRow]:
    """Those whose records cannot be read; they may bill all the same."""
    return [
        _row(Holding(kind=holdings.kind, name=name, id="", cloud="", there=""), "damaged", why)
        for name, why in holdings.damaged.items()
    ]


def _users(holdings: Holdings, name: str) -> tuple[str, ...]:
    try:
        return tuple(care.users(holdings, name))
    except Damaged as problem:
        return (f"nobody knows whom: {problem.message}",)


def _volume(there: Mapping[str, Cloud], holdings: Holdings, holding: Holding) -> StoreRow:
    found, state, why = volume_standing(there, holdings, holding)
    return _row(
        holding,
        state,
        why,
        zone=", ".join(holding.zones) or "every zone",
        used_gb=found.used_gb if found else None,
        where=holding.source,
        users=_users(holdings, holding.name),
    )


def _database(there: Mapping[str, Cloud], holdings: Holdings, holding: Holding) -> StoreRow:
    found, state, why = database_standing(there, holdings, holding)
    return _row(
        holding,
        state,
        why,
        zone=holding.zone,
        where=f"{found.host}:{found.port}" if found else "",
        engine=holding.engine,
        version=found.version if found else "",
        allowed=tuple(f"{a} ({who})" if who and who != a else a for a, who in holding.allowed.items()),
    )


def _row(holding: Holding, state: str, why: str, **more: object) -> StoreRow:
    row = StoreRow(
        name=holding.name,
        kind=holding.kind,
        cloud=holding.cloud,
        zone=holding.zone,
        state=state,
        tone=_TONES.get(state, "bad"),
        why=why,
        who=holding.who,
        made_at=holding.asked_at,
        size_gb=holding.size_gb,
        usd_per_month=holding.usd_per_month,
    )
    return msgspec.structs.replace(row, **more)
