"""One connection to a database server of either engine, always encrypted. Says which step failed; retries nothing."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any

import msgspec

from outlast.clouds.resources import Engine
from outlast.errors import DatabaseRefused, DatabaseUnreachable, OutlastError

_CONNECT_S = 10.0
# Why a server says no, by its own codes. MySQL's and MariaDB's numbers, and the SQL standard's five characters.
_PASSWORD = {"1045", "1698", "28P01"}
_ADDRESS = {"1130", "28000"}
_PERMISSION = {"1044", "1142", "1227", "42501"}
_NO_DATABASE = {"1049", "3D000"}


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """Who connects to what. Not for printing: there is a password in it."""

    engine: Engine
    host: str
    port: int
    user: str
    password: str
    database: str
    ca: str = ""
    server_name: str = ""
    # The address to connect from, where this computer has several.
    source: str = ""

    def __repr__(self) -> str:
        return f"Login({self.user}@{self.host}:{self.port}/{self.database})"


class Session:
    """An open connection. Every statement is committed by itself."""

    def __init__(self, login: Login) -> None:
        self._login = login
        self._mysql: Any = None
        self._postgres: Any = None
        if login.engine == "mysql":
            self._mysql = _open_mysql(login)
        else:
            self._postgres = _open_postgres(login)

    def ask(self, statement: str) -> list[Sequence[Any]]:
        """The rows of an answer. Raises DatabaseRefused, DatabaseUnreachable."""
        try:
            if self._mysql is None:
                return list(self._postgres.run(statement) or [])
            with self._mysql.cursor() as cursor:
                cursor.execute(statement)
                return list(cursor.fetchall())
        except _errors(self._login.engine) as problem:
            raise sorted_out(problem, self._login) from problem

    def close(self) -> None:
        try:
            (self._mysql if self._mysql is not None else self._postgres).close()
        except _errors(self._login.engine):
            pass  # it is gone already, which is what was wanted

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def context(ca: str, server_name: str) -> ssl.SSLContext:
    """Trusts this certificate alone, or those that the computer trusts where there is none."""
    made = ssl.create_default_context(cadata=ca or None)
    # The certificate of a server that is its authority's only one need not name the address.
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
        raise sorted_out(problem, login) from problem


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
        raise sorted_out(problem, login) from problem


def _errors(engine: Engine) -> tuple[type[Exception], ...]:
    driver = need(engine)
    found = [driver.MySQLError] if engine == "mysql" else [driver.Error, driver.InterfaceError]
    return (*found, OSError)


def need(engine: Engine) -> Any:
    """The driver of an engine. Raises OutlastError with the way to get it."""
    return _driver("pymysql" if engine == "mysql" else "pg8000.native")


def _driver(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise OutlastError(
            f"`{name.partition('.')[0]}` is not installed", hint="pip install 'outlast[db]'"
        ) from problem


def sorted_out(problem: Exception, login: Login) -> OutlastError:
    """What a driver raised, as ours: whether nobody was there, or somebody said no, and why."""
    code, said = told(problem)
    where = f"{login.host}:{login.port}"
    if code in _PASSWORD:
        why = f"{where} does not take the password of `{login.user}`"
        return DatabaseRefused(
            why, hint="was it changed elsewhere? `outlast db create` with the same name sets it again"
        )
    if code in _ADDRESS:
        why = f"{where} lets nobody in from this address: {said}"
        return DatabaseRefused(why, hint="`outlast db allow NAME --me` lets you in")
    if code in _PERMISSION:
        return DatabaseRefused(f"`{login.user}` may not do this on {where}: {said}", hint="ask whoever made it")
    if code in _NO_DATABASE:
        return DatabaseRefused(f"{where} has no database `{login.database}`", hint="was it dropped? restore a backup")
    cause = _of_system(problem)
    if isinstance(cause, ssl.SSLError):
        return DatabaseUnreachable(f"{where}: TLS failed: {cause}", hint="is something else listening there?")
    if isinstance(cause, TimeoutError):
        why = f"{where} does not answer: something drops what is sent to it"
        return DatabaseUnreachable(why, hint="`outlast db allow NAME --me`; is a firewall between you and it?")
    if isinstance(cause, socket.gaierror):
        return DatabaseUnreachable(f"`{login.host}` has no address: {cause.strerror}", hint="is the network up?")
    if isinstance(cause, OSError):
        why = f"nobody listens at {where}: {cause.strerror or cause}"
        return DatabaseUnreachable(why, hint="`outlast db show NAME` says whether it runs")
    return DatabaseRefused(f"{where}: {said}", hint=f"the server's own code is {code}" if code else "")


def told(problem: Exception) -> tuple[str, str]:
    """Code and sentence of a server's refusal."""
    first = problem.args[0] if problem.args else ""
    if isinstance(first, dict):
        return str(first.get("C", "")), str(first.get("M", ""))
    if isinstance(first, int) and len(problem.args) > 1:
        return str(first), str(problem.args[1])
    return "", str(problem)


def _of_system(problem: BaseException | None) -> BaseException | None:
    """The error of the operating system below, if there is one."""
    while problem is not None and not isinstance(problem, OSError):
        problem = getattr(problem, "original_exception", None) or problem.__cause__ or problem.__context__
    return problem
