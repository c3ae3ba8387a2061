"""A fence in the database itself: what an older master says after a newer one has begun is refused there."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import sqlalchemy
from sqlalchemy import text
from sqlalchemy.exc import OperationalError


class Superseded(Exception):
    """Somebody else is the master now."""


class Fence:
    """The number that outlast gave this master; it is higher for each one that follows."""

    def __init__(self, url: str, number: int) -> None:
        # A connection each time: who is interrupted must not have lent it to others.
        url = url.replace("mysql://", "mysql+pymysql://", 1)
        self.engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
        self.number = number

    def begin(self) -> None:
        """Take over. A master that sleeps in the middle of a sentence is interrupted."""
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS fence (id INT PRIMARY KEY, number INT, speaker INT)"))
            before = connection.execute(text("SELECT number, speaker FROM fence")).all()
            if not before:
                connection.execute(text("INSERT IGNORE INTO fence VALUES (1, 0, 0)"))
            for number, speaker in before:
                if speaker and number < self.number:
                    with contextlib.suppress(OperationalError):  # it has left already
                        connection.execute(text(f"KILL CONNECTION {int(speaker)}"))
        with self.engine.begin() as connection:
            argv = text("UPDATE fence SET number = :number, speaker = 0 WHERE number < :number")
            if connection.execute(argv, {"number": self.number}).rowcount != 1:
                raise Superseded(f"a master with a higher number than {self.number} was here")

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """What is done inside is done by the master, or not at all: its successor waits for the lock, or breaks it."""
        with self.engine.connect() as connection:
            me = connection.execute(text("SELECT CONNECTION_ID()")).scalar_one()
            argv = text("UPDATE fence SET speaker = :me WHERE number = :number")
            connection.execute(argv, {"me": me, "number": self.number})
            connection.commit()
            number = connection.execute(text("SELECT number FROM fence FOR UPDATE")).scalar_one()
            if number != self.number:
                raise Superseded(f"master {number} has taken over from master {self.number}")
            yield
            connection.commit()
