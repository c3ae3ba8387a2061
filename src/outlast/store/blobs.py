"""Blobs: objects named by the sha256 of their body, stored once and shared by all runs."""

from __future__ import annotations

import hashlib
import os

from outlast.errors import Exists, Missing
from outlast.store.bucket import Bucket


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256}"


def put_blob(bucket: Bucket, body: bytes) -> str:
    """Store the body unless it exists; return its sha256. May be repeated."""
    sha256 = hashlib.sha256(body).hexdigest()
    if not _stored(bucket, sha256, len(body)):
        try:
            bucket.create(blob_key(sha256), body)
        except Exists:
            # It exists with the wrong size: replace the damaged body.
            if not _stored(bucket, sha256, len(body)):
                bucket.put(blob_key(sha256), body, durable=True)
    return sha256


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
