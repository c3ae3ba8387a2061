"""Replays recorded requests of the real gcloud, so that a computer without gcloud tests them, too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.integration.emulator.compute import ComputeServer
from tests.support.emulator import content

# A file of lines {"m": method, "p": path below compute/v1, "q": query, "b": body, "code": status}.
RECORD = Path(__file__).parent / "data" / "gcloud-requests.jsonl"


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
    recorded = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    assert len(recorded) > 50
    for line in recorded:
        path, body = _ready(server, line)
        response = server.call(line["m"], path, body)
        assert response.status == line["code"], f"{line['m']} {path}: {content(response).decode()}"
        found = json.loads(content(response))
        if found.get("kind") == "compute#operation" and not path.endswith("/wait"):
            done = server.call.json("POST", found["selfLink"].removeprefix(server.endpoint.url) + "/wait")
            assert "error" not in done, f"{line['m']} {path}: {done['error']}"
