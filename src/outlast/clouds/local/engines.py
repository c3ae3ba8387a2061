"""MariaDB and PostgreSQL of this computer: where their programs are and how they are called. Starts nothing itself.

Passwords are in private files and in connections, never among the words of a command.
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
    """How one engine is handled. `path` is the database's folder as the server sees it."""

    engine: Engine
    # The account that its package made, for when we are root; and the signal that ends it in order.
    account: str
    stop_signal: signal.Signals
    package: str

    def missing(self) -> str:
        """The program that is not there; empty when all are."""

    def init_command(self, path: str) -> list[str]:
        """Makes the data folder. Reads the administrator's password from `run/first`."""

    def first_start_input(self, password: str) -> str:
        """What `run/first` holds at the first start."""

    def server_command(self, path: str, *, port: int, all_interfaces: bool, first: bool) -> list[str]:
        """The server itself, in the foreground."""

    def dump_command(self, folder: str, *, port: int, database: str) -> list[str]:
        """Writes the database to its output."""

    def load_command(self, folder: str, *, port: int, database: str) -> list[str]:
        """Reads it from its input, over a database that was emptied."""

    def client_login(self, folder: str, password: str) -> tuple[str, Mapping[str, str]]:
        """What a client's private file holds, and the variables that lead there."""


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
            # Not the computer's: whoever starts there removes what looks like a table of one that was killed.
            f"--tmpdir={path}/run",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            "--skip-name-resolve",
        ]

    def first_start_input(self, password: str) -> str:
        # A statement a line. The accounts that come with a new server have no password.
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
            # Below its data folder, where it works: the whole path may be longer than a socket's may be.
            "--socket=server.sock",
            f"--pid-file={path}/run/server.pid",
            f"--port={port}",
            f"--bind-address={'*' if all_interfaces else '127.0.0.1'}",
            "--skip-name-resolve",
            f"--ssl-cert={path}/tls/server.pem",
            f"--ssl-key={path}/tls/server.key",
            "--require-secure-transport=ON",
            "--character-set-server=utf8mb4",
            # A laptop's share of memory, not a server's.
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
    # "Fast": sessions end, what was committed is on the disk.
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
            # None: everybody comes by TCP, and the path may be longer than a socket's may be.
            "unix_socket_directories": "",
            "ssl": "on",
            "ssl_cert_file": f"{path}/tls/server.pem",
            "ssl_key_file": f"{path}/tls/server.key",
            "hba_file": f"{path}/run/hosts",
            # A statement that fails may hold a password; it is not for the log.
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
        """Who may connect from where: encrypted, with a password, and nobody else."""
        lines = [f"hostssl all {ADMIN} 127.0.0.1/32 scram-sha-256"]
        lines += [
            f'hostssl "{database}" "{user}" {network(a)} scram-sha-256' for a in ("127.0.0.1", *addresses) if user
        ]
        return "".join(f"{line}\n" for line in lines)


SERVERS: Mapping[Engine, MariaDb | Postgres] = {"mysql": MariaDb(), "postgres": Postgres()}


def network(address: str) -> str:
    """With the number of bits that count."""
    return address if "/" in address else f"{address}/{128 if ':' in address else 32}"


def find(program: str) -> str:
    """Where a program is; PostgreSQL's are kept by version, out of everybody's path. The newest is taken."""
    path = f"{os.environ.get('PATH', '')}:{_SBIN}"
    versions = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{program}"), key=lambda p: float(p.split("/")[4]))
    return versions[-1] if versions else shutil.which(program, path=path) or ""
