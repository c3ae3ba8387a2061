"""Conformance suites for the volumes and databases of clouds, run against each implementation."""

from __future__ import annotations

import msgspec
import pytest

from outlast.clouds.resources import Database, DatabaseRequest, Databases, Engine, Volumes
from outlast.errors import CloudError, DatabaseRefused, NotFound
from outlast.sql.session import Login, Session

PASSWORD = "a-password-of-a-suite"
OTHER_PASSWORD = "another-password-of-a-suite"
LABELS = {"outlast-workspace": "ws123456"}


class VolumeSuite:
    """Subclasses provide the volumes; `least_gb` is the smallest size that the cloud offers."""

    least_gb = 1.0
    grows = True

    @pytest.fixture
    def volumes(self) -> Volumes:
        pytest.fail("a subclass says which")

    def test_creating_it_twice_creates_one(self, volumes: Volumes) -> None:
        first = volumes.create("demos-1", size_gb=self.least_gb, labels=LABELS)
        again = volumes.create("demos-1", size_gb=self.least_gb, labels=LABELS)
        assert first.state == "ready"
        assert (first.source, first.size_gb) == (again.source, again.size_gb)
        assert first.source
        assert [one.name for one in volumes.list_all(LABELS)] == ["demos-1"]
        assert volumes.list_all({"outlast-workspace": "another"}) == []
        volumes.delete("demos-1")

    def test_deletion_can_be_repeated(self, volumes: Volumes) -> None:
        volumes.create("demos-2", size_gb=self.least_gb, labels=LABELS)
        volumes.delete("demos-2")
        volumes.delete("demos-2")
        with pytest.raises(NotFound):
            volumes.find("demos-2")
        assert volumes.list_all(LABELS) == []

    def test_a_larger_volume_costs_more(self, volumes: Volumes) -> None:
        before = volumes.create("demos-3", size_gb=self.least_gb, labels=LABELS)
        if self.grows:
            after = volumes.resize("demos-3", before.size_gb * 2)
            assert after.size_gb == pytest.approx(before.size_gb * 2, rel=0.01)
            assert after.usd_per_month == pytest.approx(before.usd_per_month * 2, rel=0.01)
        volumes.delete("demos-3")

    def test_an_unknown_name_is_not_found(self, volumes: Volumes) -> None:
        with pytest.raises(NotFound):
            volumes.find("nowhere")
        with pytest.raises(NotFound):
            volumes.resize("nowhere", 5000.0)


class DatabaseSuite:
    """Subclasses provide the databases, and whether a real server answers."""

    answers = True

    @pytest.fixture
    def databases(self) -> Databases:
        pytest.fail("a subclass says which")

    @pytest.fixture(params=["mysql", "postgres"])
    def engine(self, request: pytest.FixtureRequest) -> Engine:
        found: Engine = request.param
        if self.answers:
            from tests.support.team import needs_engine

            needs_engine(found)
        return found

    def login(self, database: Database, password: str = PASSWORD) -> Login:
        return Login(
            engine=database.engine,
            host=database.host,
            port=database.port,
            user="genes",
            password=password,
            database="genes",
            ca=database.ca,
            server_name=database.server_name,
        )

    def test_the_life_of_a_database(self, databases: Databases, engine: Engine) -> None:
        name = f"genes-{engine}"
        request = DatabaseRequest(engine=engine, database="genes", user="genes", labels=LABELS)
        made = databases.create(name, request, password=PASSWORD)
        try:
            assert (made.engine, made.state) == (engine, "ready")
            assert databases.create(name, request, password=OTHER_PASSWORD).port == made.port
            assert [one.name for one in databases.list_all(LABELS)] == [name]
            assert databases.list_all({"outlast-workspace": "another"}) == []
            databases.allow(name, ["203.0.113.7"])
            assert databases.find(name).allowed == ("203.0.113.7",)
            databases.allow(name, [])
            assert databases.wake(name).allowed == ()
            backup = databases.back_up(name)
            assert backup.id in [one.id for one in databases.backups(name)]
            if self.answers:
                self.use(databases, databases.find(name))
        finally:
            databases.delete(name)
        databases.delete(name)
        with pytest.raises(NotFound):
            databases.find(name)

    def use(self, databases: Databases, database: Database) -> None:
        login = self.login(database, OTHER_PASSWORD)
        with Session(login) as session:
            session.query("CREATE TABLE kept (value INTEGER)")
            session.query("INSERT INTO kept VALUES (1)")
        backup = databases.back_up(database.name)
        with Session(login) as session:
            session.query("DROP TABLE kept")
        databases.restore(database.name, backup.id)
        with Session(login) as session:
            assert session.query("SELECT value FROM kept")[0][0] == 1
        with pytest.raises(DatabaseRefused, match="password"):
            Session(msgspec.structs.replace(login, password=PASSWORD))

    def test_an_unknown_name_is_not_found(self, databases: Databases) -> None:
        with pytest.raises(NotFound):
            databases.find("nowhere")
        with pytest.raises(CloudError):
            databases.allow("nowhere", [])
        with pytest.raises(NotFound):
            databases.secret("nowhere")
