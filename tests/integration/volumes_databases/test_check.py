"""The failing step of `outlast db check`, against sockets that behave like firewalls and other servers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.resources import DatabaseRequest, Engine
from outlast.databases.check import CheckStep, check, failure
from outlast.errors import DatabaseRefused, DatabaseUnreachable
from outlast.sql.session import Login
from tests.support.team import ENGINES, Team, needs_engine

_PASSWORD = "a-password-of-a-test"


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


def login(engine: Engine, port: int, host: str = "127.0.0.1") -> Login:
    return Login(engine=engine, host=host, port=port, user="genes", password=_PASSWORD, database="genes")


def last(login: Login, patience_s: float = 2.0) -> CheckStep:
    findings = list(check(login, patience_s=patience_s))
    assert all(finding.ok for finding in findings[:-1])
    assert not findings[-1].ok
    return findings[-1]


def test_a_name_without_an_address(engine: Engine) -> None:
    found = last(login(engine, 3306, host="no-such-database.invalid"))
    assert (found.step, "has no address" in found.detail) == ("dns", True)
    assert isinstance(failure([found]), DatabaseUnreachable)


def test_a_closed_port(engine: Engine) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        found = last(login(engine, closed.getsockname()[1]))
    assert (found.step, "the port is closed" in found.detail) == ("tcp", True)


def test_a_firewall_that_drops_packets(engine: Engine) -> None:
    """A full accept queue drops packets like a firewall."""
    with ExitStack() as open_ones:
        server = open_ones.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(4):
            waiting = open_ones.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        found = last(login(engine, server.getsockname()[1]), patience_s=0.5)
    assert (found.step, "a firewall drops" in found.detail) == ("tcp", True)
    assert "--me" in found.hint


@contextmanager
def stranger(argv: bytes) -> Iterator[int]:
    """A server that sends these bytes to every client, and closes the connection."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            client.sendall(argv)
            client.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(server.getsockname()[1])
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


@pytest.mark.parametrize("argv", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 64, b"N"])
def test_another_program_on_the_port(engine: Engine, argv: bytes) -> None:
    with stranger(argv) as port:
        found = last(login(engine, port))
    assert (found.step, "does not start TLS" in found.detail) == ("tls", True)
    assert isinstance(failure([found]), DatabaseUnreachable)


@pytest.mark.full
def test_a_certificate_of_another_server_and_a_user_without_permissions(team: Team, engine: Engine) -> None:
    needs_engine(engine)
    cloud: LocalCloud = team.cloud
    request = DatabaseRequest(engine=engine, database="genes", user="genes")
    one = cloud.databases.create("one", request, password=_PASSWORD)
    other = cloud.databases.create("other", request, password=_PASSWORD)
    right = msgspec.structs.replace(login(engine, one.port), ca=one.ca, server_name=one.server_name)
    assert failure(list(check(right))) is None
    found = last(msgspec.structs.replace(right, ca=other.ca))
    assert (found.step, "the certificate does not belong to this database" in found.detail) == ("tls", True)
    # A login that is right, into a database in which nothing is allowed.
    elsewhere = {"mysql": "information_schema", "postgres": "postgres"}[engine]
    found = last(msgspec.structs.replace(right, database=elsewhere))
    assert found.step in ("login", "permissions")
    assert isinstance(failure([found]), DatabaseRefused)
