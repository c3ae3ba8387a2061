"""Metadata servers on loopback attacked by another user of the computer, who knows the machine's token.

The server is stopped while hit-and-run attacks are sent, so that every sender is gone before the server looks.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support import stranger
from tests.support.stranger import ATTACKS, HIT_AND_RUN, Attack, needs_root

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.folder import Folder
from outlast.testing.cloud_conformance import MachineFactory

TOKEN = "/computeMetadata/v1/instance/attributes/outlast-self-token"
pytestmark = needs_root


class Victim:
    """A running machine whose metadata server listens on this computer's loopback."""

    def __init__(self, fleet: MachineFactory, cloud: LocalCloud, ask: Any) -> None:
        self.name = fleet.launch(script="sleep 1000").name
        fleet.wait(self.name, "running")
        self.host = cloud.metadata_host(self.name)
        self.folder = Folder(f"{cloud.root}/machines/{self.name}")
        self._ask = ask
        self.token = self.ask(TOKEN).body

    def ask(self, path: str) -> Any:
        return self._ask(self.host, path)

    def deletion(self, *, host: str = "") -> bytes:
        """A complete request that deletes the machine."""
        lines = ["POST /outlast/v1/self/delete HTTP/1.1", f"Host: {host or self.host}", "Metadata-Flavor: Google"]
        lines += [f"Authorization: Bearer {self.token}", "Content-Length: 0"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def is_alive(self) -> bool:
        return bool(self.ask(TOKEN).body == self.token)

    def refusals(self) -> list[str]:
        with open(self.folder.serial_path, encoding="utf-8") as file:
            return [line for line in file if "refused a connection to the metadata server" in line]

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        shim = int((self.folder.state() or {})["shim_pid"])
        os.kill(shim, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(shim, signal.SIGCONT)


@pytest.fixture
def victim(fleet: MachineFactory, cloud: LocalCloud, mode: str, ask: Any) -> Victim:
    if mode in ("root", "userns"):
        pytest.skip("only the machine itself reaches its metadata server")
    return Victim(fleet, cloud, ask)


@pytest.mark.parametrize("way", ATTACKS)
def test_another_user_who_knows_the_token_deletes_no_machine(victim: Victim, way: str) -> None:
    with victim.stopped() if way in HIT_AND_RUN else contextlib.nullcontext():
        received = stranger.attack(way, victim.host, victim.deletion(), times=20)
    assert received == b""
    assert victim.is_alive()
    assert victim.refusals()


@pytest.mark.parametrize("host", ["127.0.0.1", "metadata.google.internal", "169.254.169.254", "[::1]"])
def test_a_forged_host_header_admits_no_other_user(victim: Victim, host: str) -> None:
    assert stranger.attack("send_and_read", victim.host, victim.deletion(host=host), times=3) == b""
    assert victim.is_alive()


def test_connections_of_another_user_do_not_use_up_those_of_the_machine(victim: Victim) -> None:
    record = Attack("hold", victim.host, victim.deletion(), times=600, stay=True)
    record.begin()
    for _ in range(20):
        assert victim.is_alive()
    assert record.end() == b""


@pytest.mark.parametrize("way", ["send_and_reset", "send_and_read"])
def test_the_machine_is_served_during_a_flood_and_its_log_stays_short(victim: Victim, way: str) -> None:
    flood = Attack(way, victim.host, victim.deletion(), times=500, flood=True)
    flood.begin()
    for _ in range(20):
        assert victim.is_alive()
    flood.end()
    assert victim.is_alive()
    assert 1 <= len(victim.refusals()) <= 8
