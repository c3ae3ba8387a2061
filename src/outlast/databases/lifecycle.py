"""Create and delete databases, and pass their addresses to runs. The record is written before each effect.

The password is generated here and stored in the cloud's secret store before the server gets it. It never appears in a
command line, in metadata or in a log.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol
from urllib.parse import quote

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud
from outlast.clouds.resources import HOURS_PER_MONTH, Database, DatabaseRequest, Databases, Engine
from outlast.errors import BadRequest, NotFound, OutlastError, UsageError
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.sql.session import Login

# Placeholder for the path of the server's certificate in an address.
CA_PLACE = "{ca}"
_CA_BYTES_MAX = 4096


class HasDatabases(Cloud, Protocol):
    """A cloud that has databases."""

    @property
    def databases(self) -> Databases: ...


def sql_name(name: str) -> str:
    """Return the SQL name of the database and its user, which needs no quotes."""
    return name.replace("-", "_")


def secret_name(records: ResourceRecords, name: str) -> str:
    # Run names contain no `_`, so this cannot collide with one.
    return records.workspace.secrets_name(f"db_{name}")


def create(
    cloud: HasDatabases,
    records: ResourceRecords,
    name: str,
    *,
    engine: Engine,
    who: str,
    zone: str = "",
    type: str = "",
    size_gb: float = 10.0,
    report: Callable[[str], None] = lambda _: None,
) -> tuple[ResourceRecord, Database]:
    """Create the database; roll back on failure. Raises StoreTaken."""
    record = records.claim(name, cloud=cloud.name, who=who, zone=zone, size_gb=size_gb, engine=engine)
    request = DatabaseRequest(
        engine=engine,
        database=sql_name(name),
        user=sql_name(name),
        zone=zone,
        type=type,
        size_gb=size_gb,
        labels={LABEL_WORKSPACE: records.workspace.id},
    )
    with ExitStack() as undo:
        # Roll back on any failure or interrupt: an unreported database must not be billed.
        undo.callback(_roll_back, cloud, records, record)
        password = _password(cloud, secret_name(records, name))
        report(f"creating database {name} on {cloud.name}: {engine}")
        database = cloud.databases.create(record.there, request, password=password)
        price = database.usd_per_hour * HOURS_PER_MONTH
        ready = msgspec.structs.replace(record, phase="ready", usd_per_month=price, zone=database.zone)
        record = records.write(ready)
        undo.pop_all()
    return record, database


def _password(cloud: HasDatabases, secret: str) -> str:
    """Return the stored password of an interrupted creation, or store a new one before it is used."""
    try:
        return cloud.databases.secret(secret)["password"]
    except (NotFound, KeyError):
        password = secrets.token_urlsafe(24)
        cloud.put_secrets(secret, {"password": password})
        return password


def _roll_back(cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord) -> None:
    try:
        if not records.is_owner(record):
            return
        cloud.databases.delete(record.there)
        cloud.drop_secrets(secret_name(records, record.name))
    except OutlastError:
        return  # the record stays, so that `list` shows it and `delete` tries again
    records.remove(record)


def delete(cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord) -> None:
    """Delete the database, then its record; may be repeated."""
    record = records.write(msgspec.structs.replace(record, phase="deleting"))
    cloud.databases.delete(record.there)
    cloud.drop_secrets(secret_name(records, record.name))
    records.remove(record)


def login(
    cloud: HasDatabases,
    records: ResourceRecords,
    record: ResourceRecord,
    database: Database,
    *,
    inner: bool = False,
) -> Login:
    """Return how to connect. Raises BadRequest if the database is broken or not ready."""
    if database.state == "broken" and database.why:
        hint = f"`outlast db show {record.name}` lists its backups; `outlast db restore {record.name} BACKUP`"
        raise BadRequest(f"database `{record.name}` is broken: {database.why}", hint=hint)
    if not database.host:
        raise BadRequest(f"database `{record.name}` is {database.state}", hint="wait until it is ready")
    try:
        password = cloud.databases.secret(secret_name(records, record.name))["password"]
    except NotFound as problem:
        why = f"the password of `{record.name}` is missing from the secret store of {cloud.name}"
        raise BadRequest(why, hint=f"create it again: `outlast db delete {record.name}`, then `create`") from problem
    return Login(
        engine=database.engine,
        host=(database.inner_host if inner else "") or database.host,
        port=database.port,
        user=sql_name(record.name),
        password=password,
        database=sql_name(record.name),
        ca=database.ca,
        server_name=database.server_name,
    )


def url(login: Login, *, ca_file: str) -> str:
    """Return the URL in the format of libpq and SQLAlchemy: encrypted, and verified if there is a certificate."""
    host = f"[{login.host}]" if ":" in login.host else login.host
    scheme = "mysql" if login.engine == "mysql" else "postgresql"
    file = ca_file if ca_file == CA_PLACE else quote(ca_file, safe="/")
    if login.engine == "mysql":
        query = f"?ssl_ca={file}" if file else "?ssl=true"
    else:
        mode = "verify-full" if login.server_name else "verify-ca"
        query = f"?sslmode={mode}&sslrootcert={file}" if file else "?sslmode=require"
    return f"{scheme}://{login.user}:{login.password}@{host}:{login.port}/{login.database}{query}"


def values_for(wanted: Mapping[str, str], records: ResourceRecords, clouds: Mapping[str, Cloud]) -> dict[str, str]:
    """Return the secrets of a run that uses databases: variable → address, and the certificate.

    The agent fills in the path of the certificate (`agent/mounts.py`). Raises NoSuchStore.
    """
    values: dict[str, str] = {}
    for variable, name in wanted.items():
        record = records.get(name)
        cloud = databases_of(clouds, record.cloud)
        database = cloud.databases.wake(record.there)
        connection = login(cloud, records, record, database, inner=True)
        # A bundle of all authorities of a cloud exceeds the size limit of a secret; the connection is still encrypted.
        included = 0 < len(connection.ca) <= _CA_BYTES_MAX
        values[variable] = url(connection, ca_file=CA_PLACE if included else "")
        if included:
            values[ca_variable(variable)] = connection.ca
    return values


def ca_variable(variable: str) -> str:
    return f"{variable.removesuffix('_URL')}_CA"


def databases_of(clouds: Mapping[str, Cloud], name: str) -> HasDatabases:
    found = clouds.get(name)
    if found is None or not hasattr(found, "databases"):
        raise UsageError(f"cloud `{name}` has no databases", hint="choose another --cloud")
    return found  # type: ignore[return-value]
