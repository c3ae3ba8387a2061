"""Parameters of storage requests: conditions, checksums, ranges and bucket names, from queries and headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import HttpRequest, parse_number
from outlast_gcp_emulator.storage.values import Conditions

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
# First segments of the APIs' paths, which cannot be bucket names.
RESERVED = {"batch", "compute", "computeMetadata", "discovery", "download", "resumable", "storage", "token", "upload"}
RESERVED |= {"file", "git", "not-emulated", "secretmanager", "sourcerepo", "sqladmin"}
RESERVED |= {"cloudresourcemanager", "iam", "oslogin", "projects", "serviceusage"}


def conditions_of(request: HttpRequest, *, source: bool = False) -> Conditions:
    """Return the `if…Match` parameters, or with `source` those for the source of a copy."""
    start = "ifSource" if source else "if"
    names = ("GenerationMatch", "GenerationNotMatch", "MetagenerationMatch", "MetagenerationNotMatch")
    return Conditions(*(request.number(start + name) for name in names))


def header_conditions(request: HttpRequest, *, start: str = "x-goog-if") -> Conditions:
    """Return the conditions in the headers of the XML API."""
    names = ("generation-match", "generation-not-match", "metageneration-match", "metageneration-not-match")
    headers = [f"{start}-{name}" for name in names]
    given = request.headers
    return Conditions(*(parse_number(name, given[name]) if name in given else None for name in headers))


def header_checksums(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the checksums that a client sent in headers, by their names in the JSON API."""
    found: dict[str, str] = {}
    for word in headers.get("x-goog-hash", "").split(","):
        name, _, value = word.strip().partition("=")
        if name in ("crc32c", "md5"):
            found["md5Hash" if name == "md5" else name] = value
    if "content-md5" in headers:
        found["md5Hash"] = headers["content-md5"]
    return found


def header_meta(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata in the headers of the XML API, by their names in the JSON API."""
    names = {
        "content-type": "contentType",
        "content-encoding": "contentEncoding",
        "content-disposition": "contentDisposition",
        "content-language": "contentLanguage",
        "cache-control": "cacheControl",
        "x-goog-custom-time": "customTime",
        "x-goog-storage-class": "storageClass",
    }
    meta: dict[str, Any] = {field: headers[name] for name, field in names.items() if headers.get(name)}
    start = "x-goog-meta-"
    if custom := {name.removeprefix(start): value for name, value in headers.items() if name.startswith(start)}:
        meta["metadata"] = custom
    return meta


def byte_range(text: str, size: int) -> tuple[int, int] | None:
    """Return offset and length of `bytes=…`; None for the whole body. Raises ApiError 416 beyond the end."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", text.strip())
    if found is None or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    if first and last and int(last) < int(first):
        return None
    if start >= size:
        message = f"The requested range cannot be satisfied: the object has {size} bytes."
        raise ApiError(416, "requestedRangeNotSatisfiable", message, headers={"Content-Range": f"bytes */{size}"})
    return start, end - start


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentRange:
    """The bytes of an upload session that a request contains."""

    # None: the request contains no bytes and asks for the progress.
    first: int | None
    # Of the whole object; None while it is unknown.
    size: int | None
    # `0-*`: the request contains all remaining bytes.
    is_last: bool


def content_range(text: str) -> ContentRange:
    """Parse `bytes 0-99/200`, `bytes 0-*/*` or `bytes */200`. Raises ApiError."""
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)", text.strip())
    if found is None:
        raise invalid(f"Failed to parse Content-Range header: {text}")
    first, last, whole = found.groups()
    return ContentRange(
        first=None if first is None else int(first),
        size=None if whole == "*" else int(whole),
        is_last=last == "*" and whole == "*",
    )


def check_bucket_name(name: object) -> str:
    if not isinstance(name, str) or not _BUCKET_NAME.fullmatch(name) or ".." in name:
        raise invalid(f"Invalid bucket name: '{name}'")
    if name in RESERVED or name.startswith("goog"):
        message = "The requested bucket name is not available. Please select a different name and try again."
        raise ApiError(409, "conflict", message)
    return name
