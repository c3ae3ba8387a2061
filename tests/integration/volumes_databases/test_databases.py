"""The `outlast db` commands, on a real MariaDB and a real PostgreSQL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from outlast.clouds.local.databases import LocalDatabases
from outlast.clouds.resources import Engine
from outlast.sql.session import Login, Session
from tests.support.home import processes_mentioning
from tests.support.team import ENGINES, Team, needs_engine
from tests.support.waiting import eventually


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    needs_engine(found)
    return found


def listed(team: Team) -> dict[str, Any]:
    return {row["name"]: row for row in json.loads(team.done("db", "list", "--json"))}


def login_of(team: Team, engine: Engine, name: str = "genomes") -> Login:
    """Connect with only the output of `outlast db url`."""
    url = urlsplit(team.done("db", "url", name).strip())
    assert url.scheme == {"mysql": "mysql", "postgres": "postgresql"}[engine]
    ca = parse_qs(url.query)["ssl_ca" if engine == "mysql" else "sslrootcert"][0]
    return Login(
        engine=engine,
        host=url.hostname or "",
        port=url.port or 0,
        user=url.username or "",
        password=url.password or "",
        database=url.path[1:],
        ca=Path(ca).read_text(),
        server_name="127.0.0.1",
    )


class Doomed(LocalDatabases):
    """Kill a restore after it has emptied the database."""

    def _recreate_database(self, folder: str) -> None:
        super()._recreate_database(folder)
        raise KeyboardInterrupt


def server_pid(team: Team) -> int:
    found = list((team.root / "cloud" / "databases").glob("*/server.json"))
    return int(json.loads(found[0].read_text())["pid"])


def lives(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_day_with_a_database(team: Team, engine: Engine) -> None:
    made = team.done("db", "create", "genomes", "--engine", engine)
    assert "genomes answers at 127.0.0.1:" in made
    assert "$0.00 a month" in made
    assert listed(team)["genomes"]["state"] == "ready"
    steps = json.loads(team.done("db", "check", "genomes", "--json"))
    assert [(step["step"], step["ok"]) for step in steps] == [
        (step, True) for step in ("dns", "tcp", "tls", "login", "permissions", "latency")
    ]
    login = login_of(team, engine)
    with Session(login) as session:
        session.query("CREATE TABLE genes (name VARCHAR(20))")
        session.query("INSERT INTO genes VALUES ('brca1'), ('tp53')")
    argv = ["-e", "SELECT COUNT(*) FROM genes"] if engine == "mysql" else ["-c", "SELECT COUNT(*) FROM genes"]
    assert "2" in team.done("db", "shell", "genomes", "--", *argv)
    backup = team.done("db", "backup", "genomes").strip()
    draft = next((team.root / "cloud" / "databases").glob("*/backups")) / "20200101-000000.draft"
    draft.write_text("of a backup that was killed")
    with Session(login) as session:
        session.query("DELETE FROM genes")
        session.query("CREATE TABLE later (value INTEGER)")
    assert backup in team.done("db", "show", "genomes")
    team.done("db", "restore", "genomes", backup, "--yes")
    assert not draft.exists()
    with Session(login) as session:
        assert session.query("SELECT COUNT(*) FROM genes")[0][0] == 2
        session.query("INSERT INTO genes VALUES ('still its own')")
        session.query("CREATE TABLE later (value INTEGER)")
    with pytest.raises(KeyboardInterrupt):
        Doomed(str(team.root / "cloud")).restore(listed(team)["genomes"]["there"], backup)
    assert f"backup {backup} is being restored" in team.refused(5, "db", "check", "genomes")
    kept = team.done("db", "show", "genomes").count("  backup ")
    assert "its last restore was interrupted" in team.refused(5, "db", "backup", "genomes")
    # The newest backup is by now how it was before; who repeats the command means what it was to become.
    assert f"restored genomes from {backup}" in team.done("db", "restore", "genomes", "--yes")
    assert team.done("db", "show", "genomes").count("  backup ") == kept, "half of a backup is not backed up"
    with Session(login) as session:
        assert session.query("SELECT COUNT(*) FROM genes")[0][0] == 2
    assert "repeat the command with --yes" in team.refused(2, "db", "delete", "genomes")
    pid = server_pid(team)
    team.done("db", "delete", "genomes", "--yes")
    assert listed(team) == {}
    assert not lives(pid), "the server goes with its database"
    assert list((team.root / "cloud" / "databases").iterdir()) == []
    assert list((team.root / "cloud" / "secrets").iterdir()) == []
    assert processes_mentioning(str(team.root)) == []
    assert list((team.root / "home" / ".outlast" / "databases").iterdir()) == []


@pytest.mark.full
def test_addresses_of_teammates_are_allowed_and_revoked(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    team.refused(24, "db", "check", "genomes", "--from", "127.0.0.9")
    assert "ann" in team.done("db", "allow", "genomes", "ann=127.0.0.9")
    assert "ann" in team.done("db", "show", "genomes")
    team.done("db", "check", "genomes", "--from", "127.0.0.9")
    team.refused(24, "db", "check", "genomes", "--from", "127.0.0.10")
    team.done("db", "allow", "genomes", "127.0.8.0/24")
    team.done("db", "check", "genomes", "--from", "127.0.8.77")
    team.done("db", "revoke", "genomes", "ann")
    output = team.refused(24, "db", "check", "genomes", "--from", "127.0.0.9")
    assert "outlast db allow genomes --me" in output
    team.done("db", "allow", "genomes", "--me")
    assert "whole internet" in team.refused(2, "db", "allow", "genomes", "0.0.0.0/0")
    assert "has no access to database" in team.refused(2, "db", "revoke", "genomes", "bob")
    assert "expected an address, a network or a host name" in team.refused(
        2, "db", "allow", "genomes", "missing.invalid"
    )


@pytest.mark.full
def test_a_reboot_of_the_computer_loses_nothing(team: Team, engine: Engine) -> None:
    """A power cut kills the server; the next client finds it at the same address with all committed data."""
    team.done("db", "create", "genomes", "--engine", engine)
    login = login_of(team, engine)
    with Session(login) as session:
        session.query("CREATE TABLE kept (value INTEGER)")
        session.query("INSERT INTO kept VALUES (1)")
    os.kill(server_pid(team), signal.SIGKILL)
    eventually(lambda: listed(team)["genomes"]["state"] == "stopped", what="the end of the server")
    assert "starting it" in team.outlast("db", "check", "genomes", timeout_s=90.0).stderr
    with Session(login) as session:
        assert session.query("SELECT value FROM kept")[0][0] == 1


@pytest.mark.full
def test_a_server_that_hangs_is_distinguished_from_one_that_refuses(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    pid = server_pid(team)
    os.kill(pid, signal.SIGSTOP)
    try:
        output = team.refused(23, "db", "check", "genomes")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "FAIL  tls" in output
    assert "does not answer" in output
    team.done("db", "check", "genomes")


@pytest.mark.full
def test_a_killed_creation_is_taken_over_or_deleted(team: Team, engine: Engine) -> None:
    started = team.start("db", "create", "genomes", "--engine", engine)
    record = team.root / "workspace" / "databases" / "genomes.json"
    eventually(record.exists, what="the intent")
    data = team.root / "cloud" / "databases"
    eventually(lambda: list(data.glob("*/data")), what="half a database")
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert listed(team)["genomes"]["state"] == "creating"
    assert "is still being created" in team.refused(5, "db", "check", "genomes")
    team.done("db", "create", "genomes", "--engine", engine)
    team.done("db", "check", "genomes")
    team.done("db", "delete", "genomes", "--yes")
    assert list(data.iterdir()) == []


@pytest.mark.full
def test_a_database_whose_record_is_damaged_can_be_deleted(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    team.workspace.bucket.put("databases/genomes.json", b'{"kind": "data')
    answer = team.outlast("db", "delete", "genomes", "--yes")
    assert answer.returncode == 0, answer.stderr
    assert "on local it is `genomes-" in answer.stderr
    assert listed(team) == {}
    assert LocalDatabases(str(team.root / "cloud")).list_all() == []


@pytest.mark.full
def test_a_second_database_of_the_same_name_is_refused(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    assert "already exists" in team.refused(21, "db", "create", "genomes", "--engine", engine)
    team.done("db", "check", "genomes")
    assert "did you mean `genomes`" in team.refused(20, "db", "check", "genome")
    assert "NAME" in team.refused(2, "db", "create", "No_Good")


@pytest.mark.full
def test_a_wrong_password_is_distinguished_from_a_blocked_port(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    secret = next((team.root / "cloud" / "secrets").iterdir())
    secret.write_text(json.dumps({"password": "a_changed_password_here"}))
    output = team.refused(24, "db", "check", "genomes")
    assert "FAIL  login" in output
    assert "rejected the password" in output


PROGRAM = """
import os, sys
from urllib.parse import parse_qs, urlsplit
url = urlsplit(os.environ["DATABASE_URL"])
query = parse_qs(url.query)
assert open(os.environ["DATABASE_CA"]).read().startswith("-----BEGIN CERTIFICATE")
if url.scheme == "mysql":
    import pymysql
    connection = pymysql.connect(host=url.hostname, port=url.port, user=url.username, password=url.password,
                                 database=url.path[1:], ssl={"ca": query["ssl_ca"][0]})
else:
    import ssl
    import pg8000.dbapi
    trusted = ssl.create_default_context(cafile=query["sslrootcert"][0])
    connection = pg8000.dbapi.connect(url.username, host=url.hostname, port=url.port, password=url.password,
                                      database=url.path[1:], ssl_context=trusted)
cursor = connection.cursor()
cursor.execute("CREATE TABLE IF NOT EXISTS trials (attempt INTEGER)")
cursor.execute("INSERT INTO trials VALUES (" + os.environ["OUTLAST_ATTEMPT"] + ")")
connection.commit()
print("the address is", os.environ["DATABASE_URL"], "and the password", url.password)
"""


@pytest.mark.full
def test_only_a_run_that_names_the_database_gets_its_address_and_password(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    login = login_of(team, engine)
    team.write("trial.py", PROGRAM)
    team.write("outlast.toml", f'name = "t"\ncommand = "{sys.executable} trial.py"\ndatabases = "genomes"\n')
    team.done("run", "--quiet")
    with Session(login) as session:
        assert session.query("SELECT attempt FROM trials")[0][0] == 1
    assert "the address is *** and the password ***" in team.log()
    places = [team.root / "workspace", team.root / "cloud", team.project]
    held = [path for place in places for path in place.rglob("*") if path.is_file()]
    telling = [path for path in held if "/data/" not in str(path) and login.password.encode() in path.read_bytes()]
    assert {path.parent.name for path in telling} <= {"secrets"}, "only the cloud's secret store has it"
    shown = subprocess.run(["ps", "axww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    assert login.password not in shown


@pytest.mark.full
def test_a_run_wakes_a_database_that_a_reboot_stopped(team: Team, engine: Engine) -> None:
    team.done("db", "create", "genomes", "--engine", engine)
    login = login_of(team, engine)
    os.kill(server_pid(team), signal.SIGKILL)
    eventually(lambda: listed(team)["genomes"]["state"] == "stopped", what="the end of the server")
    team.write("trial.py", PROGRAM)
    team.write(
        "outlast.toml", f'name = "t"\ncommand = "{sys.executable} trial.py"\n[databases]\nDATABASE_URL = "genomes"\n'
    )
    team.done("run", "--quiet")
    with Session(login) as session:
        assert session.query("SELECT COUNT(*) FROM trials")[0][0] == 1


def test_a_run_with_an_unknown_database_is_refused_before_any_launch(team: Team) -> None:
    team.write("outlast.toml", 'name = "t"\ncommand = "true"\ndatabases = "genomes"\n')
    assert "no database `genomes`" in team.refused(2, "run")
    assert team.workspace.runs() == []


def test_the_missing_driver_is_named(team: Team) -> None:
    """Without the extra, everything but databases works, and the error has an install hint."""
    script = "import sys; sys.modules['pymysql'] = None; from outlast.sql.session import _driver; _driver('pymysql')"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "`pymysql` is not installed" in answer.stderr
