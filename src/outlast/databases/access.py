"""Access to databases from outside: the allowed addresses with their users, and the engine's own command line."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping

import msgspec

from outlast.databases.lifecycle import HasDatabases
from outlast.errors import OutlastError, UsageError
from outlast.records.resources import ResourceRecord, ResourceRecords
from outlast.sql.session import Login

_PROGRAMS = {"mysql": ("mariadb", "mysql"), "postgres": ("psql",)}
_PACKAGES = {"mysql": "mariadb-client", "postgres": "postgresql-client"}


def allow(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, entries: Mapping[str, str]
) -> ResourceRecord:
    """Allow these addresses (address → user). May be repeated."""
    return _set(cloud, records, record, {**record.allowed, **entries})


def revoke(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, who: str
) -> tuple[ResourceRecord, list[str]]:
    """Revoke an address, or all addresses of a user. Raises UsageError if none was allowed."""
    plain = _network(who)
    out = [address for address, owner in record.allowed.items() if who == owner or address in (who, plain)]
    if not out:
        known = ", ".join(f"{address} ({owner})" for address, owner in record.allowed.items()) or "none"
        raise UsageError(f"`{who}` has no access to database `{record.name}`", hint=f"allowed: {known}")
    left = {address: owner for address, owner in record.allowed.items() if address not in out}
    return _set(cloud, records, record, left), out


def _set(
    cloud: HasDatabases, records: ResourceRecords, record: ResourceRecord, allowed: dict[str, str]
) -> ResourceRecord:
    # Write the record first: an allowed address without a record would never be revoked.
    fresh = records.write(msgspec.structs.replace(record, allowed=allowed))
    cloud.databases.allow(record.there, sorted(allowed))
    return fresh


def read(text: str) -> dict[str, str]:
    """Parse `203.0.113.7`, `203.0.113.0/24`, `ann=203.0.113.7` or a host name. Raises UsageError."""
    who, equals, where = text.partition("=")
    target = where if equals else who
    if equals and (not who.strip() or not where.strip()):
        raise UsageError(f"invalid entry `{text}`", hint="use the form ann=203.0.113.7")
    if address := _network(target):
        if ipaddress.ip_network(address).prefixlen == 0:
            raise UsageError(f"`{text}` would allow the whole internet", hint="use the addresses of your team")
        return {address: who if equals else address}
    try:
        found = socket.getaddrinfo(target, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        why = f"invalid address `{target}`: expected an address, a network or a host name"
        raise UsageError(why, hint="e.g. 203.0.113.7, 203.0.113.0/24 or ann=203.0.113.7") from problem
    return {str(entry[4][0]): who for entry in found}


def _network(text: str) -> str:
    """Return the canonical form of an address or network; empty if it is neither."""
    try:
        parsed = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        return ""
    return str(parsed) if parsed.num_addresses > 1 else str(parsed.network_address)


def run_shell(login: Login, argv: tuple[str, ...] = ()) -> int:
    """Run the engine's command line and return its exit code. Raises OutlastError if it is not installed."""
    program = next((found for name in _PROGRAMS[login.engine] if (found := shutil.which(name))), "")
    if not program:
        why = f"`{_PROGRAMS[login.engine][0]}` is not installed on this computer"
        hint = f"apt install {_PACKAGES[login.engine]}; or use the address: `outlast db url NAME`"
        raise OutlastError(why, hint=hint)
    # The password goes through a private file, never through the command line.
    with tempfile.TemporaryDirectory(prefix="outlast-db-") as folder:
        _write_private(f"{folder}/ca.pem", login.ca)
        line, variables = _mysql(login, folder) if login.engine == "mysql" else _postgres(login, folder)
        return subprocess.run([program, *line, *argv], env={**os.environ, **variables}, check=False).returncode


def _mysql(login: Login, folder: str) -> tuple[list[str], dict[str, str]]:
    trusted = f"ssl-ca={folder}/ca.pem\n" if login.ca else "ssl\n"
    checked = "ssl-verify-server-cert\n" if login.server_name else ""
    where = f"host={login.host}\nport={login.port}\nuser={login.user}\npassword={login.password}\nprotocol=tcp\n"
    _write_private(f"{folder}/client", f"[client]\n{where}{trusted}{checked}")
    return [f"--defaults-file={folder}/client", login.database], {}


def _postgres(login: Login, folder: str) -> tuple[list[str], dict[str, str]]:
    _write_private(f"{folder}/client", f"*:*:*:{login.user}:{login.password}\n")
    mode = "require" if not login.ca else "verify-full" if login.server_name else "verify-ca"
    where = f"host={login.host} port={login.port} user={login.user} dbname={login.database} sslmode={mode}"
    trusted = {"PGSSLROOTCERT": f"{folder}/ca.pem"} if login.ca else {}
    return [where], {"PGPASSFILE": f"{folder}/client", **trusted}


def _write_private(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
