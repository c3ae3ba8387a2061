"""A fence in the database, which rejects writes of an older master after a newer one has started."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy
from sqlalchemy import text
from sqlalchemy.exc import OperationalError


class Superseded(Exception):
    """A newer master has taken over."""


class Fence:
    """The fence of one master. outlast gives each master a higher number than the one before."""

    def __init__(self, url: str, number: int) -> None:
        # No pool: a connection that a successor kills must not be shared.
        url = url.replace("mysql://", "mysql+pymysql://", 1)
        self.engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self.number = number

    def begin(self) -> None:
        """Take over. Kills the connection of an older master that holds the fence."""
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS fence (id INT PRIMARY KEY, number INT, holder INT)"))
            before = connection.execute(text("SELECT number, holder FROM fence")).all()
            if not before:
                connection.execute(text("INSERT IGNORE INTO fence VALUES (1, 0, 0)"))
            for number, holder in before:
                if holder and number < self.number:
                    with contextlib.suppress(OperationalError):  # already closed
                        connection.execute(text(f"KILL CONNECTION {int(holder)}"))
        with self.engine.begin() as connection:
            statement = text("UPDATE fence SET number = :number, holder = 0 WHERE number < :number")
            if connection.execute(statement, {"number": self.number}).rowcount != 1:
                raise Superseded(f"a master with a number above {self.number} has taken over")

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the fence: the body runs as the current master or fails. A successor waits for the lock or breaks it."""
        with self.engine.connect() as connection:
            me = connection.execute(text("SELECT CONNECTION_ID()")).scalar_one()
            statement = text("UPDATE fence SET holder = :me WHERE number = :number")
            connection.execute(statement, {"me": me, "number": self.number})
            connection.commit()
            number = connection.execute(text("SELECT number FROM fence FOR UPDATE")).scalar_one()
            if number != self.number:
                raise Superseded(f"master {number} has taken over from master {self.number}")
            yield
            connection.commit()
