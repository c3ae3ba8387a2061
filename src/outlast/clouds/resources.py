"""What a cloud keeps for several people at once: volumes and databases. Beside `Cloud`, so that a cloud may lack them.

As there, a call is tried once and answers or raises a typed error, and repeating one never doubles anything. Names are
the cloud's own, made of the workspace's id and the name that people use (`records/resources.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

Engine = Literal["mysql", "postgres"]
# `stopped`: it is there, nobody answers, and whoever needs it wakes it; `broken`: it is there and can not be used.
ResourceState = Literal["creating", "ready", "stopped", "deleting", "broken"]

HOURS_PER_MONTH = 730.0


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """A database server of one database, as its cloud describes it now."""

    name: str
    cloud: str
    engine: Engine
    version: str = ""
    state: ResourceState = "ready"
    why: str = ""
    # The backup that it is being put back to, or was when that was cut short.
    restoring: str = ""
    zone: str = ""
    type: str = ""
    host: str = ""
    port: int = 0
    # Where machines of the cloud find it, if not there.
    inner_host: str = ""
    # The certificate that its own is signed by, as PEM, and the name that its own is for; empty: any name.
    ca: str = ""
    server_name: str = ""
    # Addresses and networks that may connect, besides this cloud's machines.
    allowed: tuple[str, ...] = ()
    size_gb: float = 0.0
    created_at: float = 0.0
    usd_per_hour: float = 0.0
    labels: dict[str, str] = {}


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A copy of a database at one moment. It goes with its database."""

    id: str
    created_at: float
    bytes: int = 0
    state: Literal["creating", "ready", "broken"] = "ready"


class DatabaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. The user may do everything in the database, and nothing outside of it."""

    engine: Engine
    database: str
    user: str
    zone: str = ""
    type: str = ""
    size_gb: float = 10.0
    labels: dict[str, str] = {}


class Databases(Protocol):
    """The databases of one cloud."""

    def create(self, name: str, request: DatabaseRequest, *, password: str) -> Database:
        """Make it, or find it; it answers when this returns. Raises BadRequest, OverQuota, Denied and passing ones."""

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Database]:
        """Every database that carries these labels, in every state."""

    def find(self, name: str) -> Database:
        """One database, as it is now. Raises NotFound."""

    def wake(self, name: str) -> Database:
        """Have it answer if it is only stopped. Repeating is fine. Raises NotFound."""

    def allow(self, name: str, addresses: Sequence[str]) -> None:
        """Replace the list of those who may connect from outside. Raises NotFound, BadRequest."""

    def back_up(self, name: str) -> Backup:
        """A copy of how it is now; whole when this returns. Raises NotFound."""

    def backups(self, name: str) -> Sequence[Backup]:
        """Those there are, oldest first."""

    def restore(self, name: str, backup: str) -> None:
        """Put the database back to how it was. Raises NotFound."""

    def delete(self, name: str) -> None:
        """It and its backups are gone when this returns. Deleting what is not there is fine."""

    def secret(self, name: str) -> Mapping[str, str]:
        """What `Cloud.put_secrets` keeps under this name, for whoever may read it. Raises NotFound, Denied."""

    def my_address(self) -> str:
        """The address that connections from here come from, as this cloud's databases see it."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A file system that many machines mount at once, as its cloud describes it now."""

    name: str
    cloud: str
    state: ResourceState = "ready"
    why: str = ""
    zone: str = ""
    # Machines in these zones reach it; empty: all of its cloud's do.
    zones: tuple[str, ...] = ()
    # What a machine mounts: `server:/share` by NFS, or a folder of this computer.
    source: str = ""
    kind: Literal["nfs", "folder"] = "nfs"
    options: str = ""
    size_gb: float = 0.0
    # None: only who mounts it can tell.
    used_gb: float | None = None
    created_at: float = 0.0
    usd_per_month: float = 0.0
    labels: dict[str, str] = {}


class Volumes(Protocol):
    """The volumes of one cloud."""

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        """Make it, or find it; it can be mounted when this returns. Raises BadRequest, OverQuota, Denied."""

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Volume]:
        """Every volume that carries these labels, in every state."""

    def find(self, name: str) -> Volume:
        """One volume, as it is now. Raises NotFound."""

    def resize(self, name: str, size_gb: float) -> Volume:
        """Let it grow, or shrink where its cloud can. Raises NotFound, BadRequest."""

    def delete(self, name: str) -> None:
        """It and all that is in it are gone when this returns. Deleting what is not there is fine."""
