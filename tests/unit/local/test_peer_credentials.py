"""Owners of loopback connections, by netlink and by /proc; and the log of refusals."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import stranger
from tests.support.stranger import HIT_AND_RUN, needs_root

from outlast.clouds.local import peer_credentials
from outlast.clouds.local.peer_credentials import PeerCheck, RefusalLog, is_page

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the owner of a connection")


@pytest.fixture(params=["_Netlink", "_ProcFiles"])
def check(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PeerCheck:
    """A check that uses one way to query the kernel."""
    way: Any = getattr(peer_credentials, request.param)
    for other in ("_Netlink", "_ProcFiles"):
        monkeypatch.setattr(peer_credentials, other, way)
    return PeerCheck()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@linux_only
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6], ids=["ipv4", "ipv6"])
def test_a_connection_of_this_user_is_admitted_until_it_is_closed(
    check: PeerCheck, listener: socket.socket, family: socket.AddressFamily
) -> None:
    port = listener.getsockname()[1]
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.connect(("127.0.0.1" if family == socket.AF_INET else "::ffff:127.0.0.1", port))
        served, _ = listener.accept()
        assert check.refusal(served) == ""
        client.shutdown(socket.SHUT_WR)
        assert check.refusal(served) == "", "a client that has sent its request still waits for the answer"
    with served:
        assert "closed" in check.refusal(served), "no process holds the other end any more"


@linux_only
def test_a_connection_by_ipv6_has_an_owner_too(check: PeerCheck) -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this computer has no IPv6")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        served, _ = listener.accept()
        with served:
            assert check.refusal(served) == ""
            client.close()
            assert check.refusal(served)


@linux_only
def test_a_connection_by_anything_but_tcp_is_refused(check: PeerCheck) -> None:
    here, there = socket.socketpair()
    with here, there:
        assert check.refusal(here)


@needs_root
@pytest.mark.parametrize("way", HIT_AND_RUN)
def test_another_user_who_sends_a_request_and_leaves_is_refused(
    check: PeerCheck, listener: socket.socket, way: str
) -> None:
    stranger.attack(way, f"127.0.0.1:{listener.getsockname()[1]}", b"POST / HTTP/1.1\r\n\r\n")
    with listener.accept()[0] as served:
        assert "closed" in check.refusal(served)


@linux_only
def test_every_connection_is_refused_if_the_kernel_does_not_answer(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("not here")

    monkeypatch.setattr(peer_credentials, "_Netlink", refuse)
    monkeypatch.setattr(peer_credentials, "_ProcFiles", refuse)
    unreachable = PeerCheck()
    with socket.create_connection(listener.getsockname()), listener.accept()[0] as served:
        assert not unreachable.works
        assert "does not report" in unreachable.refusal(served)


def test_a_flood_of_refusals_is_logged_in_a_few_lines() -> None:
    lines: list[str] = []
    now = 0.0
    log = RefusalLog(lines.append, clock=lambda: now)
    for _ in range(100_000):
        log.add("peer", "refused")
    assert len(lines) == 6
    assert lines[0] == "refused"
    assert "100,000 such refusals" in lines[-1]
    log.add("token", "another kind")
    assert lines[-1] == "another kind"
    now = 3600.0
    for _ in range(1000):
        log.add("peer", "refused")
    assert len(lines) == 8, "one an hour while it goes on"


@pytest.mark.parametrize("host", ["[::1]evil.example", "[::1", "[evil.example]", "[::1]:80.evil.example"])
def test_a_host_name_that_resembles_an_address_belongs_to_a_page(host: str) -> None:
    assert is_page({"host": host})
