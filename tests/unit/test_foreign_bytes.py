"""Arbitrary bytes from stores, files and networks: a typed error, never a traceback or a wrong value."""

from __future__ import annotations

import contextlib
import http.client
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.waiting import eventually

from outlast.cli.shared.project import load_project
from outlast.clouds.cloud import Boot, Requirements
from outlast.clouds.local.cloud import LocalCloud
from outlast.code.bundle import code_key, unpack
from outlast.code.record import CodeRecord
from outlast.errors import OutlastError, SpecError
from outlast.runs import events as ev
from outlast.runs.checkpoints import restore
from outlast.runs.manifest import Manifest, manifest_key, read_manifest
from outlast.runs.state import Checkpoint
from outlast.runs.story import Story, event_key
from outlast.spec.parse import parse
from outlast.store.bucket import open_bucket
from outlast.store.codec import sealed
from outlast.store.lease import Lease
from outlast.store.parts import Part, StoredFile
from outlast.workspace import Heartbeat, RunRequest, Workspace

MANIFEST = msgspec.json.encode(
    Manifest(
        run="r",
        checkpoint="c",
        attempt=1,
        files=(StoredFile(path="a", parts=(Part("runs/r/parts/1/k", "0" * 64, 1),)), StoredFile(path="l", link="a")),
    )
)
VALID: list[bytes] = [
    ev.encode(ev.Submitted(who="me")),
    ev.encode(ev.Saved(attempt=1, checkpoint="c")),
    msgspec.json.encode(Heartbeat(attempt=1)),
    MANIFEST,
    msgspec.json.encode(RunRequest(run="r", spec=parse({"command": "x"}), code=CodeRecord())),
    b'{"id": "abc", "format": 1}',
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Something valid with some bytes cut, doubled or changed; or just bytes."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    body = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        if not body:
            break
        at = draw(st.integers(0, len(body) - 1))
        kind = draw(st.sampled_from(["cut", "change", "double", "truncate"]))
        if kind == "cut":
            del body[at]
        elif kind == "change":
            body[at] = draw(st.integers(0, 255))
        elif kind == "double":
            body[at:at] = body[at : at + 7]
        else:
            del body[at:]
    return bytes(body)


def readers(body: bytes) -> dict[str, Callable[[], object]]:
    bucket = open_bucket("memory://")
    for key in (event_key("r", 1), "heartbeats/r", "runs/r/spec.json", "workspace.json"):
        bucket.put(key, body)
    # With a checksum that holds: the decoder must stand what a writer with bad intent seals.
    bucket.put(manifest_key("r", "c"), sealed(body))
    bucket.put("leases/s/00000001", body)
    bucket.put("leases/s/beat-00000001", body)
    workspace = Workspace(bucket)
    return {
        "story": Story(bucket, "r").refresh,
        "heartbeat": lambda: workspace.heartbeat("r"),
        "manifest": lambda: read_manifest(bucket, "r", "c"),
        "request": lambda: workspace.request("r"),
        "identity": lambda: workspace.id,
        "lease": Lease(bucket, "s", who="me:1", ttl_s=5).hold,
        "holder": Lease(bucket, "s", who="me:1", ttl_s=5).holder,
    }


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_objects_of_the_workspace(body: bytes) -> None:
    for read in readers(body).values():
        with contextlib.suppress(OutlastError):
            read()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=mutated())
def test_an_inconsistent_manifest_restores_nothing_and_is_harmless(body: bytes, tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    bucket.put(manifest_key("r", "c"), sealed(body))
    folder = tmp_path / "checkpoints"
    folder.mkdir(exist_ok=True)
    (folder / "kept").write_text("mine")
    saved = Checkpoint(id="c", attempt=1, step=None, at=0.0, bytes=0)
    manifest, problems = restore(bucket, "r", [saved], str(folder))
    if manifest is None:
        assert problems
        assert (folder / "kept").read_text() == "mine"
    (folder / "kept").write_text("mine")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=400))
def test_an_invalid_bundle_is_refused_and_leaves_nothing(body: bytes, tmp_path: Path) -> None:
    bucket = open_bucket("memory://")
    bucket.put(code_key("0" * 64), body)
    with pytest.raises(OutlastError):
        unpack(bucket, "0" * 64, str(tmp_path / "code"))
    assert not (tmp_path / "code").exists()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_an_outlast_toml_of_any_bytes(body: bytes, tmp_path: Path) -> None:
    path = tmp_path / "outlast.toml"
    path.write_bytes(body)
    with contextlib.suppress(SpecError):
        load_project(str(path))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[str]:
    # In the modes with a network of their own only the machine itself could ask.
    cloud = LocalCloud(str(tmp_path / "cloud"), mode="plain")
    offer = cloud.offers(Requirements())[0]
    cloud.launch(offer, "fuzzed", boot=Boot(script="sleep 600"), labels={})
    eventually(lambda: cloud.metadata_host("fuzzed"), within_s=10, what="the metadata server")
    yield cloud.metadata_host("fuzzed")
    cloud.delete("fuzzed")


PIECES = [
    b"GET ", b"POST ", b"PUT ", b"\x00\xff", b"/computeMetadata/v1/", b"instance/", b"attributes/", b"?recursive=true",
    b"&wait_for_change=true", b"&timeout_sec=0", b"&last_etag=", b"%2e%2e/", b"../", b" HTTP/1.1\r\n", b" HTTP/9.9\r\n",
    b"Metadata-Flavor: Google\r\n", b"Host: ::1\r\n", b"Content-Length: 99999999999\r\n", b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"\r\n", b"\r\n\r\n", b"\n\n", b"A" * 5000, b"zz\r\n",
    b"Expect: 100-continue\r\n",
]  # fmt: skip


def test_the_metadata_server_survives_arbitrary_requests(machine: str) -> None:
    host, port = machine.split(":")
    rng = random.Random(1907)
    for _ in range(400):
        body = b"".join(rng.choice(PIECES) for _ in range(rng.randint(1, 12)))
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            try:
                connection.sendall(body)
                if rng.random() < 0.5:
                    connection.shutdown(socket.SHUT_WR)
                connection.settimeout(0.002)
                connection.recv(100)
            except OSError:
                pass  # it hung up on us, or says nothing yet: both are its right
    connection = http.client.HTTPConnection(host, int(port), timeout=5)
    connection.request("GET", "/computeMetadata/v1/instance/name", headers={"Metadata-Flavor": "Google"})
    assert connection.getresponse().read() == b"fuzzed"
