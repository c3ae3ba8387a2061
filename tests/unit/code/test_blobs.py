"""Blobs: one name per content, and only correct names."""

from __future__ import annotations

import hashlib

from outlast.store.blobs import blob_key, put_blob
from outlast.store.bucket import Bucket


def test_the_same_content_is_stored_once(bucket: Bucket) -> None:
    sha256 = put_blob(bucket, b"body")
    time = bucket.head(blob_key(sha256)).modified_at
    assert put_blob(bucket, b"body") == sha256 == hashlib.sha256(b"body").hexdigest()
    assert bucket.head(blob_key(sha256)).modified_at == time
    assert [entry.key for entry in bucket.list("")] == [blob_key(sha256)]


def test_a_blob_of_the_wrong_size_is_replaced(bucket: Bucket) -> None:
    sha256 = put_blob(bucket, b"body")
    bucket.put(blob_key(sha256), b"bo")
    assert put_blob(bucket, b"body") == sha256
    assert bucket.get(blob_key(sha256)) == b"body"
