"""A workspace in S3 keeps the contract of buckets, against moto's server: create-only puts above all."""

from __future__ import annotations

import secrets

import pytest

from outlast.clouds.aws.client import Client
from outlast.testing.buckets import BucketConformance
from outlast.workspace.bucket import Bucket, open_bucket
from tests.aws.conftest import Bridge


class TestS3(BucketConformance):
    @pytest.fixture
    def bucket(self, bridge: Bridge) -> Bucket:
        name = f"box-{secrets.token_hex(4)}"
        Client().call("s3", "create_bucket", Bucket=name)
        return open_bucket(f"s3://{name}/ws")
