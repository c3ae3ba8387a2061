"""The command lines and files of MariaDB and PostgreSQL on this computer. Starts nothing itself.

Passwords are in private files and in connections, never in command lines.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Protocol

from outlast.clouds.resources import Engine

ADMIN = "outlast_admin"
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


class DatabaseServer(Protocol):
    """The commands of one engine. `path` is the database's folder as the server sees it."""

    engine: Engine
    # The account that its package created, used if we are root; and the signal for an orderly end.
    account: str
    stop_signal: signal.Signals
    package: str

    def missing(self) -> str:
        """Return a program that is not installed; empty if none is missing."""

    def init_command(self, path: str) -> list[str]:
        """Return the command that creates the data folder. It reads the administrator's password from `run/first`."""

    def first_start_input(self, password: str) -> str:
        """Return the content of `run/first` for the first start."""

    def server_command(self, path: str, *, port: int, all_interfaces: bool, first: bool) -> list[str]:
        """Return the command of the server, in the foreground."""

    def dump_command(self, folder: str, *, port: int, database: str) -> list[str]:
        """Return the command that writes the database to its standard output."""

    def load_command(self, folder: str, *, port: int, database: str) -> list[str]:
        """Return the command that reads a dump from its standard input into an empty database."""

    def client_login(self, folder: str, password: str) -> tuple[str, Mapping[str, str]]:
        """Return the content of a client's private file, and the variables that refer to it."""


class MariaDb:
    engine: Engine = "mysql"
    account = "mysql"
    stop_signal = signal.SIGTERM
    package = "mariadb-server"

    def missing(self) -> str:
        wanted = ("mariadbd", "mariadb-install-db", "mariadb-dump", "mariadb")
        return next((name for name in wanted if not find(name)), "")

    def init_command(self, path: str) -> list[str]:
        return [
            find("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={path}/data",
            # Not the computer's: a starting server deletes the temporary tables of others there.
            f"--tmpdir={path}/run",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]

    def first_start_input(self, password: str) -> str:
        # One statement per line. The accounts of a new server have no password.
        who = f"'{ADMIN}'@'127.0.0.1'"
        return (
            f"CREATE USER IF NOT EXISTS {who} IDENTIFIED BY '{password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {who} WITH GRANT OPTION;\n"
            "DELETE FROM mysql.global_priv WHERE User IN ('', 'root', 'mysql');\nFLUSH PRIVILEGES;\n"
        )

    def server_command(self, path: str, *, port: int, all_interfaces: bool, first: bool) -> list[str]:
        return [
            find("mariadbd"),
            "--no-defaults",
            f"--datadir={path}/data",
            f"--tmpdir={path}/run",
            # Relative to the data folder: the full path may exceed the limit of a socket's path.
            "--socket=server.sock",
            f"--pid-file={path}/run/server.pid",
            f"--port={port}",
            f"--bind-address={'*' if all_interfaces else '127.0.0.1'}",
            "--skip-name-resolve",
            f"--ssl-cert={path}/tls/server.pem",
            f"--ssl-key={path}/tls/server.key",
            "--require-secure-transport=ON",
            "--character-set-server=utf8mb4",
            # Small, because it runs on a laptop.
            "--innodb-buffer-pool-size=64M",
            *([f"--init-file={path}/run/first"] if first else []),
        ]

    def dump_command(self, folder: str, *, port: int, database: str) -> list[str]:
        plain = ["--single-transaction", "--routines", "--events", "--triggers", "--skip-lock-tables"]
        return [find("mariadb-dump"), f"--defaults-file={folder}/run/client", f"--port={port}", *plain, database]

    def load_command(self, folder: str, *, port: int, database: str) -> list[str]:
        return [find("mariadb"), f"--defaults-file={folder}/run/client", f"--port={port}", database]

    def client_login(self, folder: str, password: str) -> tuple[str, Mapping[str, str]]:
        file = f"[client]\nhost=127.0.0.1\nuser={ADMIN}\npassword={password}\nssl-ca={folder}/tls/server.pem\n"
        return file, {}


class Postgres:
    engine: Engine = "postgres"
    account = "postgres"
    # PostgreSQL's "fast" shutdown: sessions end, committed data is on disk.
    stop_signal = signal.SIGINT
    package = "postgresql"

    def missing(self) -> str:
        return next((name for name in ("postgres", "initdb", "pg_dump", "pg_restore") if not find(name)), "")

    def init_command(self, path: str) -> list[str]:
        return [
            find("initdb"),
            f"--pgdata={path}/data",
            f"--username={ADMIN}",
            f"--pwfile={path}/run/first",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--no-instructions",
        ]

    def first_start_input(self, password: str) -> str:
        return f"{password}\n"

    def server_command(self, path: str, *, port: int, all_interfaces: bool, first: bool) -> list[str]:
        settings = {
            "listen_addresses": "*" if all_interfaces else "127.0.0.1",
            "port": str(port),
            # None: clients use TCP, and the path may exceed the limit of a socket's path.
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": f"{path}/tls/server.pem",
            "ssl_key_file": f"{path}/tls/server.key",
            "hba_file": f"{path}/run/hosts",
            # A failed statement may contain a password, so it must not be logged.
            "log_min_error_statement": "panic",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return [find("postgres"), "-D", f"{path}/data", *options]

    def dump_command(self, folder: str, *, port: int, database: str) -> list[str]:
        return [find("pg_dump"), "--format=custom", "--no-password", self._connection_string(port, database)]

    def load_command(self, folder: str, *, port: int, database: str) -> list[str]:
        whole = ["--single-transaction", "--exit-on-error", "--no-password"]
        return [find("pg_restore"), *whole, f"--dbname={self._connection_string(port, database)}"]

    def _connection_string(self, port: int, database: str) -> str:
        return f"host=127.0.0.1 port={port} user={ADMIN} dbname={database}"

    def client_login(self, folder: str, password: str) -> tuple[str, Mapping[str, str]]:
        own = {"PGPASSFILE": f"{folder}/run/client", "PGSSLMODE": "verify-full"}
        return f"*:*:*:{ADMIN}:{password}\n", {**own, "PGSSLROOTCERT": f"{folder}/tls/server.pem"}

    def hosts(self, *, database: str, user: str, addresses: Sequence[str]) -> str:
        """Return the rules of pg_hba.conf: these addresses only, encrypted, with a password."""
        lines = [f"hostssl all {ADMIN} 127.0.0.1/32 scram-sha-256"]
        lines += [
            f'hostssl "{database}" "{user}" {network(a)} scram-sha-256' for a in ("127.0.0.1", *addresses) if user
        ]
        return "".join(f"{line}\n" for line in lines)


SERVERS: Mapping[Engine, MariaDb | Postgres] = {"mysql": MariaDb(), "postgres": Postgres()}


def network(address: str) -> str:
    """Return the address in CIDR notation."""
    return address if "/" in address else f"{address}/{128 if ':' in address else 32}"


def find(program: str) -> str:
    """Return the path of a program. PostgreSQL's are in folders by version; the newest is used."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    versions = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"), key=lambda p: float(p.split("/")[4]))
    return versions[-1] if versions else shutil.which(program, path=path) or ""
