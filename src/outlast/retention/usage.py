"""How much of the workspace each run and each kind of object takes, from one listing, and its monthly cost."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outlast.clouds.traits import store_owner, traits_of
from outlast.store.bucket import Entry
from outlast.store.traits import scheme_of
from outlast.workspace import Workspace

# The first folder below `runs/RUN/` → kind. Everything else of a run belongs to its story.
_OF_RUN = {"parts": "checkpoints", "checkpoints": "checkpoints", "logs": "logs", "metrics": "metrics"}
_OF_RUN |= {"outputs": "outputs", "utilisation": "metrics"}
# The first folder of the workspace → kind.
_SHARED = {"code": "code", "blobs": "code", "environments": "environments", "wheels": "outlast", "kits": "outlast"}
_SHARED |= {"images": "images", "deleted": "ledger", "ledger": "ledger", "pools": "calls"}
KINDS = ("checkpoints", "outputs", "logs", "metrics", "story")
SHARED_KINDS = ("code", "environments", "outlast", "images", "ledger", "calls", "other")


class DiskUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one run, or of one kind of shared objects."""

    # Empty for shared objects.
    run: str
    bytes: int
    objects: int
    # Kind → bytes.
    kinds: dict[str, int]
    # Zero where storage is free or its price unknown.
    usd_per_month: float


class WorkspaceUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a whole workspace: runs, largest first, and shared objects."""

    workspace: str
    bytes: int
    objects: int
    usd_per_month: float
    usd_per_gb_month: float
    runs: list[DiskUse]
    shared: DiskUse


def storage_price(url: str) -> float:
    """Return the list price of a GB for a month in the workspace's store; 0 if it is free or unknown."""
    owner = store_owner(scheme_of(url))
    return traits_of(owner).storage_usd_per_gb if owner else 0.0


def disk_use(workspace: Workspace) -> WorkspaceUse:
    """List the whole workspace and add it up."""
    return added_up(workspace.bucket.list(""), url=workspace.url)


def added_up(entries: Iterable[Entry], *, url: str) -> WorkspaceUse:
    """Add up the bytes of a listing by run and kind."""
    price = storage_price(url)
    kinds: dict[str, dict[str, int]] = {}
    counts: dict[str, int] = {}
    for entry in entries:
        run, kind = _kind_of(entry.key)
        by_kind = kinds.setdefault(run, {})
        by_kind[kind] = by_kind.get(kind, 0) + entry.bytes
        counts[run] = counts.get(run, 0) + 1

    def use(run: str) -> DiskUse:
        size = sum(kinds.get(run, {}).values())
        cost = size / 1e9 * price
        return DiskUse(run=run, bytes=size, objects=counts.get(run, 0), kinds=kinds.get(run, {}), usd_per_month=cost)

    rows = sorted((use(run) for run in kinds if run), key=lambda row: (-row.bytes, row.run))
    size = sum(row.bytes for row in rows) + use("").bytes
    return WorkspaceUse(
        workspace=url,
        bytes=size,
        objects=sum(counts.values()),
        usd_per_month=size / 1e9 * price,
        usd_per_gb_month=price,
        runs=rows,
        shared=use(""),
    )


def _kind_of(key: str) -> tuple[str, str]:
    """Return the run of an object, empty for shared ones, and its kind."""
    first, _, rest = key.partition("/")
    if first != "runs":
        return "", _SHARED.get(first, "other")
    run, _, rest = rest.partition("/")
    return run, _OF_RUN.get(rest.partition("/")[0], "story")
