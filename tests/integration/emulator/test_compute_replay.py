"""Requests that the real gcloud and Google's clients were seen to make, made again. The record is not part of this."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.emulator.compute import Place, place
from tests.integration.emulator.discovery import Watching
from tests.support.emulator import content

# A file of lines {"m": method, "p": path below compute/v1, "q": query, "b": body, "code": what was answered}.
RECORD = Path(
    os.environ.get("OUTLAST_GCLOUD_REQUESTS", Path(__file__).parents[4] / "shared/data/gcloud-requests.jsonl")
)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, watching: Watching) -> Iterator[Place]:
    if not RECORD.exists():
        pytest.skip(f"there is no record of requests at {RECORD}")
    with place(tmp_path_factory.mktemp("compute"), watching) as opened:
        yield opened


def _ready(here: Place, line: dict[str, Any]) -> tuple[str, Any]:
    """The request as it would be today: with our own operations, fingerprints and tokens."""
    path, body = f"/compute/v1/{line['p']}", line.get("b")
    if "/operations/operation-" in path:
        found = here.call.json("GET", re.sub(r"/operation-[^/]*(/wait)?$", "", path))["items"]
        path = re.sub(r"/operation-[^/]*", f"/{found[-1]['name']}", path)
    resource, _, verb = path.rpartition("/")
    fields = {
        "setMetadata": ("metadata", "fingerprint"),
        "setCommonInstanceMetadata": ("commonInstanceMetadata", "fingerprint"),
    }
    if verb in fields:
        body = {**body, "fingerprint": here.call.json("GET", resource)[fields[verb][0]]["fingerprint"]}
    if verb == "setLabels":
        body = {**body, "labelFingerprint": here.call.json("GET", resource)["labelFingerprint"]}
    query = "&".join(
        f"{name}={value}" for name, value in line.get("q", {}).items() if name not in ("pageToken", "filter")
    )
    return f"{path}?{query}" if query else path, body


def test_every_recorded_request_is_supported(here: Place) -> None:
    lines = [json.loads(line) for line in RECORD.read_text(encoding="utf-8").splitlines()]
    asked = [line for line in lines if not line.get("batch")]
    assert len(asked) > 50
    image = {"name": "img0", "sourceImage": "projects/debian-cloud/global/images/family/debian-12"}
    here.call.json("POST", "/compute/v1/projects/proj1/global/images", image)
    not_there: list[str] = []
    for line in asked:
        path, body = _ready(here, line)
        answer = here.call(line["m"], path, body)
        told = json.loads(content(answer))
        if answer.status == 200 and told.get("kind") == "compute#operation" and not path.endswith("/wait"):
            here.call.json("POST", told["selfLink"].removeprefix(here.endpoint.url) + "/wait")
        # What the record made wait or fail on purpose is right here; what it deleted in between may be gone here.
        if answer.status == 400:
            not_there.append(f"{line['m']} {path}: {told['error']['message']}")
        assert answer.status in (200, 404, 409), f"{line['m']} {path}: {told}"
    assert not_there == []
