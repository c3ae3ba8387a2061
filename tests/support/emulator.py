"""Fixtures with endpoints whose responses are checked against Google's discovery documents, and a simple client."""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outlast_gcp_emulator.endpoint import Endpoint
from outlast_gcp_emulator.environment import write_files
from tests.integration.emulator.discovery import Watching


@pytest.fixture(scope="session")
def watching() -> Watching:
    pytest.importorskip("googleapiclient", reason="google-api-python-client is not installed")
    return Watching()


@pytest.fixture
def endpoint(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[Endpoint]:
    served = Endpoint(str(tmp_path_factory.mktemp("served")), watch=watching)
    served.start()
    yield served
    served.stop()
    assert watching.taken() == []


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[Endpoint]:
    """An endpoint for a whole module, with the files that Google's programs read."""
    endpoint = Endpoint(str(tmp_path_factory.mktemp("served")), watch=watching)
    endpoint.start()
    write_files(endpoint.root, endpoint.url)
    yield endpoint
    endpoint.stop()
    assert watching.taken() == []


class Caller:
    """A plain client with one connection, which sends requests unchanged."""

    def __init__(self, endpoint: Endpoint) -> None:
        host, _, port = endpoint.address.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self._prefix = endpoint.url.removeprefix(endpoint.address)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """Send a request; return the response with its body in `content`."""
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, self._prefix + path, body, named)
        response = self._connection.getresponse()
        response.content = response.read()  # type: ignore[attr-defined]
        return response

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        response = self(method, path, body, **headers)
        assert response.status < 300, content(response)
        return json.loads(content(response) or b"null")

    def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Send a request that must be refused; return status and reason."""
        response = self(method, path, body, **headers)
        error = json.loads(content(response))["error"]
        assert error["code"] == response.status
        assert error["message"]
        assert error["errors"][0]["message"] == error["message"]
        return response.status, error["errors"][0]["reason"]


def content(response: http.client.HTTPResponse) -> bytes:
    body = response.content  # type: ignore[attr-defined]
    assert isinstance(body, bytes)
    return body


@pytest.fixture
def call(endpoint: Endpoint) -> Caller:
    """A client of an endpoint with one bucket, `box-1`."""
    caller = Caller(endpoint)
    caller.json("POST", "/storage/v1/b?project=p", {"name": "box-1"})
    return caller


def stored_files(root: str) -> list[str]:
    """Return the files of stored bodies, of uploads and of bodies that are being received."""
    found = []
    for below in ("bodies", "staging", "uploads"):
        for folder, _, names in os.walk(Path(root) / "storage" / below):
            found += [f"{folder}/{name}" for name in names if name != "lock"]
    return found
