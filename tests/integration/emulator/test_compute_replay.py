"""Replays recorded requests of the real gcloud and of Google's clients. The recording is not in the repository."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.emulator.compute import ComputeServer, compute_server
from tests.integration.emulator.discovery import Watching
from tests.support.emulator import content

# A file of lines {"m": method, "p": path below compute/v1, "q": query, "b": body, "code": status}.
RECORD = Path(
    os.environ.get("OUTLAST_GCLOUD_REQUESTS", Path(__file__).parents[4] / "shared/data/gcloud-requests.jsonl")
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[ComputeServer]:
    if not RECORD.exists():
        pytest.skip(f"no recorded requests at {RECORD}")
    with compute_server(tmp_path_factory.mktemp("compute"), watching) as opened:
        yield opened


def _ready(server: ComputeServer, line: dict[str, Any]) -> tuple[str, Any]:
    """Return a recorded request with current operations, fingerprints and tokens."""
    path, body = f"/compute/v1/{line['p']}", line.get("b")
    if "/operations/operation-" in path:
        found = server.call.json("GET", re.sub(r"/operation-[^/]*(/wait)?$", "", path))["items"]
        path = re.sub(r"/operation-[^/]*", f"/{found[-1]['name']}", path)
    resource, _, verb = path.rpartition("/")
    fields = {
        "setMetadata": ("metadata", "fingerprint"),
        "setCommonInstanceMetadata": ("commonInstanceMetadata", "fingerprint"),
    }
    if verb in fields:
        body = {**body, "fingerprint": server.call.json("GET", resource)[fields[verb][0]]["fingerprint"]}
    if verb == "setLabels":
        body = {**body, "labelFingerprint": server.call.json("GET", resource)["labelFingerprint"]}
    query = "&".join(
        f"{name}={value}" for name, value in line.get("q", {}).items() if name not in ("pageToken", "filter")
    )
    return f"{path}?{query}" if query else path, body


def test_every_recorded_request_is_supported(server: ComputeServer) -> None:
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    recorded = [line for line in lines if not line.get("batch")]
    assert len(recorded) > 50
    image = {"name": "img0", "sourceImage": "projects/debian-cloud/global/images/family/debian-12"}
    server.call.json("POST", "/compute/v1/projects/proj1/global/images", image)
    refused: list[str] = []
    for line in recorded:
        path, body = _ready(server, line)
        response = server.call(line["m"], path, body)
        parsed = json.loads(content(response))
        if response.status == 200 and parsed.get("kind") == "compute#operation" and not path.endswith("/wait"):
            server.call.json("POST", parsed["selfLink"].removeprefix(server.endpoint.url) + "/wait")
        # 404 and 409 are valid: the recording contains expected failures, and deleted resources may be gone.
        if response.status == 400:
            refused.append(f"{line['m']} {path}: {parsed['error']['message']}")
        assert response.status in (200, 404, 409), f"{line['m']} {path}: {parsed}"
    assert refused == []
