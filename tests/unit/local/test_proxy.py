"""The proxy of machines of mode `userns`: what it forwards, and what it refuses with which reason."""

from __future__ import annotations

import socket

import pytest

from outlast.clouds.local import proxy


def answered(request: bytes) -> str:
    """Return the first line of the answer to a request that is refused."""
    client, server = socket.socketpair()
    with client, server:
        client.sendall(request)
        client.shutdown(socket.SHUT_WR)
        assert proxy.answer(server) is None
        return client.recv(4096).decode("latin-1").split("\r\n")[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "169.254.169.254", "127.9.9.9"])
def test_servers_of_this_computer_are_not_reachable(host: str) -> None:
    line = answered(f"CONNECT {host}:22 HTTP/1.1\r\n\r\n".encode())
    assert line.startswith("HTTP/1.1 502 this computer cannot reach the internet for a machine of mode userns")


def test_addresses_of_this_computer_are_its_own_and_others_are_not() -> None:
    assert proxy.is_own("127.0.0.1")
    assert proxy.is_own("::ffff:127.0.0.1")
    assert proxy.is_own("fe80::1%eth0")
    # Reserved for documentation.
    assert not proxy.is_own("203.0.113.7")
    assert not proxy.is_own("2001:db8::1")


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (b"CONNECT missing.invalid:443 HTTP/1.1\r\n\r\n", "502 this computer cannot reach the internet"),
        (
            b"GET http://example.org/ HTTP/1.1\r\n\r\n",
            "405 expected CONNECT, got `GET`: this proxy forwards https only",
        ),
        (b"CONNECT example.org HTTP/1.1\r\n\r\n", "400 expected CONNECT HOST:PORT"),
        (b"CONNECT example.org:99999999 HTTP/1.1\r\n\r\n", "502"),
        (b"CONNECT", "502 this computer cannot reach the internet for a machine of mode userns: an incomplete request"),
        (b"\xff\xfe\r\n\r\n", "405"),
        (b"x" * 100_000, "502"),
    ],
)
def test_a_request_that_cannot_be_forwarded_is_refused_with_its_reason(request_: bytes, why: str) -> None:
    assert answered(request_).startswith(f"HTTP/1.1 {why}")
