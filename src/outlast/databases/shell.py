"""The engine's own command line: which program, with what words. The password goes by a private file."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile

from outlast.clouds.sql import Login
from outlast.errors import OutlastError

_PROGRAMS = {"mysql": ("mariadb", "mysql"), "postgres": ("psql",)}
_PACKAGES = {"mysql": "mariadb-client", "postgres": "postgresql-client"}


def run(login: Login, argv: tuple[str, ...] = ()) -> int:
    """Its exit code. Raises OutlastError when there is no such program."""
    program = next((found for name in _PROGRAMS[login.engine] if (found := shutil.which(name))), "")
    if not program:
        why = f"there is no `{_PROGRAMS[login.engine][0]}` on this computer"
        hint = f"apt install {_PACKAGES[login.engine]}; or take the address: `outlast db url NAME`"
        raise OutlastError(why, hint=hint)
    with tempfile.TemporaryDirectory(prefix="outlast-db-") as folder:
        _write(f"{folder}/ca.pem", login.ca)
        line, variables = _mysql(login, folder) if login.engine == "mysql" else _postgres(login, folder)
        return subprocess.run([program, *line, *argv], env={**os.environ, **variables}, check=False).returncode


def _mysql(login: Login, folder: str) -> tuple[list[str], dict[str, str]]:
    trusted = f"ssl-ca={folder}/ca.pem\n" if login.ca else "ssl\n"
    checked = "ssl-verify-server-cert\n" if login.server_name else ""
    where = f"host={login.host}\nport={login.port}\nuser={login.user}\npassword={login.password}\nprotocol=tcp\n"
    _write(f"{folder}/client", f"[client]\n{where}{trusted}{checked}")
    return [f"--defaults-file={folder}/client", login.database], {}


def _postgres(login: Login, folder: str) -> tuple[list[str], dict[str, str]]:
    _write(f"{folder}/client", f"*:*:*:{login.user}:{login.password}\n")
    mode = "require" if not login.ca else "verify-full" if login.server_name else "verify-ca"
    where = f"host={login.host} port={login.port} user={login.user} dbname={login.database} sslmode={mode}"
    trusted = {"PGSSLROOTCERT": f"{folder}/ca.pem"} if login.ca else {}
    return [where], {"PGPASSFILE": f"{folder}/client", **trusted}


def _write(path: str, text: str) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
