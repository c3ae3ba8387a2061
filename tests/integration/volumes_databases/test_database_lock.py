"""`exclusive = "db:NAME"` holds in the database itself: across processes, workspaces and accounts."""

from __future__ import annotations

import threading

import pytest

from outlast.clouds.resources import DatabaseRequest, Engine
from outlast.errors import DatabaseRefused, OutlastError
from outlast.sql.lease import DatabaseLease, url_of
from outlast.sql.session import Login, Session, login_from
from tests.support.team import ENGINES, Team, needs_engine
from tests.support.waiting import eventually

PASSWORD = "a-password-of-a-test"
# Prints its fence, and runs until it is cancelled if it is the first.
MASTER = """
import os, time
print("fence", os.environ["OUTLAST_FENCE"], flush=True)
while os.environ["OUTLAST_FENCE"] == "1":
    time.sleep(0.05)
"""


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    needs_engine(found)
    return found


@pytest.fixture
def login(team: Team, engine: Engine) -> Login:
    request = DatabaseRequest(engine=engine, database="genomes", user="genomes", zone="", type="", size_gb=1, labels={})
    made = team.cloud.databases.create("genomes", request, password=PASSWORD)
    return Login(
        engine=engine,
        host=made.host,
        port=made.port,
        user="genomes",
        password=PASSWORD,
        database="genomes",
        ca=made.ca,
    )


def lease(login: Login, who: str, ttl_s: float = 60.0) -> DatabaseLease:
    return DatabaseLease(login, "db:genomes", who=who, ttl_s=ttl_s)


def test_one_process_holds_the_lease_and_the_next_one_follows_with_a_higher_number(login: Login) -> None:
    first, second = lease(login, "first"), lease(login, "second")
    assert first.hold()
    assert not second.hold()
    assert second.holder == "first"
    assert first.hold(), "it renews its lease"
    assert first.epoch == 1
    first.release()
    assert second.hold()
    assert second.epoch == 2
    assert not first.hold()
    second.release()

    # A holder that died: its lease expires by the clock of the server.
    dead = lease(login, "dead", ttl_s=0.3)
    assert dead.hold()
    eventually(second.hold, within_s=30, what="the lease of a dead holder expires")
    assert not dead.hold(), "it cannot take the lease back"


@pytest.mark.full
def test_a_broken_connection_loses_no_lease(login: Login) -> None:
    first, second = lease(login, "first"), lease(login, "second")
    assert first.hold()
    epoch = first.epoch
    first.close()
    assert not second.hold()
    assert first.hold()
    assert first.epoch == epoch

    # The answer to the statement that took the lease was lost.
    first.epoch = 0
    assert first.hold()
    assert first.epoch == epoch + 1
    first.release()
    second.release()


@pytest.mark.full
def test_of_many_at_once_exactly_one_takes_the_lease(login: Login) -> None:
    lease(login, "creates the table").hold()
    with Session(login) as session:
        session.query("UPDATE outlast_locks SET expires_s = 0")
    leases, start, taken = [lease(login, str(number)) for number in range(6)], threading.Barrier(6), []

    def take(one: DatabaseLease) -> None:
        start.wait()
        try:
            if one.hold():
                taken.append(one.who)
        except OutlastError:
            pass  # a deadlock that the server has resolved is a failed try

    threads = [threading.Thread(target=take, args=(one,)) for one in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    for one in leases:
        one.release()


@pytest.mark.full
def test_a_lock_needs_the_right_to_create_its_table(login: Login) -> None:
    wrong = Login(**{name: getattr(login, name) for name in login.__struct_fields__} | {"password": "wrong"})
    with pytest.raises(DatabaseRefused, match="rejected the password"):
        lease(wrong, "stranger").hold()


def test_the_database_of_a_lock_is_found_by_its_name() -> None:
    mine = "mysql://u:p%40@10.0.0.3:3307/the_genomes?ssl=true"
    values = {"OTHER_URL": "postgresql://u:p@host/other", "TEXT": "no address", "ODD": "mysql://[", "MY_URL": mine}
    assert url_of("db:the-genomes", values) == mine
    assert url_of("db:nothing", values) == ""
    assert url_of("the-genomes", values) == ""
    login = login_from(mine)
    assert (login.host, login.port, login.password, login.security) == ("10.0.0.3", 3307, "p@", "encrypted")
    assert login_from("postgresql://u:p@host/genomes").security == "plain"
    assert login_from("postgresql+psycopg://u:p@host/genomes?sslmode=require").engine == "postgres"
    with pytest.raises(ValueError, match="expected mysql"):
        login_from("https://example.org")


@pytest.mark.full
def test_masters_of_two_workspaces_never_run_at_the_same_time(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    team.write("master.py", MASTER)
    lock = ("--set", 'exclusive="db:genomes"', "--", "python3", "master.py")
    first = team.done("submit", "--set", 'databases="genomes"', *lock).strip()
    eventually(lambda: "fence 1" in team.log(first), within_s=60, what="the first master runs")

    # A teammate has another workspace, and the address of the database only.
    theirs = ("--workspace", str(team.root / "theirs"))
    url = team.done("db", "url", "genomes", "--portable").strip()
    answer = team.outlast("submit", *theirs, "--set", 'secrets=["DATABASE_URL"]', *lock, DATABASE_URL=url)
    assert answer.returncode == 0, answer.stderr
    second = answer.stdout.strip()
    held = f"held in the database by {first} attempt 1"
    eventually(lambda: held in team.outlast("ps", *theirs).stdout, within_s=60, what="the second master waits")
    assert "fence" not in team.done("logs", second, *theirs)

    team.done("cancel", first)
    assert team.outlast("wait", second, *theirs, timeout_s=120).returncode == 0
    assert "fence 2" in team.done("logs", second, *theirs), "one sequence of numbers for both workspaces"


@pytest.mark.full
def test_a_lock_that_covers_one_workspace_is_reported_at_submit(team: Team) -> None:
    answer = team.outlast("submit", "--set", 'exclusive="db:genomes"', "--", "true")
    assert "covers this workspace only" in answer.stderr
    assert 'databases = "genomes"' in answer.stderr
