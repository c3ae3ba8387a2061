"""A Compute endpoint for tests, with its cloud and a simple client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from outlast.clouds.local.cloud import LocalCloud
from outlast.clouds.local.probe import why_not
from outlast_gcp_emulator.endpoint import Endpoint
from tests.integration.emulator.discovery import Watching
from tests.support.emulator import Caller, content
from tests.support.waiting import eventually

ZONE = "zones/us-central1-a"
Doc = dict[str, Any]


class ComputeServer:
    """An endpoint in front of a cloud in a folder. Responses are checked against Google's documents."""

    def __init__(self, folder: Path, watching: Watching, mode: str) -> None:
        self.cloud = LocalCloud(str(folder / "cloud"), mode=mode)
        self._folder, self._watching = folder, watching
        self.open()

    def open(self) -> None:
        self.endpoint = Endpoint(str(self._folder / "served"), watch=self._watching, cloud=self.cloud)
        self.endpoint.start()
        self.call = Caller(self.endpoint)

    def reopen(self) -> None:
        """Stop the server and start another on the same folder."""
        self.endpoint.stop()
        self.open()

    def close(self) -> None:
        self.endpoint.stop()
        for machine in self.cloud.machines():
            self.cloud.delete(machine.name)
        assert self._watching.problems == []


@contextmanager
def compute_server(folder: Path, watching: Watching, *, mode: str = "") -> Iterator[ComputeServer]:
    """Open an endpoint in the given mode, or in one that works nearly everywhere."""
    usual = "plain" if why_not("pidns", root=str(folder)) else "pidns"
    opened = ComputeServer(folder, watching, mode or usual)
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[ComputeServer]:
    with compute_server(tmp_path_factory.mktemp("compute"), watching) as opened:
        yield opened


class Client:
    """Sends requests to one project. `Z/` at the start of a path stands for the zone."""

    def __init__(self, server: ComputeServer, project: str) -> None:
        self.server = server
        self.project = project

    def path(self, below: str) -> str:
        below = below.replace("Z/", f"{ZONE}/", 1) if below.startswith("Z/") else below
        return f"/compute/v1/projects/{self.project}/{below}".rstrip("/")

    def get(self, below: str, **query: str) -> Doc:
        text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
        found: Doc = self.server.call.json("GET", f"{self.path(below)}?{text}" if text else self.path(below))
        return found

    def names(self, below: str, **query: str) -> list[str]:
        return [item["name"] for item in self.get(below, **query).get("items", [])]

    def begin(self, word: str, body: Doc | None = None) -> Doc:
        """Start an operation, as in `POST Z/instances`, and return it."""
        method, _, below = word.partition(" ")
        operation: Doc = self.server.call.json(method, self.path(below), body)
        assert operation["kind"] == "compute#operation"
        assert operation["status"] == "RUNNING"
        return operation

    def wait(self, operation: Doc) -> Doc:
        path = operation["selfLink"].removeprefix(self.server.endpoint.url)
        done: Doc = self.server.call.json("POST", f"{path}/wait")
        assert done["status"] == "DONE"
        return done

    def do(self, word: str, body: Doc | None = None) -> Doc:
        """Start an operation and wait until it succeeds."""
        done = self.wait(self.begin(word, body))
        assert "error" not in done, done["error"]
        return done

    def fails(self, word: str, body: Doc | None = None) -> str:
        """Start an operation that must fail, and return its error code."""
        done = self.wait(self.begin(word, body))
        assert done["httpErrorStatusCode"] >= 400
        return str(done["error"]["errors"][0]["code"])

    def refused(self, word: str, body: Doc | None = None) -> tuple[int, str, str]:
        """Send a request that must be refused; return status, reason and message."""
        method, _, below = word.partition(" ")
        response = self.server.call(method, self.path(below), body)
        error = json.loads(content(response))["error"]
        return response.status, error["errors"][0]["reason"], error["message"]

    def create(self, name: str, **fields: Any) -> Doc:
        """Create a machine and wait until it runs."""
        self.do("POST Z/instances", machine(name, **fields))
        found = self.get(f"Z/instances/{name}")
        assert found["status"] == "RUNNING"
        return found

    def status(self, name: str) -> str:
        return str(self.get(f"Z/instances/{name}")["status"])

    def serial(self, name: str) -> str:
        return str(self.get(f"Z/instances/{name}/serialPort")["contents"])

    def comes(self, name: str, status: str) -> None:
        eventually(lambda: self.status(name) == status, within_s=20, what=f"{name} being {status}")

    def prints(self, name: str, text: str) -> None:
        eventually(lambda: text in self.serial(name), within_s=20, what=f"{name} printing {text}")


def machine(name: str, *, script: str = "", image: str = "", **fields: Any) -> Doc:
    """Return the body of an insert request."""
    source = image or "projects/debian-cloud/global/images/family/debian-12"
    items = [{"key": "startup-script", "value": script}] if script else []
    return {
        "name": name,
        "machineType": f"{ZONE}/machineTypes/n1-standard-1",
        "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": source}}],
        "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
        "metadata": {"items": items},
        **fields,
    }


SPOT = {"provisioningModel": "SPOT"}
