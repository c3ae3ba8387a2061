"""The process of a database server: its files, its start, its end. It is alive if and only if its lock is held."""

from __future__ import annotations

import glob
import hashlib
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

from outlast.clouds.local.drop_privileges import MOUNT_POINT
from outlast.clouds.local.engines import DatabaseServer
from outlast.clouds.local.files import is_locked, read_json, remove_tree, try_lock, write_json
from outlast.errors import CloudError

_START_S, _STOP_S = 90.0, 60.0
# Below the ephemeral ports, so that the same port is free again after a reboot.
_FIRST_PORT, _PORTS = 20_000, 10_000
# PostgreSQL's error code while it recovers after a crash.
_STARTING = b"57P03"


def is_running(folder: str) -> bool:
    return is_locked(f"{folder}/server.lock")


def free_port(name: str) -> int:
    """Return a free port; if possible always the same for a name."""
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % _PORTS
    for step in range(_PORTS):
        port = _FIRST_PORT + (first + step) % _PORTS
        if _is_free(port):
            return port
    raise CloudError("no port is free for a database on this computer")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def start(folder: str, server: DatabaseServer, *, port: int, admin: str, all_interfaces: bool) -> None:
    """Start the server and wait until it answers. The caller holds the database's lock. Raises CloudError."""
    if is_running(folder):
        return
    first = not os.path.exists(f"{folder}/data.whole")
    if first:
        _initialize(folder, server, admin)
    if not _is_free(port):
        why = f"port {port} of database `{os.path.basename(folder)}` is in use by another program"
        raise CloudError(why, hint=f"find the program: ss -ltnp 'sport = :{port}'")
    # Left by a killed server, with a pid that may belong to another process by now. The lock proves that it is dead.
    for left in (f"{folder}/data/postmaster.pid", *glob.glob(f"{glob.escape(folder)}/run/.s.PGSQL.*")):
        with suppress(FileNotFoundError):
            os.unlink(left)
    argv = server.server_command(_path_for_server(folder), port=port, all_interfaces=all_interfaces, first=first)
    lock = _lock(folder)
    try:
        with open(f"{folder}/server.log", "ab") as log:
            process = subprocess.Popen(
                _as_account(folder, server, argv),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=_environment(),
                cwd="/",
                start_new_session=True,
                pass_fds=(lock,),
            )
    finally:
        os.close(lock)
    write_json(f"{folder}/server.json", {"pid": process.pid})
    _wait_until_up(folder, server, process, port)
    if first:
        with suppress(FileNotFoundError):
            os.unlink(f"{folder}/run/first")
        with open(f"{folder}/data.whole", "wb") as file:
            os.fsync(file.fileno())


def _wait_until_up(folder: str, server: DatabaseServer, process: subprocess.Popen[bytes], port: int) -> None:
    give_up_at = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            # Both servers listen shortly before they accept logins.
            if _is_up(server, port):
                return
        except OSError:
            pass
        time.sleep(0.02)
    stop(folder, signal.SIGKILL)
    log_tail = "; ".join(_tail(f"{folder}/server.log"))
    raise CloudError(f"the database server did not start: {log_tail}", hint=f"its log is {folder}/server.log")


def _is_up(server: DatabaseServer, port: int) -> bool:
    """Return whether the server accepts logins. Raises OSError if it does not listen.

    MariaDB then sends a greeting; PostgreSQL refuses an unencrypted login for another reason than its recovery.
    """
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        if server.engine == "mysql":
            return len(connection.recv(5)) == 5
        body = b"\x00\x03\x00\x00user\0probe\0\0"
        connection.sendall((len(body) + 4).to_bytes(4, "big") + body)
        answer = connection.recv(4096)
        return answer[:1] == b"E" and _STARTING not in answer


def stop(folder: str, stop_signal: signal.Signals) -> None:
    """End the server, by force if necessary; it is gone when this returns."""
    pid = int((read_json(f"{folder}/server.json") or {}).get("pid", 0))
    for number, timeout_s in ((stop_signal, _STOP_S), (signal.SIGKILL, 10.0)):
        if not is_running(folder):
            return
        with suppress(ProcessLookupError):
            # The lock is held and its holder wrote this pid, so it is the server's.
            os.kill(pid, number)
        give_up_at = time.monotonic() + timeout_s
        while is_running(folder) and time.monotonic() < give_up_at:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)  # our child, if this process started it
            time.sleep(0.02)
    if is_running(folder):
        raise CloudError(f"the database server (pid {pid}) does not end", hint=f"kill it: kill -9 {pid}")


def write_private(folder: str, name: str, text: str, account: str) -> None:
    """Write a file that only the server's account can read."""
    path = f"{folder}/{name}"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(f"{path}.draft", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    _chown(f"{path}.draft", account)
    os.replace(f"{path}.draft", path)


def _initialize(folder: str, server: DatabaseServer, admin: str) -> None:
    """Create the data folder and the certificate, discarding the leftovers of an interrupted start."""
    for name in ("data", "tls"):
        remove_tree(f"{folder}/{name}")
    for name in ("data", "tls", "run"):
        os.makedirs(f"{folder}/{name}", mode=0o700, exist_ok=True)
        _chown(f"{folder}/{name}", server.account)
    if os.geteuid() == 0:
        # The server's account may enter this folder, but the folders above stay closed to it.
        os.chmod(folder, 0o711)
    _create_certificate(folder, server)
    write_private(folder, "run/first", server.first_start_input(admin), server.account)
    done = subprocess.run(
        _as_account(folder, server, server.init_command(_path_for_server(folder))),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=_environment(),
        cwd="/",
        check=False,
    )
    if done.returncode != 0:
        log_tail = "; ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise CloudError(f"could not create the data folder {folder}/data: {log_tail}")


def _create_certificate(folder: str, server: DatabaseServer) -> None:
    """Create a self-signed certificate, by which clients verify this server only."""
    names = f"subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:{socket.gethostname()}"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    argv += ["-days", "3650", "-subj", "/CN=outlast-database", "-addext", names]
    argv += ["-keyout", f"{folder}/tls/server.key", "-out", f"{folder}/tls/server.pem"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as problem:
        why = "could not create a certificate: `openssl` is not installed"
        raise CloudError(why, hint="apt install openssl") from problem
    if done.returncode != 0:
        raise CloudError(f"openssl could not create a certificate: {done.stderr.strip().splitlines()[-1:]}")
    os.chmod(f"{folder}/tls/server.key", 0o600)
    for name in ("server.key", "server.pem"):
        _chown(f"{folder}/tls/{name}", server.account)


def _chown(path: str, account: str) -> None:
    if os.geteuid() == 0:
        entry = pwd.getpwnam(account)
        os.chown(path, entry.pw_uid, entry.pw_gid)


def _path_for_server(folder: str) -> str:
    return MOUNT_POINT if os.geteuid() == 0 else folder


def _as_account(folder: str, server: DatabaseServer, argv: list[str]) -> list[str]:
    if os.geteuid() != 0:
        return argv
    return [sys.executable, "-P", "-m", "outlast.clouds.local.drop_privileges", server.account, folder, *argv]


def _environment() -> dict[str, str]:
    """Return the server's environment, without the user's: the server outlives the command that started it."""
    kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", **kept}


def _lock(folder: str) -> int:
    with open(f"{folder}/server.lock", "ab"):
        pass
    if (descriptor := try_lock(f"{folder}/server.lock")) is None:
        raise CloudError("another process is starting the database server", hint="try again in a moment")
    return descriptor


def _tail(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file.read().splitlines()[-3:]]
    except OSError:
        return ["its log is empty"]
