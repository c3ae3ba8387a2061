"""Blobs: bodies named by their own sha256, stored once and shared by all. Refuses to keep a body under a wrong name.

A blob that lies would be worse than one that is missing: everyone who has the same content skips the upload.
"""

from __future__ import annotations

import hashlib
import os
import secrets

import msgspec

from outlast.errors import Exists, Missing, WorkspaceError
from outlast.workspace.bucket import Bucket

_PIECE = 1 << 20
# Up to here the snapshot of a file is taken in memory, where it costs no disk and leaves nothing behind.
_IN_MEMORY = 8 << 20


class Blob(msgspec.Struct, frozen=True):
    sha256: str
    bytes: int


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


def upload_blob(bucket: Bucket, path: str, *, scratch: str = "") -> Blob:
    """Store the file as it is now, unless that is there. May be repeated.

    What is hashed and what is uploaded are one snapshot, so a trainer that goes on writing cannot spoil the blob. The
    snapshot of a large file needs as much room again, in `scratch` or beside the file, until the upload is done.
    """
    with open(path, "rb") as source:
        head = source.read(_IN_MEMORY)
        if len(head) < _IN_MEMORY:
            return Blob(put_blob(bucket, head), len(head))
        snapshot = os.path.join(scratch or os.path.dirname(path), f".outlast-{secrets.token_hex(8)}.part")
        try:
            digest, size = hashlib.sha256(head), len(head)
            with open(snapshot, "wb") as copy:
                copy.write(head)
                while piece := source.read(_PIECE):
                    digest.update(piece)
                    size += len(piece)
                    copy.write(piece)
            blob = Blob(digest.hexdigest(), size)
            if not _stored(bucket, blob.sha256, size):
                bucket.upload(blob_key(blob.sha256), snapshot)
        finally:
            forget(snapshot)
    return blob


def download_blob(bucket: Bucket, sha256: str, path: str, *, executable: bool = False) -> None:
    """The blob as a file: whole and true, or not there. Raises Missing, and WorkspaceError if the body is corrupt."""
    staged = f"{path}.{secrets.token_hex(4)}.blob"
    try:
        bucket.download(blob_key(sha256), staged)
        found = file_sha256(staged)
        if found != sha256:
            raise WorkspaceError(f"blob {sha256} is corrupt: its content has the sha256 {found}")
        if executable:
            os.chmod(staged, os.stat(staged).st_mode | 0o111)
        os.replace(staged, path)
    finally:
        forget(staged)


def file_sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
