"""A lock in a database, which holds for all workspaces and accounts that use the database.

    outlast_locks    name (the lock), holder, token (one process), epoch (grows with each holder), expires_s

The holder renews its row before it expires, by the clock of the database server; every other process waits until it has
expired or was released. Each change is one statement on one row, so two processes never both take it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from outlast.errors import DatabaseRefused, OutlastError
from outlast.sql.session import Login, Session, database_in, engine_of

TABLE = "outlast_locks"
# The prefix of lock names that stand for a database of the same name.
PREFIX = "db:"
_NAME_MAX = 190
_HOLDER_MAX = 400

# The present time in seconds, by the clock of the server.
_NOW = {"mysql": "UNIX_TIMESTAMP(NOW(6))", "postgres": "extract(epoch from clock_timestamp())::double precision"}
_INSERT = {
    "mysql": f"INSERT IGNORE INTO {TABLE} VALUES (:name, '', '', 0, 0)",
    "postgres": f"INSERT INTO {TABLE} VALUES (:name, '', '', 0, 0) ON CONFLICT DO NOTHING",
}
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} (name VARCHAR({_NAME_MAX}) PRIMARY KEY,"
    f" holder VARCHAR({_HOLDER_MAX}) NOT NULL, token VARCHAR(40) NOT NULL, epoch BIGINT NOT NULL,"
    " expires_s DOUBLE PRECISION NOT NULL)"
)


def url_of(lock: str, values: Mapping[str, str]) -> str:
    """Return the address of the database that a lock such as `db:genomes` names, from the variables of a run.

    Empty if the lock names no database, or the run does not use it.
    """
    if not lock.startswith(PREFIX):
        return ""
    name = lock.removeprefix(PREFIX)
    # `DATABASE_URL` first: it is the usual name.
    for variable in sorted(values, key=lambda variable: (variable != "DATABASE_URL", variable)):
        if engine_of(values[variable]) and database_in(values[variable]) in (name, name.replace("-", "_")):
            return values[variable]
    return ""


class DatabaseLease:
    """A lease on one row, held by one process. Not thread-safe, except `close`.

    After a failed call the connection is opened again by the next one.
    """

    def __init__(
        self,
        login: Login,
        name: str,
        *,
        who: str,
        ttl_s: float,
        connect: Callable[[Login], Session] | None = None,
    ) -> None:
        self.login = login
        self.name = name[:_NAME_MAX]
        self.who = who[:_HOLDER_MAX]
        self.ttl_s = ttl_s
        self.epoch = 0
        # The holder, as the last call saw it.
        self.holder = ""
        self._token = secrets.token_hex(16)
        # A statement that takes longer than a part of the lease cannot help to keep it.
        self._connect = connect or (lambda login: Session(login, timeout_s=max(1.0, ttl_s / 4)))
        self._session: Session | None = None

    def hold(self) -> bool:
        """Take or renew the lease; return whether this process holds it.

        Raises DatabaseRefused, DatabaseUnreachable.
        """
        now = _NOW[self.login.engine]
        if self.epoch:
            change = f"expires_s = {now} + :ttl WHERE name = :name AND token = :token AND epoch = :epoch"
            return self._change(change, epoch=self.epoch)
        # A lease that this process took without learning of it, because the connection broke, is taken again.
        free = f"name = :name AND (expires_s < {now} OR token = :token)"
        return self._change(
            f"holder = :who, token = :token, epoch = epoch + 1, expires_s = {now} + :ttl WHERE {free}", who=self.who
        )

    def release(self) -> None:
        """Release the lease, so that another process can take it before it expires; close the connection."""
        try:
            if self.epoch:
                self._query(f"UPDATE {TABLE} SET expires_s = 0 WHERE name = :name AND token = :token", **self._key())
        finally:
            self.epoch = 0
            self.close()

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _change(self, change: str, **values: str | float) -> bool:
        self._query(f"UPDATE {TABLE} SET {change}", ttl=self.ttl_s, **self._key(), **values)
        rows = self._query(f"SELECT holder, token, epoch FROM {TABLE} WHERE name = :name", name=self.name)
        if not rows:
            # The table was emptied while we held the lease: another process may have it soon.
            self.holder, self.epoch = "", 0
            self.close()
            return False
        holder, token, epoch = rows[0]
        self.holder = str(holder)
        held = str(token) == self._token and self.epoch in (0, int(epoch))
        self.epoch = int(epoch) if held else 0
        return held

    def _key(self) -> dict[str, str]:
        return {"name": self.name, "token": self._token}

    def _query(self, statement: str, **values: str | float) -> list[tuple[Any, ...]]:
        try:
            return [tuple(row) for row in self._open().query(statement, **values)]
        except OutlastError:
            self.close()
            raise

    def _open(self) -> Session:
        if self._session is None:
            session = self._connect(self.login)
            try:
                session.query(_CREATE)
                session.query(_INSERT[self.login.engine], name=self.name)
            except DatabaseRefused as problem:
                session.close()
                why = f"the lock `{self.name}` needs the table `{TABLE}` in its database: {problem.message}"
                raise DatabaseRefused(why, hint=problem.hint) from problem
            except OutlastError:
                session.close()
                raise
            self._session = session
        return self._session
