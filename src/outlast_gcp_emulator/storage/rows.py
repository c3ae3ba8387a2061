"""Rows of the tables as values."""

from __future__ import annotations

import json
from typing import Any

from outlast_gcp_emulator.storage.values import Stored, StoredBucket

OBJECT_COLUMNS = "bucket, name, generation, metageneration, size, md5, crc32c, body, components, updated_us, meta"


def bucket_of(row: tuple[Any, ...]) -> StoredBucket:
    name, project, metageneration, created_us, updated_us, meta, policy = row
    return StoredBucket(
        name=name,
        project=project,
        metageneration=metageneration,
        created_us=created_us,
        updated_us=updated_us,
        meta=json.loads(meta),
        policy=None if policy is None else json.loads(policy),
    )


def object_of(row: tuple[Any, ...]) -> Stored:
    bucket, name, generation, metageneration, size, md5, crc32c, body, components, updated_us, meta = row
    return Stored(
        bucket=bucket,
        name=name.decode(),
        generation=generation,
        metageneration=metageneration,
        size=size,
        md5=md5,
        crc32c=crc32c,
        body=body,
        components=components,
        updated_us=updated_us,
        meta=json.loads(meta),
    )


def object_to_json(stored: Stored) -> str:
    """A whole object as text, to be told again later."""
    md5 = None if stored.md5 is None else stored.md5.hex()
    row = [stored.bucket, stored.name, stored.generation, stored.metageneration, stored.size, md5, stored.crc32c]
    return json.dumps([*row, stored.body, stored.components, stored.updated_us, json.dumps(stored.meta)])


def object_from_json(text: str) -> Stored:
    row = json.loads(text)
    row[1] = row[1].encode()
    row[5] = None if row[5] is None else bytes.fromhex(row[5])
    return object_of(tuple(row))
