"""A workspace in S3 keeps the contract of buckets, against moto's server: create-only puts above all."""

from __future__ import annotations

import pytest

from outlast.errors import Exists, Missing, StoreUnreachable
from outlast.store.bucket import Bucket, open_bucket
from outlast.testing.bucket_conformance import BucketConformance
from tests.support.aws import Bridge


class TestS3(BucketConformance):
    @pytest.fixture
    def bucket(self, bridge: Bridge) -> Bucket:
        return open_bucket(f"s3://{bridge.new_bucket()}/ws")


@pytest.fixture
def bucket(bridge: Bridge) -> Bucket:
    return open_bucket(f"s3://{bridge.new_bucket()}/ws")


CONFLICT = {"action": "S3.PUT", "code": "ConditionalRequestConflict", "status": 409}


def test_a_write_that_conflicts_with_one_that_failed_is_repeated(bucket: Bucket, bridge: Bridge) -> None:
    bridge.rules({**CONFLICT, "times": 2})
    bucket.create("one", b"ours")
    assert bucket.get("one") == b"ours"


def test_a_write_that_conflicts_with_one_that_succeeded_finds_the_object(bucket: Bucket, bridge: Bridge) -> None:
    bucket.put("one", b"theirs")
    bridge.rules({**CONFLICT, "times": 1})
    with pytest.raises(Exists):
        bucket.create("one", b"ours")
    assert bucket.get("one") == b"theirs"


@pytest.mark.full
def test_a_conflict_that_does_not_end_is_not_an_existing_object(bucket: Bucket, bridge: Bridge) -> None:
    bridge.rules(CONFLICT)
    with pytest.raises(StoreUnreachable, match="`one` was refused 6 times because of a conflicting request"):
        bucket.create("one", b"ours")
    with pytest.raises(StoreUnreachable, match="conflicting request"):
        bucket.put("one", b"ours")
    bridge.rules()
    with pytest.raises(Missing):
        bucket.get("one")
