"""Backups of the local cloud's databases: compressed dumps by the engine's own program, in the database's folder."""

from __future__ import annotations

import os
import re
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outlast.clouds.local import dbprocess
from outlast.clouds.local.engines import SERVERS
from outlast.clouds.resources import Backup
from outlast.errors import CloudError, NotFound

_ID = re.compile(r"\d{8}-\d{6}(-\d+)?")
_BYTES = 1 << 20
_DRAFT = ".draft"


def create(folder: str, facts: dict[str, Any], admin: str, lock: int) -> Backup:
    """Create a backup, all or nothing. The caller holds the database's lock, and the server runs."""
    return publish(dump_draft(folder, facts, admin, lock))


def dump_draft(folder: str, facts: dict[str, Any], admin: str, lock: int) -> str:
    """Write a complete dump and return its path; `publish` makes it a backup. Deletes leftovers of killed calls."""
    os.makedirs(f"{folder}/backups", mode=0o700, exist_ok=True)
    for name in os.listdir(f"{folder}/backups"):
        if name.endswith(_DRAFT):
            os.unlink(f"{folder}/backups/{name}")
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    taken = sum(name.startswith(stamp) for name in os.listdir(f"{folder}/backups"))
    path = f"{folder}/backups/{stamp}{f'-{taken}' if taken else ''}"
    server = SERVERS[facts["engine"]]
    argv = server.dump_command(folder, port=int(facts["port"]), database=facts["database"])
    pack = zlib.compressobj(6)
    with _client(folder, facts, admin) as environment, open(f"{path}{_DRAFT}", "wb") as file:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, pass_fds=(lock,)
        )
        assert process.stdout is not None
        assert process.stderr is not None
        while piece := process.stdout.read(_BYTES):
            file.write(pack.compress(piece))
        file.write(pack.flush())
        errors = process.stderr.read().decode("utf-8", "replace")
        if process.wait() != 0:
            os.unlink(f"{path}{_DRAFT}")
            raise CloudError(f"the backup failed: {_last_line(errors)}")
        file.flush()
        os.fsync(file.fileno())
    return f"{path}{_DRAFT}"


def publish(draft: str) -> Backup:
    """Turn a draft into a backup."""
    os.rename(draft, path := draft.removesuffix(_DRAFT))
    return _describe(path)


def id_of(draft: str) -> str:
    """Return the id of the draft's backup."""
    return os.path.basename(draft.removesuffix(_DRAFT))


def list_all(folder: str) -> list[Backup]:
    try:
        names = sorted(name for name in os.listdir(f"{folder}/backups") if _ID.fullmatch(name))
    except FileNotFoundError:
        return []
    return [_describe(f"{folder}/backups/{name}") for name in names]


def find(folder: str, backup: str) -> str:
    path = f"{folder}/backups/{backup}"
    if not _ID.fullmatch(backup) or not os.path.exists(path):
        raise NotFound(f"no backup `{backup}`", hint="`outlast db show NAME` lists the backups")
    return path


def load(folder: str, facts: dict[str, Any], admin: str, path: str, lock: int) -> None:
    """Load a backup into an empty database.

    The engine's program inherits the database's lock: if this process is killed, the program runs on for a while, and
    the next restore must wait for its end.
    """
    server = SERVERS[facts["engine"]]
    argv = server.load_command(folder, port=int(facts["port"]), database=facts["database"])
    unpack = zlib.decompressobj()
    with _client(folder, facts, admin) as environment, open(path, "rb") as file:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            pass_fds=(lock,),
        )
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            while piece := file.read(_BYTES):
                process.stdin.write(unpack.decompress(piece))
            process.stdin.write(unpack.flush())
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has failed; its error output is reported below
        errors = process.stderr.read().decode("utf-8", "replace")
        if process.wait() != 0:
            why = f"the restore failed: {_last_line(errors)}"
            hint = "the content before the restore is the newest backup: `outlast db restore NAME` restores it"
            raise CloudError(why, hint=hint)


@contextmanager
def _client(folder: str, facts: dict[str, Any], admin: str) -> Iterator[dict[str, str]]:
    """Yield the environment of a client program, whose password is in a private file meanwhile."""
    server = SERVERS[facts["engine"]]
    text, variables = server.client_login(folder, admin)
    dbprocess.write_private(folder, "run/client", text, "root" if os.geteuid() == 0 else "")
    try:
        yield {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8", "HOME": folder, **variables}
    finally:
        os.unlink(f"{folder}/run/client")


def _describe(path: str) -> Backup:
    status = os.stat(path)
    return Backup(id=os.path.basename(path), created_at=status.st_mtime, bytes=status.st_size)


def _last_line(errors: str) -> str:
    return errors.strip().splitlines()[-1] if errors.strip() else "the program reported no reason"
