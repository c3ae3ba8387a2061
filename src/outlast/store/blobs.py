"""Blobs: objects named by the sha256 of their body, stored once and shared by all runs."""

from __future__ import annotations

import hashlib
import os

from outlast.errors import Missing
from outlast.store.bucket import Bucket
from outlast.store.shared import store_shared


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256}"


def put_blob(bucket: Bucket, body: bytes) -> str:
    """Store the body unless it exists; return its name: its sha256, or another copy's (`store/shared.py`)."""
    name = store_shared(bucket, blob_key, hashlib.sha256(body).hexdigest(), body)
    if not _stored(bucket, name, len(body)):
        # It existed with the wrong size: replace the damaged body.
        bucket.put(blob_key(name), body, durable=True)
    return name


def forget(path: str) -> None:
    """Remove a file; it may be missing."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _stored(bucket: Bucket, sha256: str, size: int) -> bool:
    try:
        return bucket.head(blob_key(sha256)).bytes == size
    except Missing:
        return False
