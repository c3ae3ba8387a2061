"""Records of verifications, written before anything is created, so that a later command can delete leftovers."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator

import msgspec

from outlast import private
from outlast.errors import Missing, OutlastError, UsageError
from outlast.store.bucket import open_bucket

PREFIX = "verify-"
_OBJECT = "verify.json"


class VerifyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One verification: its id, cloud and workspace. The workspace's id is a label of all its machines."""

    id: str
    cloud: str
    region: str
    workspace: str
    created_at: float


def new_record(cloud: str, region: str, bucket_url: str) -> VerifyRecord:
    """Return a record with a new id, written to this computer and to the bucket. Raises OutlastError."""
    id = secrets.token_hex(4)
    where = f"{bucket_url.rstrip('/')}/{PREFIX}{id}"
    record = VerifyRecord(id=id, cloud=cloud, region=region, workspace=where, created_at=time.time())
    body = msgspec.json.encode(record)
    with open(os.path.join(private.folder("verify"), f"{id}.json"), "xb") as file:
        file.write(body)
    open_bucket(where).create(_OBJECT, body)
    return record


def records(bucket_url: str) -> dict[str, VerifyRecord]:
    """Return the records of this computer and of a bucket: what an interrupted verification may have left."""
    found: dict[str, VerifyRecord] = {}
    folder = private.folder("verify")
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            _add(found, file.read())
    for body in _stored(bucket_url):
        _add(found, body)
    return found


def _stored(bucket_url: str) -> Iterator[bytes]:
    if not bucket_url:
        return
    bucket = open_bucket(bucket_url.rstrip("/"))
    for child in bucket.children(""):
        if child.startswith(PREFIX):
            try:
                yield bucket.get(f"{child.rstrip('/')}/{_OBJECT}")
            except Missing:
                continue


def _add(found: dict[str, VerifyRecord], body: bytes) -> None:
    try:
        record = msgspec.json.decode(body, type=VerifyRecord)
    except msgspec.MsgspecError:
        return  # a file that was cut off: nothing was created after it
    found[record.id] = record


def find(id: str, bucket_url: str) -> list[VerifyRecord]:
    """Return the record of an id, or all records. Raises UsageError."""
    known = records(bucket_url)
    if id == "all":
        return list(known.values())
    if id not in known:
        names = ", ".join(f"`{name}`" for name in known) or "none"
        raise UsageError(f"--clean: no verification `{id}`; known here and in the bucket: {names}")
    return [known[id]]


def forget(record: VerifyRecord) -> None:
    """Delete the record of this computer. The one in the bucket goes with the workspace."""
    try:
        os.unlink(os.path.join(private.folder("verify"), f"{record.id}.json"))
    except FileNotFoundError:
        pass
    except OSError as problem:
        raise OutlastError(f"could not delete the record of verification {record.id}: {problem.strerror}") from problem
