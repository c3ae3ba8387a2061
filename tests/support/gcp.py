"""Google Cloud on this computer: the endpoint in front of the local cloud, and variables that point our code at it.

Everything that is asked and answered, bodies included, is held against Google's own description.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.cloud import GcpCloud
from outlast.clouds.gcp.prices import PriceBook
from outlast.clouds.gcp.setup import GcpSetup
from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast_gcp_emulator.conditions import REAL
from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import PROJECT, variables, write_files
from tests.integration.emulator.discovery import Watching

pytest.importorskip("google.auth", reason="google-auth is not installed")
ZONE, OTHER_ZONE = "us-central1-a", "us-central1-b"


@pytest.fixture(scope="session")
def watching() -> Watching:
    pytest.importorskip("googleapiclient", reason="google-api-python-client is not installed")
    return Watching(ours=True)


class Rehearsal:
    """An endpoint, its local cloud, and what a user's shell would have in it."""

    def __init__(self, folder: Path, watching: Watching, local: LocalCloud | None = None) -> None:
        mode = "plain" if why_not("pidns", root=str(folder)) else "pidns"
        self.local = local or LocalCloud(str(folder / "cloud"), mode=mode)
        self.endpoint = Endpoint(str(folder / "served"), watch=watching, cloud=self.local, conditions=REAL)
        self.endpoint.start()
        write_files(self.endpoint.root, self.endpoint.url)
        self.variables = variables(self.endpoint.root, self.endpoint.url)
        self.folder = folder

    def prepare(self) -> None:
        """Set up the project, as users do once. The variables must be set."""
        for step in GcpSetup(GcpClient(PROJECT), pause_s=0.0).steps():
            step.apply()

    def cloud(self) -> GcpCloud:
        return GcpCloud(PROJECT, prices=PriceBook(str(self.folder / "cache")))

    def close(self) -> None:
        self.endpoint.stop()
        for machine in self.local.machines():
            self.local.delete(machine.name)


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[Rehearsal]:
    opened = Rehearsal(tmp_path_factory.mktemp("gcp"), watching)
    before = {name: os.environ.get(name) for name in opened.variables}
    os.environ.update(opened.variables)
    opened.prepare()
    # The endpoint is on loopback: no proxy of this computer is between.
    yield opened
    for name, value in before.items():
        os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)
    opened.close()


@pytest.fixture(autouse=True)
def _as_google_describes_it(watching: Watching) -> Iterator[None]:
    """After every test of this folder: each request of our code, and each answer that it got."""
    yield
    assert watching.taken() == []


@pytest.fixture
def gcp(rehearsal: Rehearsal) -> Iterator[GcpCloud]:
    yield rehearsal.cloud()
    rehearsal.endpoint.faults.clear()
    rehearsal.endpoint.surroundings.now = REAL
    for zone in rehearsal.local.zone_settings():
        rehearsal.local.set_zone(zone, capacity=None, quota=None, rate=None, grace_s=None, deny=None)
