"""`outlast local serve` attacked by another user of the computer, who knows its token and address: the worst case.

The server is stopped while hit-and-run attacks are sent, so that every sender is gone before the server looks.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.emulator.serving import Serving
from tests.support import stranger
from tests.support.emulator import stored_files
from tests.support.stranger import ATTACKS, HIT_AND_RUN, Attack, needs_root
from tests.support.tiers import first_in_quick
from tests.support.waiting import eventually

HOSTS = ["127.0.0.1", "localhost", "metadata.google.internal", "169.254.169.254", "[::1]:80", "evil.example", ""]
LIST = "/storage/v1/b?project=p"


def host(serving: Serving) -> str:
    return serving.address.removeprefix("http://")


def creation(serving: Serving, *, name: str = "taken", of_host: str = "127.0.0.1", token: bool = True) -> bytes:
    """A complete request that creates a bucket."""
    body = json.dumps({"name": name}).encode()
    path = (serving.url.removeprefix(serving.address) if token else "") + LIST
    head = f"POST {path} HTTP/1.1\r\nHost: {of_host}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def buckets(serving: Serving) -> list[str]:
    return [each["name"] for each in json.loads(serving.request("GET", LIST)).get("items", [])]


@contextlib.contextmanager
def stopped(serving: Serving) -> Iterator[None]:
    """Pause the server, while the kernel keeps accepting connections for it."""
    assert serving.process is not None
    serving.process.send_signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{serving.process.pid}/task")
    # A thread that is on a CPU stops a moment after the signal.
    eventually(
        lambda: all(file.read_text().rpartition(") ")[2][0] in "Tt" for file in tasks.glob("*/stat")),
        what="all threads of the server stopped",
    )
    try:
        yield
    finally:
        serving.process.send_signal(signal.SIGCONT)


def threads(serving: Serving) -> int:
    assert serving.process is not None
    lines = Path(f"/proc/{serving.process.pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Threads:")))


@needs_root
@pytest.mark.parametrize("way", first_in_quick(ATTACKS))
def test_another_user_who_knows_the_token_creates_nothing(serving: Serving, way: str) -> None:
    with stopped(serving) if way in HIT_AND_RUN else contextlib.nullcontext():
        received = stranger.attack(way, host(serving), creation(serving), times=40)
    # The server accepts this request last, so it has handled the others.
    assert buckets(serving) == []
    assert received == b""


@needs_root
@pytest.mark.parametrize("of_host", first_in_quick(HOSTS))
def test_a_forged_host_header_admits_no_other_user(serving: Serving, of_host: str) -> None:
    request = creation(serving, of_host=of_host)
    assert stranger.attack("send_and_read", host(serving), request, times=3) == b""
    assert buckets(serving) == []


@needs_root
@pytest.mark.parametrize("way", first_in_quick(HIT_AND_RUN))
def test_another_user_launches_no_machine(serving: Serving, way: str) -> None:
    body = b'{"name": "evil", "machineType": "zones/us-central1-a/machineTypes/e2-small"}'
    path = f"{serving.url.removeprefix(serving.address)}/compute/v1/projects/p/zones/us-central1-a/instances"
    request = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with stopped(serving):
        stranger.attack(way, host(serving), request, times=20)
    for kind in ("instances", "operations"):
        assert not json.loads(serving.request("GET", f"/compute/v1/projects/p/zones/us-central1-a/{kind}"))["items"]


@needs_root
def test_connections_of_another_user_take_no_thread_and_block_no_client(serving: Serving) -> None:
    serving.request("GET", LIST)
    before = threads(serving)
    record = Attack("hold", host(serving), creation(serving), times=600, stay=True)
    record.begin()
    for number in range(20):
        serving.request("POST", LIST, b'{"name": "mine-%d"}' % number)
    assert threads(serving) <= before + 5
    assert record.end() == b""
    assert len(buckets(serving)) == 20


@needs_root
@pytest.mark.parametrize("way", first_in_quick(["send_and_reset", "send_and_read"]))
def test_the_owner_is_served_during_a_flood_and_the_log_stays_short(serving: Serving, way: str) -> None:
    flood = Attack(way, host(serving), creation(serving), times=500, flood=True)
    flood.begin()
    for number in range(20):
        serving.request("POST", LIST, b'{"name": "mine-%d"}' % number)
    flood.end()
    assert sorted(buckets(serving)) == sorted(f"mine-{number}" for number in range(20))
    code, errors = serving.end()
    logged = [line for line in errors.splitlines() if "refused a connection" in line]
    assert code == 0
    assert 1 <= len(logged) <= 8, errors
    if way == "send_and_read":
        assert f"user {stranger.UID}" in logged[0]


def test_a_request_is_not_carried_out_if_its_sender_disconnects(serving: Serving) -> None:
    serving.request("PUT", "/box-1")
    path = f"{serving.url.removeprefix(serving.address)}/box-1/object"
    name, _, port = host(serving).partition(":")
    with socket.create_connection((name, int(port)), timeout=20) as client:
        head = f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n"
        client.sendall(head.encode() + b"x" * 2_999_999)
        eventually(lambda: len(stored_files(str(serving.root))) == 1, what="the staged body")
        with stopped(serving):
            client.sendall(b"x")
            client.close()
    eventually(lambda: stored_files(str(serving.root)) == [], what="the staged body's removal")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        serving.request("GET", "/box-1/object")


TOKENS = ["", "outlast-local", "outlast-" + "0" * 32, "local-one", "local-one." + "0" * 32]


@pytest.mark.parametrize("token", first_in_quick(TOKENS))
def test_the_owner_needs_the_token_too(serving: Serving, token: str) -> None:
    """A program of this user that fetches addresses for others must not grant access."""
    known, serving.url = serving.url, serving.address
    for bearer, path in (({"Authorization": f"Bearer {token}"} if token else {}, ""), ({}, f"/{token}")):
        with pytest.raises(urllib.error.HTTPError) as refused:
            serving.request("POST", path.rstrip("/") + LIST, b'{"name": "taken"}', **bearer)
        assert refused.value.code == 401
        assert "outlast local env" in json.loads(refused.value.read())["error"]["message"]
    serving.url = known
    assert buckets(serving) == []
    assert "refused a request without a valid token" in serving.end()[1]


def test_files_with_the_token_are_private_and_the_token_survives_a_restart(serving: Serving) -> None:
    token = (serving.root / "token").read_text()
    for folder, _, names in os.walk(serving.root):
        for path in (Path(folder, name) for name in names):
            if token.encode() in path.read_bytes():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(serving.root.stat().st_mode) == 0o700
    serving.end()
    serving.start()
    assert (serving.root / "token").read_text() == token


@pytest.mark.full
def test_a_token_that_others_could_read_is_replaced(serving: Serving) -> None:
    before = (serving.root / "token").read_text()
    serving.end()
    (serving.root / "token").chmod(0o644)
    serving.start()
    assert (serving.root / "token").read_text() != before
    assert stat.S_IMODE((serving.root / "token").stat().st_mode) == 0o600
    assert buckets(serving) == []


def test_the_variables_are_not_printed_without_a_private_token(serving: Serving) -> None:
    (serving.root / "token").chmod(0o644)
    refused = serving.outlast("local", "env", "--root", str(serving.root))
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "token" in refused.stderr
    assert "Traceback" not in refused.stderr
