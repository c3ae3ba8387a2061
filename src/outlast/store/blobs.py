"""Blobs: bodies named by their own sha256, stored once and shared by all. Refuses to keep a body under a wrong name.

A blob that lies would be worse than one that is missing: everyone who has the same content skips the upload.
"""

from __future__ import annotations

import hashlib
import os

from outlast.errors import Exists, Missing
from outlast.store.bucket import Bucket


def blob_key(sha256: str) -> str:
    return f"blobs/{sha256}"


def put_blob(bucket: Bucket, body: bytes) -> str:
    """Store the body unless it is there; its sha256. May be repeated."""
    sha256 = hashlib.sha256(body).hexdigest()
    if not _stored(bucket, sha256, len(body)):
        try:
            bucket.create(blob_key(sha256), body)
        except Exists:
            # There, and of the wrong size: it is damaged, and we can mend it.
            if not _stored(bucket, sha256, len(body)):
                bucket.put(blob_key(sha256), body, durable=True)
    return sha256


def forget(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _stored(bucket: Bucket, sha256: str, size: int) -> bool:
    try:
        return bucket.head(blob_key(sha256)).bytes == size
    except Missing:
        return False
