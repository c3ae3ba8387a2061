"""Attacks on the dashboard by another account of this computer: forged requests, guesses, floods of connections."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dashboard.test_guard import ADDRESSES, DashboardClient
from tests.support.dashboard import Served
from tests.support.home import Home
from tests.support.waiting import eventually

OTHER_USER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_other_user(served: Served, path: str, *argv: str) -> tuple[int, str]:
    """Return status and body of a request by another user of this computer."""
    address = f"http://127.0.0.1:{DashboardClient(served.link).parts.port}{path}"
    command = ["curl", "-sgi", "--max-time", "30", "--path-as-is", *argv, address]
    answer = subprocess.run(
        command, user=OTHER_USER, group=OTHER_USER, extra_groups=[], cwd="/", capture_output=True, text=True, check=True
    )
    return int(answer.stdout.split()[1]), answer.stdout


@as_root
@pytest.mark.parametrize("path", ADDRESSES)
def test_another_account_gets_nothing_without_the_token(served: Served, path: str) -> None:
    port = DashboardClient(served.link).parts.port
    forged: list[list[str]] = [
        [],
        ["-H", f"Cookie: outlast-{port}=" + "x" * 43],
        ["-H", f"Cookie: outlast-{port}=; outlast-1=x"],
        ["-H", "X-Forwarded-For: 127.0.0.1", "-H", "X-Forwarded-Host: localhost"],
        ["-H", "Authorization: Bearer x"],
        ["-X", "POST", "-d", "password=", "-H", f"Origin: http://127.0.0.1:{port}"],
        ["-X", "OPTIONS", "-H", f"Origin: http://127.0.0.1:{port}"],
    ]
    for argv in forged:
        status, answer = as_other_user(served, path, *argv)
        assert status == 401, argv
        assert "set-cookie" not in answer.lower()
        assert "demo-1" not in answer


@as_root
def test_another_account_forges_neither_host_nor_origin(served: Served) -> None:
    socket_of_page = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket", "-H", "Sec-WebSocket-Version: 13"]
    socket_of_page += ["-H", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    path = "/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    port = DashboardClient(served.link).parts.port
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port}", ""):
        argv = ["-H", f"Origin: {origin}"] if origin else []
        assert as_other_user(served, path, *socket_of_page, *argv)[0] == 403
    for host in ("evil.example", "localhost.evil.example", "user@localhost", ""):
        assert as_other_user(served, "/", "-H", f"Host: {host}" if host else "Host;")[0] in (400, 421)


@pytest.mark.full
@as_root
def test_password_guesses_by_another_account_do_not_lock_the_owner_out(
    empty: Home, serve: Callable[..., Served], tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    served = serve(empty, "--no-open", "--password-file", str(secret))
    client = DashboardClient(served.link)
    origin = f"http://127.0.0.1:{client.parts.port}"

    def guesses(*argv: str) -> set[int]:
        form = ["-d", "password=wrong", "-H", f"Origin: {origin}", *argv]
        return {as_other_user(served, "/", *form)[0] for _ in range(12)}

    assert guesses() == {401, 429}
    assert guesses("-H", "X-Forwarded-For: 127.0.0.1") == {401, 429}
    status, headers, _ = client.request("/", "POST", "password=correct%20horse", Origin=origin)
    assert status == 200
    assert "set-cookie" in headers
    log = served.end()
    assert f"refused a request from user {OTHER_USER} of this computer: a wrong password" in log
    assert f"user {OTHER_USER} of this computer: more than 10 password attempts in a minute" in log
    assert log.count("refused a request") <= 10


@contextmanager
def few_files(count: int) -> Iterator[None]:
    """Limit the open files of processes that are started meanwhile, as on many computers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def flood(port: int, count: int) -> Iterator[None]:
    """Hold connections of another user that send half a request, and reopen closed ones."""
    ready, started = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            _hold(port, count, started)
        finally:
            os._exit(0)
    os.close(started)
    try:
        assert os.read(ready, 1) == b"x", "the flood did not start"
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(ready)


def _hold(port: int, count: int, started: int) -> None:
    held: list[socket.socket] = []
    for number in range(4 * count):
        connection = socket.socket()
        connection.settimeout(5.0)
        held.append(connection)
        if number >= count:
            held.pop(0).close()
        try:
            connection.connect(("127.0.0.1", port))
            connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        except TimeoutError:
            break  # the server accepts no more connections
        except OSError:
            continue
    os.write(started, b"x")
    signal.pause()


@pytest.mark.full
@as_root
def test_a_flood_of_connections_of_another_account_leaves_room_for_the_owner(
    empty: Home, serve: Callable[..., Served]
) -> None:
    with few_files(200):
        served = serve(empty, "--no-open")
    client = DashboardClient(served.link)
    with flood(client.parts.port or 0, 400):
        client.follow_link()
        assert client.request("/")[0] == 200
    eventually(lambda: client.request("/")[0] == 200, within_s=60, what="the dashboard's answer after the flood")
    log = served.end()
    assert f"user {OTHER_USER} of this computer: too many open connections" in log
    assert log.count("refused") <= 12
