"""`outlast db check`: DNS, TCP, TLS, login, permissions, latency, one after the other. Says which fails, and why.

The steps up to TLS speak the servers' protocols themselves: what a driver reports of a port that is blocked, a server
that is none and a certificate that is somebody else's is one and the same error.
"""

from __future__ import annotations

import secrets as dice
import socket
import ssl
import statistics
import struct
import time
from collections.abc import Iterator

import msgspec

from outlast.clouds.sql import Login, Session, context
from outlast.errors import DatabaseRefused, DatabaseUnreachable, OutlastError

STEPS = ("dns", "tcp", "tls", "login", "permissions", "latency")
_PATIENCE_S = 8.0
_ROUNDS = 7
# Of MySQL's handshake: this server encrypts; we speak 4.1, want TLS, and log in the modern way.
_CLIENT_SSL = 0x0800
_ASK_MYSQL = _CLIENT_SSL | 0x0200 | 0x8000 | 0x80000
_ASK_POSTGRES = struct.pack("!II", 8, 80877103)


class CheckStep(msgspec.Struct, frozen=True, kw_only=True):
    """How one step went."""

    step: str
    ok: bool
    said: str
    hint: str = ""


def check(login: Login, *, patience_s: float = _PATIENCE_S) -> Iterator[CheckStep]:
    """Every step until one fails, each told as soon as it is known."""
    step = "dns"
    try:
        addresses = _resolve(login)
        yield CheckStep(step=step, ok=True, said=", ".join(addresses))
        step = "tcp"
        begun = time.monotonic()
        with _connect(login, patience_s) as plain:
            took_ms = (time.monotonic() - begun) * 1000.0
            yield CheckStep(step=step, ok=True, said=f"{login.host}:{login.port} in {took_ms:.1f} ms")
            step = "tls"
            yield CheckStep(step=step, ok=True, said=_encrypt(plain, login))
        step = "login"
        with Session(login) as session:
            version = session.ask("SELECT version()")[0][0]
            yield CheckStep(step=step, ok=True, said=f"{login.user}, {str(version).partition(' on ')[0]}")
            step = "permissions"
            yield CheckStep(step=step, ok=True, said=_try_out(session))
            step = "latency"
            yield CheckStep(step=step, ok=True, said=_measure(session))
    except OutlastError as problem:
        if isinstance(problem, DatabaseRefused) and step == "tls":
            step = "login"  # MySQL tells a stranger so before it encrypts
        yield CheckStep(step=step, ok=False, said=problem.message, hint=problem.hint)


def failure(findings: list[CheckStep]) -> OutlastError | None:
    """What the last of them means for an exit code."""
    last = findings[-1]
    if last.ok:
        return None
    kind = DatabaseUnreachable if last.step in ("dns", "tcp", "tls") else DatabaseRefused
    return kind(f"{last.step}: {last.said}", hint=last.hint)


def _resolve(login: Login) -> list[str]:
    try:
        found = socket.getaddrinfo(login.host, login.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as problem:
        why = f"`{login.host}` has no address ({problem})"
        raise DatabaseUnreachable(why, hint="is the network up? Was the database deleted elsewhere?") from problem
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def _connect(login: Login, patience_s: float) -> socket.socket:
    source = (login.source, 0) if login.source else None
    where = f"{login.host}:{login.port}"
    try:
        return socket.create_connection((login.host, login.port), timeout=patience_s, source_address=source)
    except TimeoutError as problem:
        why = f"{where} does not answer within {patience_s:g} s: a firewall drops what you send"
        raise DatabaseUnreachable(why, hint="`outlast db allow NAME --me` lets your address in") from problem
    except ConnectionRefusedError as problem:
        why = f"nobody listens at {where}: the port is closed"
        raise DatabaseUnreachable(why, hint="`outlast db show NAME` says whether it runs") from problem
    except OSError as problem:
        raise DatabaseUnreachable(f"{where} cannot be reached: {problem.strerror or problem}") from problem


def _encrypt(plain: socket.socket, login: Login) -> str:
    try:
        _greet(plain, login)
        with context(login.ca, login.server_name).wrap_socket(
            plain, server_hostname=login.server_name or login.host
        ) as secure:
            return f"{secure.version()}, " + ("its own certificate" if login.ca else "a public certificate")
    except ssl.SSLCertVerificationError as problem:
        why = f"the certificate is not this database's: {problem.verify_message}"
        hint = "something else listens there, or the server's certificate was changed since"
        raise DatabaseUnreachable(why, hint=hint) from problem
    except TimeoutError as problem:
        why = f"what listens at {login.host}:{login.port} says nothing: it hangs, or has too much to do"
        raise DatabaseUnreachable(why, hint="`outlast db show NAME`, and try again in a moment") from problem
    except (ssl.SSLError, OSError, struct.error, IndexError) as problem:
        why = f"what listens at {login.host}:{login.port} does not encrypt as {login.engine} does ({problem})"
        raise DatabaseUnreachable(why, hint="is it another program? `ss -ltnp` says who listens") from problem


def _greet(plain: socket.socket, login: Login) -> None:
    """Up to the point where both sides begin with TLS. Raises DatabaseRefused when the server says no before that."""
    if login.engine == "postgres":
        plain.sendall(_ASK_POSTGRES)
        if (answer := plain.recv(1)) != b"S":
            raise OSError("it does not encrypt" if answer == b"N" else f"it answers {answer!r}")
        return
    length, sequence = struct.unpack("<I", _take(plain, 3) + b"\0")[0], _take(plain, 1)[0]
    body = _take(plain, length)
    if body[0] == 0xFF:
        said = body[3:].decode("utf-8", "replace")
        raise DatabaseRefused(f"it refuses this address: {said}", hint="`outlast db allow NAME --me` lets you in")
    # The version, its end, the number of the connection, eight bytes and a filler; then what the server can do.
    after = body.index(b"\0") + 1 + 4 + 8 + 1
    if not struct.unpack_from("<H", body, after)[0] & _CLIENT_SSL:
        raise OSError("it does not encrypt")
    asked = struct.pack("<IIB23x", _ASK_MYSQL, 1 << 24, 45)
    plain.sendall(struct.pack("<I", len(asked))[:3] + bytes([sequence + 1]) + asked)


def _take(plain: socket.socket, count: int) -> bytes:
    taken = b""
    while len(taken) < count:
        if not (piece := plain.recv(count - len(taken))):
            raise OSError("it hangs up")
        taken += piece
    return taken


def _try_out(session: Session) -> str:
    """What a run does: a table made, filled, read, dropped."""
    table = f"outlast_check_{dice.token_hex(4)}"
    session.ask(f"CREATE TABLE {table} (value INTEGER)")
    try:
        session.ask(f"INSERT INTO {table} VALUES (42)")
        if session.ask(f"SELECT value FROM {table}")[0][0] != 42:
            raise DatabaseRefused("what was written does not come back", hint="see the server's log")
    finally:
        session.ask(f"DROP TABLE {table}")
    return "create, insert, select, drop"


def _measure(session: Session) -> str:
    took_ms = []
    for _ in range(_ROUNDS):
        begun = time.perf_counter()
        session.ask("SELECT 1")
        took_ms.append((time.perf_counter() - begun) * 1000.0)
    return f"{statistics.median(took_ms):.2f} ms a question, the slowest of {_ROUNDS} {max(took_ms):.2f} ms"
