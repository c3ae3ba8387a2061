"""Backups of the local cloud's databases: what the engine's own program writes, compressed, in its folder."""

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
    """A dump, whole or not there at all. Under the database's lock, awake."""
    return publish(dump_draft(folder, facts, admin, lock))


def dump_draft(folder: str, facts: dict[str, Any], admin: str, lock: int) -> str:
    """A dump that is whole, and no backup before it is kept: its path. What a killed one has left goes."""
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
    """Make a backup of a draft."""
    os.rename(draft, path := draft.removesuffix(_DRAFT))
    return _describe(path)


def id_of(draft: str) -> str:
    """What it is called as soon as it is kept."""
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
        raise NotFound(f"there is no backup `{backup}`", hint="`outlast db show NAME` lists them")
    return path


def load(folder: str, facts: dict[str, Any], admin: str, path: str, lock: int) -> None:
    """Into a database that was emptied.

    The engine's program has the database's lock as well: if we are killed it goes on for a while with what it was
    given, and whoever restores once more must not begin before it has ended.
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
            pass  # it ended before its input did, and says why
        errors = process.stderr.read().decode("utf-8", "replace")
        if process.wait() != 0:
            why = f"the restore failed: {_last_line(errors)}"
            raise CloudError(why, hint="how it was before is the newest backup: `outlast db restore NAME` takes it")


@contextmanager
def _client(folder: str, facts: dict[str, Any], admin: str) -> Iterator[dict[str, str]]:
    """The environment of a client of the engine; its password is in a private file, for as long as it runs."""
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
    return errors.strip().splitlines()[-1] if errors.strip() else "it did not say why"
