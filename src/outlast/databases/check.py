"""`outlast db check`: tests DNS, TCP, TLS, login, permissions and latency in turn, and reports the first failure.

The steps up to TLS use the servers' protocols directly: a driver reports a blocked port, a foreign server and a wrong
certificate with the same error.
"""

from __future__ import annotations

import secrets
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Iterator

import msgspec

from outlast.errors import DatabaseRefused, DatabaseUnreachable, OutlastError
from outlast.sql.session import Login, Session, context

STEPS = ("dns", "tcp", "tls", "login", "permissions", "latency")
_PATIENCE_S = 8.0
_ROUNDS = 7
# Flags of MySQL's handshake: the server supports TLS; we use protocol 4.1, TLS and modern authentication.
_CLIENT_SSL = 0x0800
_MYSQL_FLAGS = _CLIENT_SSL | 0x0200 | 0x8000 | 0x80000
_POSTGRES_SSL_REQUEST = struct.pack("!II", 8, 80877103)


class CheckStep(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one step."""

    step: str
    ok: bool
    detail: str
    hint: str = ""


def check(login: Login, *, patience_s: float = _PATIENCE_S) -> Iterator[CheckStep]:
    """Yield the result of every step up to the first failure."""
    step = "dns"
    try:
        addresses = _resolve(login)
        yield CheckStep(step=step, ok=True, detail=", ".join(addresses))
        step = "tcp"
        begun = time.monotonic()
        with _connect(login, patience_s) as plain:
            took_ms = (time.monotonic() - begun) * 1000.0
            yield CheckStep(step=step, ok=True, detail=f"{login.host}:{login.port} in {took_ms:.1f} ms")
            step = "tls"
            yield CheckStep(step=step, ok=True, detail=_encrypt(plain, login))
        step = "login"
        with Session(login) as session:
            version = session.query("SELECT version()")[0][0]
            yield CheckStep(step=step, ok=True, detail=f"{login.user}, {str(version).partition(' on ')[0]}")
            step = "permissions"
            yield CheckStep(step=step, ok=True, detail=_test_table(session))
            step = "latency"
            yield CheckStep(step=step, ok=True, detail=_measure(session))
    except OutlastError as problem:
        if isinstance(problem, DatabaseRefused) and step == "tls":
            step = "login"  # MySQL refuses an unknown address before TLS starts
        yield CheckStep(step=step, ok=False, detail=problem.message, hint=problem.hint)


def failure(findings: list[CheckStep]) -> OutlastError | None:
    """Return the error of the last step, which has the exit code; None if it succeeded."""
    last = findings[-1]
    if last.ok:
        return None
    kind = DatabaseUnreachable if last.step in ("dns", "tcp", "tls") else DatabaseRefused
    return kind(f"{last.step}: {last.detail}", hint=last.hint)


def _resolve(login: Login) -> list[str]:
    try:
        found = socket.getaddrinfo(login.host, login.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        why = f"`{login.host}` has no address ({problem})"
        raise DatabaseUnreachable(why, hint="check the network, and that the database still exists") from problem
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _connect(login: Login, patience_s: float) -> socket.socket:
    source = (login.source, 0) if login.source else None
    where = f"{login.host}:{login.port}"
    try:
        return socket.create_connection((login.host, login.port), timeout=patience_s, source_address=source)
    except TimeoutError as problem:
        why = f"{where} does not answer within {patience_s:g} s: a firewall drops the packets"
        raise DatabaseUnreachable(why, hint="`outlast db allow NAME --me` allows your address") from problem
    except ConnectionRefusedError as problem:
        why = f"connection to {where} refused: the port is closed"
        raise DatabaseUnreachable(why, hint="`outlast db show NAME` shows whether it runs") from problem
    except OSError as problem:
        raise DatabaseUnreachable(f"could not connect to {where}: {problem.strerror or problem}") from problem


def _encrypt(plain: socket.socket, login: Login) -> str:
    try:
        _start_tls(plain, login)
        with context(login.ca, login.server_name).wrap_socket(
            plain, server_hostname=login.server_name or login.host
        ) as secure:
            return f"{secure.version()}, " + ("its own certificate" if login.ca else "a public certificate")
    except ssl.SSLCertVerificationError as problem:
        why = f"the certificate does not belong to this database: {problem.verify_message}"
        hint = "another server listens there, or the server's certificate has changed"
        raise DatabaseUnreachable(why, hint=hint) from problem
    except TimeoutError as problem:
        why = f"the server at {login.host}:{login.port} does not answer: it hangs or is overloaded"
        raise DatabaseUnreachable(why, hint="check `outlast db show NAME`, and try again") from problem
    except (ssl.SSLError, OSError, struct.error, IndexError) as problem:
        why = f"the server at {login.host}:{login.port} does not start TLS as {login.engine} does ({problem})"
        raise DatabaseUnreachable(why, hint="it may be another program: `ss -ltnp` lists them") from problem


def _start_tls(plain: socket.socket, login: Login) -> None:
    """Run the protocol up to the start of TLS. Raises DatabaseRefused if the server refuses the address before it."""
    if login.engine == "postgres":
        plain.sendall(_POSTGRES_SSL_REQUEST)
        if (answer := plain.recv(1)) != b"S":
            raise OSError("TLS is disabled" if answer == b"N" else f"unexpected answer {answer!r}")
        return
    length, sequence = struct.unpack("<I", _read(plain, 3) + b"\0")[0], _read(plain, 1)[0]
    body = _read(plain, length)
    if body[0] == 0xFF:
        message = body[3:].decode("utf-8", "replace")
        raise DatabaseRefused(f"address refused: {message}", hint="`outlast db allow NAME --me` allows your address")
    # Version and terminator, connection id, eight bytes of salt and a filler; then the capabilities.
    after = body.index(b"\0") + 1 + 4 + 8 + 1
    if not struct.unpack_from("<H", body, after)[0] & _CLIENT_SSL:
        raise OSError("TLS is disabled")
    request = struct.pack("<IIB23x", _MYSQL_FLAGS, 1 << 24, 45)
    plain.sendall(struct.pack("<I", len(request))[:3] + bytes([sequence + 1]) + request)


def _read(plain: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        if not (piece := plain.recv(count - len(taken))):
            raise OSError("connection closed")
        taken += piece
    return taken


def _test_table(session: Session) -> str:
    """Create, fill, read and drop a table, as runs do."""
    table = f"outlast_check_{secrets.token_hex(4)}"
    session.query(f"CREATE TABLE {table} (value INTEGER)")
    try:
        session.query(f"INSERT INTO {table} VALUES (42)")
        if session.query(f"SELECT value FROM {table}")[0][0] != 42:
            raise DatabaseRefused("a written value was not read back", hint="see the server's log")
    finally:
        session.query(f"DROP TABLE {table}")
    return "create, insert, select, drop"


def _measure(session: Session) -> str:
    took_ms = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        session.query("SELECT 1")
        took_ms.append((time.perf_counter() - begun) * 1000.0)
    return f"{statistics.median(took_ms):.2f} ms per query (median), slowest of {_ROUNDS}: {max(took_ms):.2f} ms"
