"""An endpoint of its own for each test that asks; every answer is held against Google's description."""

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
    """One for a whole file of tests, that Google's own programs find by the files and variables which they read."""
    endpoint = Endpoint(str(tmp_path_factory.mktemp("served")), watch=watching)
    endpoint.start()
    write_files(endpoint.root, endpoint.url)
    yield endpoint
    endpoint.stop()
    assert watching.taken() == []


class Caller:
    """A client without opinions: one connection, what is sent is what is meant."""

    def __init__(self, endpoint: Endpoint) -> None:
        host, _, port = endpoint.address.removeprefix("http://").partition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=30)
        self._prefix = endpoint.url.removeprefix(endpoint.address)

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        """The answer, with its `body` read."""
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self._connection.request(method, self._prefix + path, body, named)
        answer = self._connection.getresponse()
        answer.content = answer.read()  # type: ignore[attr-defined]
        return answer

    def json(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        answer = self(method, path, body, **headers)
        assert answer.status < 300, content(answer)
        return json.loads(content(answer) or b"null")

    def refused(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        """Status and reason of what must not work."""
        answer = self(method, path, body, **headers)
        error = json.loads(content(answer))["error"]
        assert error["code"] == answer.status
        assert error["message"]
        assert error["errors"][0]["message"] == error["message"]
        return answer.status, error["errors"][0]["reason"]


def content(answer: http.client.HTTPResponse) -> bytes:
    body = answer.content  # type: ignore[attr-defined]
    assert isinstance(body, bytes)
    return body


@pytest.fixture
def call(endpoint: Endpoint) -> Caller:
    """Calls to an endpoint with one bucket in it, `box-1`."""
    caller = Caller(endpoint)
    caller.json("POST", "/storage/v1/b?project=p", {"name": "box-1"})
    return caller


def stored_files(root: str) -> list[str]:
    """What is in the folders for bodies, uploads and bodies under way."""
    found = []
    for below in ("bodies", "staging", "uploads"):
        for folder, _, names in os.walk(Path(root) / "storage" / below):
            found += [f"{folder}/{name}" for name in names if name != "lock"]
    return found
