"""Password attempts at the dashboard: how many count, for which source, and which of them are logged."""

from __future__ import annotations

import asyncio
import os
from collections.abc import MutableMapping
from typing import Any

import pytest

from outlast.ui.admission import Attempts, Refusals, RequestSource, source_of
from outlast.ui.auth import Guard

HERE = ("198.51.100.1", 8640)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def _inside(_scope: object, _receive: object, _send: object) -> None:
    raise AssertionError("a request without the cookie went through")


async def guess(guard: Guard, password: str, client: str, bodies: asyncio.Event) -> int:
    """Return the status of one attempt, whose body arrives after the heads of all."""
    statuses: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        await bodies.wait()
        return {"type": "http.request", "body": f"password={password}".encode()}

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(b"host", b"localhost:8640"), (b"origin", b"http://localhost:8640")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}
    await guard({**scope, "client": (client, 50000), "server": HERE}, receive, send)
    return statuses[0]


def guessed(guard: Guard, passwords: list[str], clients: list[str]) -> list[int]:
    """Return the statuses of simultaneous attempts."""

    async def together() -> list[int]:
        bodies = asyncio.Event()
        pairs = zip(passwords, clients, strict=True)
        begun = [asyncio.ensure_future(guess(guard, password, client, bodies)) for password, client in pairs]
        asyncio.get_running_loop().call_soon(bodies.set)
        return await asyncio.gather(*begun)

    return asyncio.run(together())


def guarded(password: str, **parts: Any) -> Guard:
    return Guard(_inside, token="", password=password, port=8640, **parts)


@pytest.mark.full
def test_ten_of_ten_thousand_simultaneous_guesses_are_admitted() -> None:
    guard = guarded("7342")
    statuses = guessed(guard, [f"{number:04d}" for number in range(10_000)], ["203.0.113.5"] * 10_000)
    assert 200 not in statuses
    assert (statuses.count(401), statuses.count(429)) == (10, 9_990)


def test_an_attacker_locks_no_other_source_out() -> None:
    guard = guarded("correct horse")
    guessed(guard, ["wrong"] * 50, ["203.0.113.5"] * 50)
    assert guessed(guard, ["correct horse"] * 2, ["203.0.113.5", "203.0.113.6"]) == [429, 200]


def test_many_strangers_share_a_limit_that_excludes_known_sources() -> None:
    clock = Clock()
    guard = guarded("correct horse", attempts=Attempts(clock))
    assert guessed(guard, ["correct horse"], ["192.0.2.77"]) == [200]
    strangers = [f"2001:db8:{number:x}::1" for number in range(5_000)]
    statuses = guessed(guard, ["wrong"] * 5_000, strangers)
    assert (statuses.count(401), statuses.count(429)) == (100, 4_900)
    assert guessed(guard, ["correct horse"], ["2001:db8:ffff::1"]) == [429]
    assert guessed(guard, ["correct horse"], ["192.0.2.77"]) == [200]
    clock.now += 61
    assert guessed(guard, ["correct horse"], ["2001:db8:ffff::1"]) == [200]


def test_an_attempt_counts_for_a_minute_and_a_login_does_not_count() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    source = RequestSource("203.0.113.5")
    for _ in range(50):
        assert attempts.begin(source)
        attempts.succeed(source)
    assert [attempts.begin(source) for _ in range(11)] == [True] * 10 + [False]
    clock.now += 59
    assert not attempts.begin(source)
    clock.now += 2
    assert attempts.begin(source)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("203.0.113.5", "203.0.113.6", False),
        ("203.0.113.5", "::ffff:203.0.113.5", True),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
    ],
)
def test_a_source_is_an_address_or_the_network_of_one_customer(first: str, second: str, same: bool) -> None:
    assert (source_of((first, 1), HERE) == source_of((second, 2), HERE)) is same


def test_only_the_last_forwarded_address_of_a_local_proxy_counts() -> None:
    far = source_of(("203.0.113.5", 1), HERE)
    assert source_of(("203.0.113.5", 1), HERE, forwarded="192.0.2.1") == far
    near = ("127.0.0.1", 1)
    assert "192.0.2.1" in source_of(near, ("127.0.0.1", 8640), forwarded="198.51.100.9, 192.0.2.1").name
    for forged in ("127.0.0.1", "::1", "nonsense\x1b[31m", f"user {os.geteuid()} of this computer"):
        found = source_of(near, ("127.0.0.1", 8640), forwarded=forged)
        assert not found.own
        assert found.name.isprintable()


def test_refusals_are_logged_with_a_limit_and_the_rest_is_counted() -> None:
    clock = Clock()
    lines: list[str] = []
    refusals = Refusals(lines.append, clock)
    for number in range(10_000):
        refusals.report(RequestSource(f"203.0.113.{number % 250}"), "a wrong password")
    assert len(lines) == 10
    assert lines[0] == "refused a request from 203.0.113.0: a wrong password"
    clock.now += 61
    refusals.report(RequestSource("203.0.113.1"), "a wrong password")
    assert lines[10:] == ["refused 9990 more requests", "refused a request from 203.0.113.1: a wrong password"]
