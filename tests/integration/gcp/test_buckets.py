"""A workspace in Google's storage, where writes conflict: only an object that exists is reported as existing."""

from __future__ import annotations

import secrets

import pytest

from outlast.clouds.gcp.cloud import GcpCloud
from outlast.errors import Exists
from outlast.store.bucket import Bucket, open_bucket
from outlast_gcp_emulator.environment import PROJECT
from outlast_gcp_emulator.faults import Fault
from tests.support.gcp import Rehearsal


@pytest.fixture
def bucket(gcp: GcpCloud) -> Bucket:
    name = f"box-{secrets.token_hex(4)}"
    gcp.client.call("storage", "POST", "b", query={"project": PROJECT}, body={"name": name})
    return open_bucket(f"gs://{name}/ws")


@pytest.mark.parametrize("status", [409, 412, 429])
def test_a_create_that_is_refused_though_nothing_exists_is_repeated(
    bucket: Bucket, rehearsal: Rehearsal, status: int
) -> None:
    rehearsal.endpoint.faults.add(Fault(method="PUT", status=status))
    bucket.create("one", b"ours")
    assert rehearsal.endpoint.faults.left() == 0
    assert bucket.get("one") == b"ours"


@pytest.mark.parametrize("status", [409, 412, 429])
def test_a_create_that_is_refused_finds_an_object_that_exists(
    bucket: Bucket, rehearsal: Rehearsal, status: int
) -> None:
    bucket.put("one", b"theirs")
    rehearsal.endpoint.faults.add(Fault(method="PUT", status=status))
    with pytest.raises(Exists):
        bucket.create("one", b"ours")
    assert bucket.get("one") == b"theirs"
