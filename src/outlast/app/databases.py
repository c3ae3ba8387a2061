"""Databases: creating, connecting, access and backups, by their names."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from outlast import private
from outlast.app.clouds import clouds
from outlast.app.resource_status import database_status, ready_record, resource_records
from outlast.clouds.traits import DEFAULT_CLOUD, traits_of
from outlast.errors import NotFound, OutlastError
from outlast.workspace import Workspace

if TYPE_CHECKING:
    from outlast.clouds.resources import Backup, Database
    from outlast.databases.check import CheckStep
    from outlast.databases.lifecycle import HasDatabases
    from outlast.records.resources import ResourceRecord, ResourceRecords
    from outlast.sql.session import Login

Report = Callable[[str], None]
# Certificates of databases for which a URL was returned; drivers read them. They are not secret.
_CERTIFICATES = "~/.outlast/databases"


def create_database(
    workspace: Workspace,
    name: str,
    *,
    engine: Literal["mysql", "postgres"],
    cloud: str = "",
    zone: str = "",
    type: str = "",
    size_gb: float = 10.0,
    report: Report,
) -> tuple[ResourceRecord, Database]:
    """Create a database and wait until it accepts connections."""
    from outlast.databases import lifecycle
    from outlast.user import current_user

    there = lifecycle.databases_of(clouds(workspace), cloud or DEFAULT_CLOUD)
    return lifecycle.create(
        there,
        resource_records(workspace, "database"),
        name,
        engine=engine,
        who=current_user(),
        zone=zone,
        type=type,
        size_gb=size_gb,
        report=report,
    )


def delete_database(records: ResourceRecords, record: ResourceRecord) -> None:
    """Delete a database with its data and backups, and the certificates that were written for it."""
    from outlast.databases import lifecycle

    lifecycle.delete(lifecycle.databases_of(clouds(records.workspace), record.cloud), records, record)
    for path in glob.glob(f"{glob.escape(os.path.expanduser(_CERTIFICATES))}/{record.name}-*.pem"):
        base, _, port = path.rpartition("-")
        if port.removesuffix(".pem").isdigit() and base.endswith(f"/{record.name}"):
            os.unlink(path)


class DatabaseDetails(msgspec.Struct, frozen=True, kw_only=True):
    """A database: its record, what its cloud reports, its backups; `inside`: who may connect by default."""

    record: ResourceRecord
    found: Database | None
    state: str
    why: str
    backups: list[Backup]
    inside: str


def database_details(workspace: Workspace, name: str) -> DatabaseDetails:
    from outlast.databases import lifecycle

    records = resource_records(workspace, "database")
    record = records.get(name)
    found, state, why = database_status(clouds(workspace), records, record)
    cloud = lifecycle.databases_of(clouds(workspace), record.cloud)
    backups = list(cloud.databases.backups(record.there)) if found is not None else []
    remote = traits_of(record.cloud).remote
    inside = f"machines of {record.cloud}" if remote else "this computer and its machines"
    return DatabaseDetails(record=record, found=found, state=state, why=why, backups=backups, inside=inside)


def _ready(workspace: Workspace, name: str) -> tuple[HasDatabases, ResourceRecords, ResourceRecord]:
    from outlast.databases.lifecycle import databases_of

    records = resource_records(workspace, "database")
    record = ready_record(records, name)
    return databases_of(clouds(workspace), record.cloud), records, record


def login_of(workspace: Workspace, name: str, *, report: Report) -> Login:
    """Return what a client needs to connect; a stopped database is started."""
    from outlast.databases.lifecycle import login

    cloud, records, record = _ready(workspace, name)
    try:
        found = cloud.databases.find(record.there)
        if found.state == "stopped":
            report(f"{name} is stopped; starting it")
            found = cloud.databases.wake(record.there)
    except NotFound as problem:
        hint = f"it was deleted outside outlast; `outlast db delete {name}` removes its record"
        raise NotFound(problem.message, hint=hint) from problem
    return login(cloud, records, record, found)


def check_database(workspace: Workspace, name: str, *, source: str = "", report: Report) -> Iterator[CheckStep]:
    """Yield the steps of a connection: DNS, TCP, TLS, login, permissions, latency."""
    from outlast.databases.check import check

    yield from check(msgspec.structs.replace(login_of(workspace, name, report=report), source=source))


def failure_of(steps: list[CheckStep]) -> OutlastError | None:
    """Return the error of a check; None if all steps passed."""
    from outlast.databases.check import failure

    return failure(steps)


def database_url(workspace: Workspace, name: str, *, portable: bool = False, report: Report) -> str:
    """Return the URL with the password; unless `portable`, the certificate is written to a file of this computer."""
    from outlast.databases import lifecycle

    login, path = login_of(workspace, name, report=report), ""
    if login.ca and not portable:
        path = f"{private.folder('databases')}/{name}-{login.port}.pem"
        with open(path, "w", encoding="ascii") as file:
            file.write(login.ca)
    return lifecycle.url(login, ca_file=path)


def run_client(workspace: Workspace, name: str, argv: tuple[str, ...], *, report: Report) -> int:
    """Run the command-line client of a database; return its exit code."""
    from outlast.databases.access import run_shell

    return run_shell(login_of(workspace, name, report=report), argv)


def allow_access(workspace: Workspace, name: str, who: str) -> dict[str, str]:
    """Allow an address, a network, a host or ann=ADDRESS; this computer if `who` is empty. Returns address → owner."""
    from outlast.databases import access
    from outlast.user import current_user

    cloud, records, record = _ready(workspace, name)
    entries = access.read(who) if who else {cloud.databases.my_address(): current_user()}
    access.allow(cloud, records, record, entries)
    return dict(entries)


def revoke_access(workspace: Workspace, name: str, who: str) -> list[str]:
    """Revoke the access of an address, or of all addresses of a person; return the addresses."""
    from outlast.databases import access

    cloud, records, record = _ready(workspace, name)
    _, out = access.revoke(cloud, records, record, who)
    return list(out)


def back_up(workspace: Workspace, name: str) -> Backup:
    cloud, _, record = _ready(workspace, name)
    return cloud.databases.back_up(record.there)


def backup_to_restore(workspace: Workspace, name: str, backup_id: str = "") -> str:
    """Return the backup that a restore means: the given one, or the newest. Raises NotFound."""
    cloud, _, record = _ready(workspace, name)
    known = cloud.databases.backups(record.there)
    # After an interrupted restore the newest backup is the state before it: a repetition means the same backup again.
    chosen = backup_id or cloud.databases.find(record.there).restoring or (known[-1].id if known else "")
    if not chosen or chosen not in {one.id for one in known}:
        ids = ", ".join(one.id for one in known) or "none"
        what = f"`{name}` has no backup `{chosen}`" if chosen else f"`{name}` has no backup"
        raise NotFound(what, hint=f"backups: {ids}")
    return chosen


def restore_backup(workspace: Workspace, name: str, backup_id: str) -> None:
    cloud, _, record = _ready(workspace, name)
    cloud.databases.restore(record.there, backup_id)
