"""An encrypted connection to a MySQL or PostgreSQL server, and the translation of its drivers' errors. No retries."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.clouds.resources import Engine
from outlast.errors import DatabaseRefused, DatabaseUnreachable, OutlastError

_CONNECT_S = 10.0
# Error codes by cause: the numbers of MySQL and MariaDB, and the SQLSTATEs of PostgreSQL.
_PASSWORD = {"1045", "1698", "28P01"}
_ADDRESS = {"1130", "28000"}
_PERMISSION = {"1044", "1142", "1227", "42501"}
_NO_DATABASE = {"1049", "3D000"}


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a connection. `repr` omits the password."""

    engine: Engine
    host: str
    port: int
    user: str
    password: str
    database: str
    ca: str = ""
    server_name: str = ""
    # The local address to connect from, if this computer has several.
    source: str = ""

    def __repr__(self) -> str:
        return f"Login({self.user}@{self.host}:{self.port}/{self.database})"


class Session:
    """An open connection, in autocommit mode."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._mysql: Any = None
        self._postgres: Any = None
        if login.engine == "mysql":
            self._mysql = _open_mysql(login)
        else:
            self._postgres = _open_postgres(login)

    def query(self, statement: str) -> list[Sequence[Any]]:
        """Return the rows of a statement. Raises DatabaseRefused, DatabaseUnreachable."""
        try:
            if self._mysql is None:
                return list(self._postgres.run(statement) or [])
            with self._mysql.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except _errors(self._login.engine) as problem:
            raise translated(problem, self._login) from problem

    def close(self) -> None:
        try:
            (self._mysql if self._mysql is not None else self._postgres).close()
        except _errors(self._login.engine):
            pass  # the connection is closed already

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def context(ca: str, server_name: str) -> ssl.SSLContext:
    """Return a TLS context that trusts this CA only, or the computer's CAs if it is empty."""
    made = ssl.create_default_context(cadata=ca or None)
    # Trust in one private CA identifies the server, so its certificate need not contain the address.
    made.check_hostname = bool(server_name) or not ca
    return made


def _open_mysql(login: Login) -> Any:
    pymysql = _driver("pymysql")
    try:
        return pymysql.connect(
            host=login.host,
            port=login.port,
            user=login.user,
            password=login.password,
            database=login.database or None,
            ssl=context(login.ca, login.server_name),
            connect_timeout=_CONNECT_S,
            bind_address=login.source or None,
            autocommit=True,
        )
    except (pymysql.MySQLError, OSError) as problem:
        raise translated(problem, login) from problem


def _open_postgres(login: Login) -> Any:
    driver = _driver("pg8000.native")
    try:
        return driver.Connection(
            login.user,
            host=login.host,
            port=login.port,
            password=login.password,
            database=login.database or "postgres",
            ssl_context=context(login.ca, login.server_name),
            timeout=_CONNECT_S,
            source_address=(login.source, 0) if login.source else None,
        )
    except (driver.Error, driver.InterfaceError, OSError) as problem:
        raise translated(problem, login) from problem


def _errors(engine: Engine) -> tuple[type[Exception], ...]:
    driver = need(engine)
    found = [driver.MySQLError] if engine == "mysql" else [driver.Error, driver.InterfaceError]
    return (*found, OSError)


def need(engine: Engine) -> Any:
    """Return the driver of an engine. Raises OutlastError if it is not installed."""
    return _driver("pymysql" if engine == "mysql" else "pg8000.native")


def _driver(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise OutlastError(
            f"`{name.partition('.')[0]}` is not installed", hint="pip install 'outlast[db]'"
        ) from problem


def translated(problem: Exception, login: Login) -> OutlastError:
    """Translate a driver's error: the server is unreachable, or it refused, and why."""
    code, message = code_and_message(problem)
    where = f"{login.host}:{login.port}"
    if code in _PASSWORD:
        why = f"{where} rejected the password of `{login.user}`"
        return DatabaseRefused(why, hint="if it was changed, `outlast db create` with the same name resets it")
    if code in _ADDRESS:
        why = f"{where} does not accept connections from this address: {message}"
        return DatabaseRefused(why, hint="allow it with `outlast db allow NAME --me`")
    if code in _PERMISSION:
        why = f"`{login.user}` lacks the permission on {where}: {message}"
        return DatabaseRefused(why, hint="ask the owner of the database")
    if code in _NO_DATABASE:
        return DatabaseRefused(f"{where} has no database `{login.database}`", hint="restore a backup if it was dropped")
    cause = _of_system(problem)
    if isinstance(cause, ssl.SSLError):
        return DatabaseUnreachable(f"{where}: TLS failed: {cause}", hint="check that a database server listens there")
    if isinstance(cause, TimeoutError):
        why = f"{where} did not answer within {_CONNECT_S:g} s"
        return DatabaseUnreachable(why, hint="allow your address with `outlast db allow NAME --me`, or check firewalls")
    if isinstance(cause, socket.gaierror):
        return DatabaseUnreachable(f"`{login.host}` has no address: {cause.strerror}", hint="check the network")
    if isinstance(cause, OSError):
        why = f"could not connect to {where}: {cause.strerror or cause}"
        return DatabaseUnreachable(why, hint="`outlast db show NAME` shows whether it runs")
    return DatabaseRefused(f"{where}: {message}", hint=f"error code {code}" if code else "")


def code_and_message(problem: Exception) -> tuple[str, str]:
    """Return the code and the message of a server's error."""
    first = problem.args[0] if problem.args else ""
    if isinstance(first, dict):
        return str(first.get("C", "")), str(first.get("M", ""))
    if isinstance(first, int) and len(problem.args) > 1:
        return str(first), str(problem.args[1])
    return "", str(problem)


def _of_system(problem: BaseException | None) -> BaseException | None:
    """Return the operating system's error that caused it, if there is one."""
    while problem is not None and not isinstance(problem, OSError):
        problem = getattr(problem, "original_exception", None) or problem.__cause__ or problem.__context__
    return problem
