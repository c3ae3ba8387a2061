"""Volumes and databases of a cloud: protocols beside `Cloud`, because a cloud may lack them.

As in `Cloud`, a call makes one attempt, and a repeated call creates nothing twice. Names are the cloud's, derived from
the workspace's id and the user's name for the resource (`records/resources.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from outlast.sql.session import Engine as Engine

# `stopped`: it exists and starts when it is used; `broken`: it exists and cannot be used.
ResourceState = Literal["creating", "ready", "stopped", "deleting", "broken"]

HOURS_PER_MONTH = 730.0


class Database(msgspec.Struct, frozen=True, kw_only=True):
    """A server with one database, as its cloud describes it now."""

    name: str
    cloud: str
    engine: Engine
    version: str = ""
    state: ResourceState = "ready"
    why: str = ""
    # The backup that is being restored, or whose restore was interrupted.
    restoring: str = ""
    zone: str = ""
    type: str = ""
    host: str = ""
    port: int = 0
    # The address for machines of the cloud, if it differs.
    inner_host: str = ""
    # The CA certificate as PEM, and the name in the server's certificate; empty: any name.
    ca: str = ""
    server_name: str = ""
    # Addresses and networks that may connect, in addition to this cloud's machines.
    allowed: tuple[str, ...] = ()
    size_gb: float = 0.0
    created_at: float = 0.0
    usd_per_hour: float = 0.0
    labels: dict[str, str] = {}


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """A backup of a database. It is deleted with its database."""

    id: str
    created_at: float
    bytes: int = 0
    state: Literal["creating", "ready", "broken"] = "ready"


class DatabaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a new database. Its user has all rights in this database and none outside it."""

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
        """Create the database, or return the existing one, and wait until it accepts connections.

        Raises BadRequest, OverQuota, Denied, and temporary errors.
        """

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Database]:
        """Return every database with these labels, in every state."""

    def find(self, name: str) -> Database:
        """Return the current description of a database. Raises NotFound."""

    def wake(self, name: str) -> Database:
        """Start the server if it is stopped. Raises NotFound."""

    def allow(self, name: str, addresses: Sequence[str]) -> None:
        """Replace the list of outside addresses that may connect. Raises NotFound, BadRequest."""

    def back_up(self, name: str) -> Backup:
        """Create a backup and wait until it is complete. Raises NotFound."""

    def backups(self, name: str) -> Sequence[Backup]:
        """Return the backups, oldest first."""

    def restore(self, name: str, backup: str) -> None:
        """Restore the database from a backup. Raises NotFound."""

    def delete(self, name: str) -> None:
        """Delete the database and its backups, and wait until they are gone. Does nothing if there is none."""

    def secret(self, name: str) -> Mapping[str, str]:
        """Return the values that `Cloud.put_secrets` stored under this name. Raises NotFound, Denied."""

    def my_address(self) -> str:
        """Return this computer's address as the cloud's databases see it."""


class Volume(msgspec.Struct, frozen=True, kw_only=True):
    """A file system that many machines mount at once, as its cloud describes it now."""

    name: str
    cloud: str
    state: ResourceState = "ready"
    why: str = ""
    zone: str = ""
    # Only machines in these zones reach it; empty: all machines of its cloud do.
    zones: tuple[str, ...] = ()
    # The mount source: `server:/share` for NFS, or a folder of this computer.
    source: str = ""
    kind: Literal["nfs", "folder"] = "nfs"
    options: str = ""
    size_gb: float = 0.0
    # None: unknown until it is mounted.
    used_gb: float | None = None
    created_at: float = 0.0
    usd_per_month: float = 0.0
    labels: dict[str, str] = {}


class Volumes(Protocol):
    """The volumes of one cloud."""

    def usd_per_month(self, size_gb: float) -> float:
        """Return the list price of a volume that is created with this size."""

    def create(self, name: str, *, size_gb: float, zone: str = "", labels: Mapping[str, str] | None = None) -> Volume:
        """Create the volume, or return the existing one, and wait until it can be mounted.

        Raises BadRequest, OverQuota, Denied.
        """

    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Volume]:
        """Return every volume with these labels, in every state."""

    def find(self, name: str) -> Volume:
        """Return the current description of a volume. Raises NotFound."""

    def resize(self, name: str, size_gb: float) -> Volume:
        """Enlarge the volume, or shrink it if its cloud can. Raises NotFound, BadRequest."""

    def delete(self, name: str) -> None:
        """Delete the volume with its files, and wait until it is gone. Does nothing if there is none."""
