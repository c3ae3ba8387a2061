"""Databases of the local cloud: a MariaDB or PostgreSQL server each, with its own data, certificate and port.

    database.json   the request, the port, allowed addresses        data/ tls/ run/   the server's files
    admin.json      the administrator's password, private           backups/ server.log
    server.lock     held by the server while it lives; free again after a reboot of the computer

No daemon runs: a process that needs a stopped database starts it. Servers listen on loopback, which machines reach
on their own loopback. They listen on all interfaces once a remote address is allowed.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets as random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from outlast import private
from outlast.clouds.local import backups, dbprocess, secrets
from outlast.clouds.local.engines import ADMIN, SERVERS, network
from outlast.clouds.local.files import read_json, remove_tree, wait_lock, write_json
from outlast.clouds.local.os_errors import with_os_errors
from outlast.clouds.resources import Backup, Database, DatabaseRequest, Engine, ResourceState
from outlast.errors import BadRequest, NotFound
from outlast.sql.session import Login, Session, need

CLOUD = "local"
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_PASSWORD = re.compile(r"[A-Za-z0-9_-]{16,128}")
_IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")


class LocalDatabases:
    """The databases below one folder. Any number of processes may use it at once."""

    def __init__(self, root: str) -> None:
        self.root = root

    def create(self, name: str, request: DatabaseRequest, *, password: str) -> Database:
        _check(request.database, request.user, password)
        self.create_server(name, request.engine, request.labels)
        return self.create_database(name, request.database, request.user, password=password)

    @with_os_errors
    def create_server(self, name: str, engine: Engine, labels: Mapping[str, str]) -> Database:
        """Create and start a server without a database. May be repeated."""
        folder = self._folder(name)
        _check_engine(engine)
        os.makedirs(private.prepare(folder), mode=0o700, exist_ok=True)
        with _locked(folder):
            if read_json(f"{folder}/database.json") is None:
                facts: dict[str, Any] = {
                    "engine": engine,
                    "database": "",
                    "user": "",
                    "labels": dict(labels),
                    "created_at": time.time(),
                    "allowed": [],
                    "port": dbprocess.free_port(name),
                }
                write_json(f"{folder}/admin.json", {"password": random.token_urlsafe(24)}, permissions=0o600)
                write_json(f"{folder}/database.json", facts, permissions=0o600)
            self._ensure_running(folder)
        return self.find(name)

    @with_os_errors
    def create_database(self, name: str, database: str, user: str, *, password: str) -> Database:
        """Create the server's one database and its owner. May be repeated, which sets the owner's password."""
        _check(database, user, password)
        folder = self._existing_folder(name)
        with _locked(folder):
            facts = {**_facts(folder), "database": database, "user": user}
            write_json(f"{folder}/database.json", facts, permissions=0o600)
            self._ensure_running(folder)
            self._create_database_and_user(folder, password)
        return self.find(name)

    @with_os_errors
    def list_all(self, labels: Mapping[str, str] | None = None) -> Sequence[Database]:
        wanted = set((labels or {}).items())
        names = sorted(os.listdir(f"{self.root}/databases")) if os.path.isdir(f"{self.root}/databases") else []
        found = [self._describe(name) for name in names if _NAME.fullmatch(name)]
        return [one for one in found if one is not None and wanted <= set(one.labels.items())]

    @with_os_errors
    def find(self, name: str) -> Database:
        if (found := self._describe(name)) is None:
            raise NotFound(f"the local cloud has no database `{name}`")
        return found

    @with_os_errors
    def wake(self, name: str) -> Database:
        folder = self._existing_folder(name)
        with _locked(folder):
            self._ensure_running(folder)
        return self.find(name)

    @with_os_errors
    def allow(self, name: str, addresses: Sequence[str]) -> None:
        folder = self._existing_folder(name)
        wanted = sorted({_address(address) for address in addresses})
        with _locked(folder):
            facts = _facts(folder)
            before, facts["allowed"] = list(facts["allowed"]), wanted
            write_json(f"{folder}/database.json", facts, permissions=0o600)
            if _is_remote(before) != _is_remote(wanted):
                # The listening address is fixed at the start.
                dbprocess.stop(folder, SERVERS[facts["engine"]].stop_signal)
            self._ensure_running(folder)
            self._admit(folder, before)

    @with_os_errors
    def back_up(self, name: str) -> Backup:
        folder = self._existing_folder(name)
        with _locked(folder) as lock:
            if _restore_interrupted(folder):
                hint = "restore it again first: `outlast db restore NAME`"
                raise BadRequest(f"cannot back up `{name}`: its last restore was interrupted", hint=hint)
            self._ensure_running(folder)
            return backups.create(folder, _facts(folder), _admin(folder), lock)

    def backups(self, name: str) -> Sequence[Backup]:
        return backups.list_all(self._existing_folder(name))

    @with_os_errors
    def restore(self, name: str, backup: str) -> None:
        folder = self._existing_folder(name)
        path = backups.find(folder, backup)
        with _locked(folder) as lock:
            self._ensure_running(folder)
            facts = {**_facts(folder), "restoring": backup}
            if not _restore_interrupted(folder):
                # Back up the current content first, in case the user chose the wrong backup.
                draft = backups.dump_draft(folder, facts, _admin(folder), lock)
                facts["before"] = backups.id_of(draft)
                # Recorded before it is the newest backup: a repetition after a kill must restore the same backup.
                write_json(f"{folder}/database.json", facts, permissions=0o600)
                backups.publish(draft)
            # Recorded first: a process killed from here on leaves an empty or incomplete database.
            write_json(f"{folder}/database.json", facts, permissions=0o600)
            self._recreate_database(folder)
            backups.load(folder, facts, _admin(folder), path, lock)
            del facts["restoring"]
            facts.pop("before", None)
            write_json(f"{folder}/database.json", facts, permissions=0o600)

    @with_os_errors
    def delete(self, name: str) -> None:
        folder = self._folder(name)
        if not os.path.isdir(folder):
            return
        with _locked(folder):
            facts = read_json(f"{folder}/database.json") or {}
            if engine := facts.get("engine"):
                dbprocess.stop(folder, SERVERS[engine].stop_signal)
            remove_tree(folder)

    def secret(self, name: str) -> Mapping[str, str]:
        values = secrets.read(self.root, name)
        if values is None:
            raise NotFound(f"the local cloud has no secret `{name}`")
        return values

    def my_address(self) -> str:
        return "127.0.0.1"

    def ports(self, names: Sequence[str]) -> tuple[int, ...]:
        """Start these databases and return their ports, for a machine's loopback."""
        return tuple(self.wake(name).port for name in names)

    def _folder(self, name: str) -> str:
        if not _NAME.fullmatch(name):
            hint = "use lower-case letters, digits and `-`, at most 63"
            raise BadRequest(f"invalid database name `{name}`", hint=hint)
        return f"{self.root}/databases/{name}"

    def _existing_folder(self, name: str) -> str:
        self.find(name)
        return self._folder(name)

    def _describe(self, name: str) -> Database | None:
        folder = self._folder(name)
        facts = read_json(f"{folder}/database.json")
        if facts is None:
            return None
        if "engine" not in facts:
            return Database(name=name, cloud=CLOUD, engine="mysql", state="broken", why="its files are damaged")
        try:
            with open(f"{folder}/tls/server.pem", encoding="ascii") as file:
                certificate = file.read()
        except FileNotFoundError:
            certificate = ""
        restoring = facts.get("restoring", "")
        why = f"backup {restoring} is being restored; if that was interrupted, restore it again" if restoring else ""
        running: ResourceState = "ready" if dbprocess.is_running(folder) else "stopped"
        return Database(
            name=name,
            cloud=CLOUD,
            engine=facts["engine"],
            version=str(facts.get("version", "")),
            state="broken" if restoring else running,
            why=why,
            restoring=restoring,
            host="127.0.0.1",
            port=int(facts["port"]),
            ca=certificate,
            server_name="127.0.0.1",
            allowed=tuple(facts["allowed"]),
            created_at=float(facts["created_at"]),
            labels=facts["labels"],
        )

    def _ensure_running(self, folder: str) -> None:
        """Start the server if it is stopped. The caller holds the database's lock."""
        facts = _facts(folder)
        server = SERVERS[facts["engine"]]
        if server.engine == "postgres":
            hosts = SERVERS["postgres"].hosts(  # type: ignore[union-attr]
                database=facts["database"], user=facts["user"], addresses=facts["allowed"]
            )
            dbprocess.write_private(folder, "run/hosts", hosts, server.account)
        dbprocess.start(
            folder, server, port=int(facts["port"]), admin=_admin(folder), all_interfaces=_is_remote(facts["allowed"])
        )

    def _session(self, folder: str, database: str = "") -> Session:
        facts = _facts(folder)
        with open(f"{folder}/tls/server.pem", encoding="ascii") as file:
            certificate = file.read()
        login = Login(
            engine=facts["engine"],
            host="127.0.0.1",
            port=int(facts["port"]),
            user=ADMIN,
            password=_admin(folder),
            database=database,
            ca=certificate,
            server_name="127.0.0.1",
        )
        return Session(login)

    def _create_database_and_user(self, folder: str, password: str) -> None:
        """Create the database and its user, with this password. May be repeated."""
        facts = _facts(folder)
        database, user = facts["database"], facts["user"]
        with self._session(folder) as session:
            if facts["engine"] == "postgres":
                session.query("SELECT pg_reload_conf()")  # a server that ran before has no rule for this user
            if facts["engine"] == "mysql":
                session.query(f"CREATE DATABASE IF NOT EXISTS `{database}`")
                _mysql_user(session, database, user, "127.0.0.1", f"IDENTIFIED BY '{password}'")
                facts["version"] = str(session.query("SELECT version()")[0][0])
            else:
                role = f"\"{user}\" LOGIN PASSWORD '{password}'"
                there = session.query(f"SELECT 1 FROM pg_roles WHERE rolname = '{user}'")
                session.query(f"{'ALTER' if there else 'CREATE'} ROLE {role}")
                if not session.query(f"SELECT 1 FROM pg_database WHERE datname = '{database}'"):
                    session.query(f'CREATE DATABASE "{database}" OWNER "{user}"')
                facts["version"] = str(session.query("SHOW server_version")[0][0])
        write_json(f"{folder}/database.json", facts, permissions=0o600)
        self._admit(folder, facts["allowed"])

    def _admit(self, folder: str, before: Sequence[str]) -> None:
        """Apply the allowed addresses. Existing connections stay open."""
        facts = _facts(folder)
        with self._session(folder) as session:
            if facts["engine"] == "postgres":
                session.query("SELECT pg_reload_conf()")
                return
            if not facts["user"]:
                return  # no user to admit yet
            user, database = facts["user"], facts["database"]
            mark = session.query(
                f"SELECT authentication_string FROM mysql.user WHERE User = '{user}' AND Host = '127.0.0.1'"
            )[0][0]
            for address in {*before} - {*facts["allowed"]}:
                session.query(f"DROP USER IF EXISTS '{user}'@'{_mysql_host(address)}'")
            for address in facts["allowed"]:
                _mysql_user(session, database, user, _mysql_host(address), f"IDENTIFIED BY PASSWORD '{mark}'")

    def _recreate_database(self, folder: str) -> None:
        facts = _facts(folder)
        database, user = facts["database"], facts["user"]
        with self._session(folder) as session:
            if facts["engine"] == "mysql":
                session.query(f"DROP DATABASE IF EXISTS `{database}`")
                session.query(f"CREATE DATABASE `{database}`")
            else:
                # Connected clients would prevent the drop.
                session.query(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
                session.query(f'CREATE DATABASE "{database}" OWNER "{user}"')


def _check(database: str, user: str, password: str) -> None:
    """Raise BadRequest for values that would need quoting: they become part of SQL statements."""
    if not _PASSWORD.fullmatch(password):
        raise BadRequest("invalid password", hint="use 16 to 128 letters, digits, `-` and `_`")
    for word in (database, user):
        if not _IDENTIFIER.fullmatch(word) or word == ADMIN:
            hint = "use lower-case letters, digits and `_`"
            raise BadRequest(f"invalid name of a database or user `{word}`", hint=hint)


def _check_engine(engine: Engine) -> None:
    need(engine)
    server = SERVERS[engine]
    if missing := server.missing():
        why = f"the program `{missing}`, which a database of the local cloud needs, is not installed"
        raise BadRequest(why, hint=f"apt install {server.package}, or choose another engine with --engine")


def _mysql_user(session: Session, database: str, user: str, host: str, identified: str) -> None:
    session.query(f"CREATE USER IF NOT EXISTS '{user}'@'{host}' {identified}")
    session.query(f"ALTER USER '{user}'@'{host}' {identified} REQUIRE SSL")
    session.query(f"GRANT ALL PRIVILEGES ON `{database}`.* TO '{user}'@'{host}'")


def _mysql_host(address: str) -> str:
    """Return an address in MariaDB's notation: networks have a mask, and are supported for IPv4 only."""
    if "/" not in address:
        return address
    parsed = ipaddress.ip_network(address)
    if parsed.version == 6:
        raise BadRequest(f"MariaDB does not support the IPv6 network {address}", hint="allow single addresses")
    return f"{parsed.network_address}/{parsed.netmask}"


def _address(text: str) -> str:
    try:
        parsed = ipaddress.ip_network(text, strict=False)
    except ValueError as problem:
        hint = "expected the form 203.0.113.7 or 203.0.113.0/24"
        raise BadRequest(f"invalid address `{text}`", hint=hint) from problem
    return str(parsed) if parsed.num_addresses > 1 else str(parsed.network_address)


def _is_remote(addresses: Sequence[str]) -> bool:
    """Return whether an address of another computer is among them."""
    return any(not ipaddress.ip_network(network(address)).is_loopback for address in addresses)


def _restore_interrupted(folder: str) -> bool:
    """Return whether a restore was killed after it began to empty the database, whose content is a backup by then."""
    facts = _facts(folder)
    before = facts.get("before", "")
    return "restoring" in facts and (not before or any(one.id == before for one in backups.list_all(folder)))


def _facts(folder: str) -> dict[str, Any]:
    return read_json(f"{folder}/database.json") or {}


def _admin(folder: str) -> str:
    return str((read_json(f"{folder}/admin.json") or {}).get("password", ""))


@contextmanager
def _locked(folder: str) -> Iterator[int]:
    """Hold the database's lock, among threads and processes. It is beside the folder, which may be deleted."""
    descriptor = wait_lock(f"{folder}.lock")
    try:
        yield descriptor
    finally:
        if not os.path.isdir(folder):
            os.unlink(f"{folder}.lock")
        os.close(descriptor)
