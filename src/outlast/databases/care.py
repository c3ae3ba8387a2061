"""A database's life: made for a name, given to runs, thrown away. The intent is in the workspace before the effect.

The password is drawn here, kept by the cloud's secret store before the server has it, and never told to a command line,
to metadata or to a log.
"""

from __future__ import annotations

import secrets as dice
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Protocol
from urllib.parse import quote

import msgspec

from outlast.clouds.cloud import LABEL_WORKSPACE, Cloud
from outlast.clouds.sql import Login
from outlast.clouds.stores import HOURS_PER_MONTH, Database, Databases, DatabaseWish, Engine
from outlast.errors import BadRequest, NotFound, OutlastError, UsageError
from outlast.workspace.holdings import Holding, Holdings

# Where the file of the server's certificate goes, in an address that is not finished.
CA_PLACE = "{ca}"
_CA_BYTES_MAX = 4096


class Keeper(Cloud, Protocol):
    """A cloud that has databases."""

    @property
    def databases(self) -> Databases: ...


def word(name: str) -> str:
    """The database and its user, by names that need no quotes."""
    return name.replace("-", "_")


def secret_name(holdings: Holdings, name: str) -> str:
    # No run is called like this: there is no `_` in their names.
    return holdings.workspace.secrets_name(f"db_{name}")


def create(
    cloud: Keeper,
    holdings: Holdings,
    name: str,
    *,
    engine: Engine,
    who: str,
    zone: str = "",
    type: str = "",
    size_gb: float = 10.0,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Holding, Database]:
    """Make it. Raises StoreTaken; what fails on the way is taken back."""
    holding = holdings.claim(name, cloud=cloud.name, who=who, zone=zone, size_gb=size_gb, engine=engine)
    wish = DatabaseWish(
        engine=engine,
        database=word(name),
        user=word(name),
        zone=zone,
        type=type,
        size_gb=size_gb,
        labels={LABEL_WORKSPACE: holdings.workspace.id},
    )
    with ExitStack() as undo:
        # Interrupted, or refused: what nobody was told of must not go on billing.
        undo.callback(_unmake, cloud, holdings, holding)
        password = _password(cloud, secret_name(holdings, name))
        say(f"making the database {name} on {cloud.name}: {engine}")
        database = cloud.databases.make(holding.there, wish, password=password)
        price = database.usd_per_hour * HOURS_PER_MONTH
        ready = msgspec.structs.replace(holding, phase="ready", usd_per_month=price, zone=database.zone)
        holding = holdings.write(ready)
        undo.pop_all()
    return holding, database


def _password(cloud: Keeper, secret: str) -> str:
    """The one that is kept already, if its making was cut short; else a new one, kept before it is used."""
    try:
        return cloud.databases.secret(secret)["password"]
    except (NotFound, KeyError):
        password = dice.token_urlsafe(24)
        cloud.put_secrets(secret, {"password": password})
        return password


def _unmake(cloud: Keeper, holdings: Holdings, holding: Holding) -> None:
    try:
        if not holdings.mine(holding):
            return
        cloud.databases.delete(holding.there)
        cloud.drop_secrets(secret_name(holdings, holding.name))
    except OutlastError:
        return  # the record stays, so that `list` shows it and `delete` tries again
    holdings.remove(holding)


def delete(cloud: Keeper, holdings: Holdings, holding: Holding) -> None:
    """May be repeated: the record goes last."""
    holding = holdings.write(msgspec.structs.replace(holding, phase="deleting"))
    cloud.databases.delete(holding.there)
    cloud.drop_secrets(secret_name(holdings, holding.name))
    holdings.remove(holding)


def login(cloud: Keeper, holdings: Holdings, holding: Holding, database: Database, *, inner: bool = False) -> Login:
    """How to connect. Raises BadRequest for one that does not answer yet, or holds half of what it should."""
    if database.state == "broken" and database.why:
        hint = f"`outlast db show {holding.name}` lists its backups; `outlast db restore {holding.name} BACKUP`"
        raise BadRequest(f"the database `{holding.name}` is broken: {database.why}", hint=hint)
    if not database.host:
        raise BadRequest(f"the database `{holding.name}` is {database.state}", hint="wait until it is ready")
    try:
        password = cloud.databases.secret(secret_name(holdings, holding.name))["password"]
    except NotFound as problem:
        why = f"the password of `{holding.name}` is not in the secret store of {cloud.name} any more"
        raise BadRequest(why, hint=f"make it anew: `outlast db delete {holding.name}`, then `create`") from problem
    return Login(
        engine=database.engine,
        host=(database.inner_host if inner else "") or database.host,
        port=database.port,
        user=word(holding.name),
        password=password,
        database=word(holding.name),
        ca=database.ca,
        server_name=database.server_name,
    )


def url(login: Login, *, ca_file: str) -> str:
    """As libpq, SQLAlchemy and most others read it; always encrypted, and checked where there is a certificate."""
    host = f"[{login.host}]" if ":" in login.host else login.host
    scheme = "mysql" if login.engine == "mysql" else "postgresql"
    file = ca_file if ca_file == CA_PLACE else quote(ca_file, safe="/")
    if login.engine == "mysql":
        query = f"?ssl_ca={file}" if file else "?ssl=true"
    else:
        mode = "verify-full" if login.server_name else "verify-ca"
        query = f"?sslmode={mode}&sslrootcert={file}" if file else "?sslmode=require"
    return f"{scheme}://{login.user}:{login.password}@{host}:{login.port}/{login.database}{query}"


def values_for(wanted: Mapping[str, str], holdings: Holdings, clouds: Mapping[str, Cloud]) -> dict[str, str]:
    """What a run that names databases finds in its secrets: variable → address, and beside it the certificate.

    Where the certificate's file will be is known on the machine alone (`agent/stores.py`). Raises NoSuchStore.
    """
    values: dict[str, str] = {}
    for variable, name in wanted.items():
        holding = holdings.demand(name)
        cloud = keeper(clouds, holding.cloud)
        database = cloud.databases.wake(holding.there)
        way_in = login(cloud, holdings, holding, database, inner=True)
        # A bundle of all authorities of a cloud is more than a secret store takes; encrypted it is all the same.
        carried = 0 < len(way_in.ca) <= _CA_BYTES_MAX
        values[variable] = url(way_in, ca_file=CA_PLACE if carried else "")
        if carried:
            values[ca_variable(variable)] = way_in.ca
    return values


def ca_variable(variable: str) -> str:
    return f"{variable.removesuffix('_URL')}_CA"


def keeper(clouds: Mapping[str, Cloud], name: str) -> Keeper:
    found = clouds.get(name)
    if found is None or not hasattr(found, "databases"):
        raise UsageError(f"there are no databases on `{name}`", hint="use --cloud local, gcp or aws")
    return found  # type: ignore[return-value]
