"""An encrypted connection to a MySQL or PostgreSQL server, and the translation of its drivers' errors. No retries."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from outlast.errors import DatabaseRefused, DatabaseUnreachable, OutlastError
from outlast.extras import install_hint

Engine = Literal["mysql", "postgres"]
# `verified`: the server has proven its identity; `encrypted`: any server is accepted; `plain`: no encryption.
Security = Literal["verified", "encrypted", "plain"]

_CONNECT_S = 10.0
_SCHEMES: dict[str, Engine] = {"mysql": "mysql", "mariadb": "mysql", "postgresql": "postgres", "postgres": "postgres"}
_PORTS = {"mysql": 3306, "postgres": 5432}
# Error codes by cause: the numbers of MySQL and MariaDB, and the SQLSTATEs of PostgreSQL.
_PASSWORD = {"1045", "1698", "28P01"}
_ADDRESS = {"1130", "28000"}
_PERMISSION = {"1044", "1142", "1227", "42501"}
_NO_DATABASE = {"1049", "3D000"}
_NAMED = re.compile(r":([a-z]+)\b")


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
    security: Security = "verified"

    def __repr__(self) -> str:
        return f"Login({self.user}@{self.host}:{self.port}/{self.database})"


class Session:
    """An open connection, in autocommit mode."""

    def __init__(self, login: Login, *, timeout_s: float = 0.0) -> None:
        """Connect. `timeout_s` limits how long a statement may take; 0: no limit for MySQL, the default of connections
        for PostgreSQL. Raises DatabaseRefused, DatabaseUnreachable."""
        self._login = login
        self._mysql: Any = None
        self._postgres: Any = None
        if login.engine == "mysql":
            self._mysql = _open_mysql(login, timeout_s)
        else:
            self._postgres = _open_postgres(login, timeout_s)

    def query(self, statement: str, **values: str | float) -> list[Sequence[Any]]:
        """Return the rows of a statement with values for its `:names`. Raises DatabaseRefused, DatabaseUnreachable."""
        try:
            if self._mysql is None:
                return list(self._postgres.run(statement, **values) or [])
            with self._mysql.cursor() as cursor:
                # Without values the driver does not read `%`.
                cursor.execute(_NAMED.sub(r"%(\1)s", statement) if values else statement, values or None)
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


def engine_of(url: str) -> Engine | None:
    """Return the engine of the database with this address; None if it is another text."""
    try:
        parts = urlsplit(url)
        return _SCHEMES.get(parts.scheme.partition("+")[0]) if parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def database_in(url: str) -> str:
    return unquote(urlsplit(url).path.lstrip("/"))


def login_from(url: str) -> Login:
    """Parse the address of a database, as `outlast db url` prints it.

    Raises ValueError if it is another text, OSError if the file with the certificate cannot be read.
    """
    parts, engine = urlsplit(url), engine_of(url)
    if engine is None or not parts.hostname:
        raise ValueError("expected mysql://… or postgresql://…")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    ca, mode = options.get("ssl_ca") or options.get("sslrootcert") or "", options.get("sslmode", "")
    security: Security = "verified" if ca else "encrypted"
    if not ca and mode in ("", "disable", "allow", "prefer") and options.get("ssl", "").lower() not in ("true", "1"):
        security = "plain"
    return Login(
        engine=engine,
        host=parts.hostname,
        port=parts.port or _PORTS[engine],
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=database_in(url),
        ca=_text(ca) if ca else "",
        server_name=parts.hostname if ca and mode == "verify-full" else "",
        security=security,
    )


def _text(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def _context_of(login: Login) -> ssl.SSLContext | None:
    if login.security == "plain":
        return None
    made = context(login.ca, login.server_name)
    if login.security == "encrypted":
        made.check_hostname = False
        made.verify_mode = ssl.CERT_NONE
    return made


def context(ca: str, server_name: str) -> ssl.SSLContext:
    """Return a TLS context that trusts this CA only, or the computer's CAs if it is empty."""
    made = ssl.create_default_context(cadata=ca or None)
    # Trust in one private CA identifies the server, so its certificate need not contain the address.
    made.check_hostname = bool(server_name) or not ca
    return made


def _open_mysql(login: Login, timeout_s: float) -> Any:
    pymysql = _driver("pymysql")
    try:
        return pymysql.connect(
            host=login.host,
            port=login.port,
            user=login.user,
            password=login.password,
            database=login.database or None,
            ssl=_context_of(login),
            connect_timeout=min(_CONNECT_S, timeout_s or _CONNECT_S),
            read_timeout=timeout_s or None,
            write_timeout=timeout_s or None,
            bind_address=login.source or None,
            autocommit=True,
        )
    except (pymysql.MySQLError, OSError) as problem:
        raise translated(problem, login) from problem


def _open_postgres(login: Login, timeout_s: float) -> Any:
    driver = _driver("pg8000.native")
    try:
        return driver.Connection(
            login.user,
            host=login.host,
            port=login.port,
            password=login.password,
            database=login.database or "postgres",
            ssl_context=_context_of(login),
            timeout=timeout_s or _CONNECT_S,
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
            f"`{name.partition('.')[0]}` is not installed", hint=install_hint("outlast[db]")
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
