"""Buckets and objects as resources of the JSON API, and the fields that a client may set."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from zlib import crc32

from outlast_gcp_emulator.errors import invalid
from outlast_gcp_emulator.storage.checksums import crc32c_text, md5_text
from outlast_gcp_emulator.storage.values import StoredBucket, StoredObject

OBJECT_FIELDS = {
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"),
    *("eventBasedHold", "metadata", "storageClass", "temporaryHold"),
}
BUCKET_FIELDS = {
    *("autoclass", "billing", "cors", "customPlacementConfig", "defaultEventBasedHold", "encryption"),
    *("iamConfiguration", "labels", "lifecycle", "location", "logging", "retentionPolicy", "rpo"),
    *("softDeletePolicy", "storageClass", "versioning", "website"),
}
MULTI_REGIONS = ("US", "EU", "ASIA")


def timestamp(us: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us // 1000 % 1000:03d}Z"


def etag(generation: int, metageneration: int) -> str:
    return base64.b64encode(f"{generation}/{metageneration}".encode()).decode()


def project_number(project: str) -> int:
    """Return a number that depends on the project's name only."""
    return 100_000_000_000 + crc32(project.encode())


def bucket_resource(bucket: StoredBucket, base_url: str) -> dict[str, Any]:
    location = str(bucket.meta.get("location") or "US").upper()
    access = {"enabled": True, "lockedTime": timestamp(bucket.created_us + 90 * 24 * 3600 * 1_000_000)}
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base_url}/storage/v1/b/{quote(bucket.name, safe='')}",
        "name": bucket.name,
        "projectNumber": str(project_number(bucket.project)),
        "generation": str(bucket.created_us),
        "metageneration": str(bucket.metageneration),
        "etag": etag(bucket.created_us, bucket.metageneration),
        "timeCreated": timestamp(bucket.created_us),
        "updated": timestamp(bucket.updated_us),
        "storageClass": "STANDARD",
        "rpo": "DEFAULT",
        **{name: value for name, value in bucket.meta.items() if name != "iamConfiguration"},
        "location": location,
        "locationType": "multi-region" if location in MULTI_REGIONS else "region",
        # There is one user, so objects have no access lists.
        "iamConfiguration": {
            "bucketPolicyOnly": access,
            "uniformBucketLevelAccess": access,
            "publicAccessPrevention": "inherited",
        },
    }


def object_resource(stored: StoredObject, base_url: str) -> dict[str, Any]:
    path = f"b/{quote(stored.bucket, safe='')}/o/{quote(stored.name, safe='')}"
    created = timestamp(stored.generation)
    resource = {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base_url}/storage/v1/{path}",
        "mediaLink": f"{base_url}/download/storage/v1/{path}?generation={stored.generation}&alt=media",
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "storageClass": "STANDARD",
        "size": str(stored.size),
        "crc32c": crc32c_text(stored.crc32c),
        "etag": etag(stored.generation, stored.metageneration),
        "timeCreated": created,
        "updated": timestamp(stored.updated_us),
        "timeStorageClassUpdated": created,
        "timeFinalized": created,
        **stored.meta,
    }
    if stored.md5 is not None:
        resource["md5Hash"] = md5_text(stored.md5)
    if stored.components is not None:
        resource["componentCount"] = stored.components
    return resource


def settable(given: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Return the fields that a client may set. Raises ApiError for invalid values."""
    chosen = {name: value for name, value in given.items() if name in known and value is not None}
    metadata = chosen.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str | None) for value in metadata.values()):
        raise invalid("Invalid value for: metadata: expected a map of strings to strings")
    if "metadata" in chosen:
        chosen["metadata"] = {name: value for name, value in metadata.items() if value is not None}
    for name in ("contentType", "contentEncoding", "cacheControl", "customTime", "storageClass", "location"):
        if not isinstance(chosen.get(name, ""), str):
            raise invalid(f"Invalid value for: {name}: expected a string")
    if "storageClass" in chosen:
        chosen["storageClass"] = chosen["storageClass"].upper()
    return chosen


def patched(old: Mapping[str, Any], given: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Merge a patch into the current fields: null removes a field, maps are merged."""
    merged = dict(old)
    for name, value in given.items():
        if name not in known:
            continue
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict) and name in ("metadata", "labels"):
            both = {**old.get(name, {}), **value}
            merged[name] = {key: item for key, item in both.items() if item is not None}
        else:
            merged[name] = value
    return settable(merged, known)
