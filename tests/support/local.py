"""Local clouds for tests, in every mode that works here; whatever a test leaves behind is deleted."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast.testing.cloud_conformance import MachineFactory


class Answered(NamedTuple):
    status: int
    body: str
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


@pytest.fixture(params=["root", "userns", "pidns", "plain"])
def mode(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if reason := why_not(request.param, root=str(tmp_path)):
        pytest.skip(f"mode {request.param} does not work here: {reason}")
    return str(request.param)


@pytest.fixture
def cloud(mode: str, tmp_path: Path) -> Iterator[LocalCloud]:
    yield from clean_cloud(LocalCloud(str(tmp_path / "cloud"), mode=mode))


@pytest.fixture
def plain_cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    """For what does not depend on the mode."""
    yield from clean_cloud(LocalCloud(str(tmp_path / "cloud"), mode="plain"))


def clean_cloud(cloud: LocalCloud) -> Iterator[LocalCloud]:
    try:
        yield cloud
    finally:
        for machine in cloud.machines():
            cloud.delete(machine.name)


@pytest.fixture
def fleet(cloud: LocalCloud) -> MachineFactory:
    return MachineFactory(cloud, patience_s=20.0)


@pytest.fixture
def plain_fleet(plain_cloud: LocalCloud) -> MachineFactory:
    return MachineFactory(plain_cloud, patience_s=20.0)


@pytest.fixture
def ask() -> Callable[..., Answered]:
    def call(
        host: str, path: str, *, method: str = "GET", headers: dict[str, str] | None = None, body: str | None = None
    ) -> Answered:
        connection = http.client.HTTPConnection(host, timeout=10)
        try:
            known = {"Metadata-Flavor": "Google"} if headers is None else headers
            connection.request(method, path, body.encode() if body is not None else None, known)
            answer = connection.getresponse()
            return Answered(answer.status, answer.read().decode(), dict(answer.getheaders()))
        finally:
            connection.close()

    return call
