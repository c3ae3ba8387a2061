"""Downloads: ranges, conditions, checksum headers, and decompression for clients without gzip."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from email.utils import formatdate, parsedate_to_datetime
from typing import BinaryIO

from outlast_gcp_emulator.errors import ApiError
from outlast_gcp_emulator.http_types import PIECE_BYTES, FileSlice, HttpRequest, HttpResponse
from outlast_gcp_emulator.storage.checksums import crc32c_text, md5_text
from outlast_gcp_emulator.storage.request_params import byte_range
from outlast_gcp_emulator.storage.resources import etag
from outlast_gcp_emulator.storage.values import StoredObject, condition_not_met


def xml_etag(stored: StoredObject) -> str:
    """Return the ETag of the XML API: the quoted MD5 if there is one."""
    return f'"{stored.md5.hex() if stored.md5 is not None else etag(stored.generation, stored.metageneration)}"'


def sums_text(stored: StoredObject) -> str:
    md5 = "" if stored.md5 is None else f",md5={md5_text(stored.md5)}"
    return f"crc32c={crc32c_text(stored.crc32c)}{md5}"


def object_headers(stored: StoredObject) -> dict[str, str]:
    """Return the headers that describe an object in both APIs."""
    meta = stored.meta
    headers = {
        "Content-Type": str(meta.get("contentType") or "application/octet-stream"),
        "ETag": xml_etag(stored),
        "Last-Modified": formatdate(stored.updated_us / 1_000_000, usegmt=True),
        "Accept-Ranges": "bytes",
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": str(stored.metageneration),
        "x-goog-hash": sums_text(stored),
        "x-goog-storage-class": str(meta.get("storageClass") or "STANDARD"),
        "x-goog-stored-content-encoding": str(meta.get("contentEncoding") or "identity"),
        "x-goog-stored-content-length": str(stored.size),
    }
    for field, name in (
        ("contentEncoding", "Content-Encoding"),
        ("contentDisposition", "Content-Disposition"),
        ("contentLanguage", "Content-Language"),
        ("cacheControl", "Cache-Control"),
        ("customTime", "x-goog-custom-time"),
    ):
        if meta.get(field):
            headers[name] = str(meta[field])
    headers |= {f"x-goog-meta-{name}": str(value) for name, value in meta.get("metadata", {}).items()}
    if stored.components is not None:
        headers["x-goog-component-count"] = str(stored.components)
    return headers


def media_response(request: HttpRequest, stored: StoredObject, file: BinaryIO) -> HttpResponse:
    """Return the body or the requested range of it. Takes ownership of the file."""
    with ExitStack() as undo:
        undo.callback(file.close)
        check_header_conditions(request, stored)
        headers = object_headers(stored)
        if _must_decompress(request, stored):
            del headers["Content-Encoding"], headers["Accept-Ranges"]
            undo.pop_all()
            return HttpResponse(headers=headers, body=_decompressed(file))
        wanted = byte_range(request.headers["range"], stored.size) if "range" in request.headers else None
        undo.pop_all()
    if wanted is None:
        return HttpResponse(headers=headers, body=FileSlice(file=file, offset=0, length=stored.size))
    offset, length = wanted
    headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{stored.size}"
    return HttpResponse(status=206, headers=headers, body=FileSlice(file=file, offset=offset, length=length))


def check_header_conditions(request: HttpRequest, stored: StoredObject) -> None:
    """Check the standard HTTP conditions. Raises ApiError 304 or 412."""
    tags = (xml_etag(stored).strip('"'), etag(stored.generation, stored.metageneration))
    headers = request.headers
    if (wanted := headers.get("if-match")) and wanted != "*" and not _names(wanted, tags):
        raise condition_not_met()
    if (unwanted := headers.get("if-none-match")) and (unwanted == "*" or _names(unwanted, tags)):
        raise ApiError(304, "notModified", "Not Modified", headers={"ETag": xml_etag(stored)})
    seconds = stored.updated_us // 1_000_000
    if "if-none-match" not in headers and (since := _seconds(headers.get("if-modified-since"))) and seconds <= since:
        raise ApiError(304, "notModified", "Not Modified", headers={"ETag": xml_etag(stored)})
    if "if-match" not in headers and (since := _seconds(headers.get("if-unmodified-since"))) and seconds > since:
        raise condition_not_met()


def _names(header: str, tags: tuple[str, str]) -> bool:
    return any(word.strip().removeprefix("W/").strip('"') in tags for word in header.split(","))


def _seconds(header: str | None) -> int | None:
    if header is None:
        return None
    try:
        return int(parsedate_to_datetime(header).timestamp())
    except ValueError:
        return None  # HTTP servers ignore an invalid date


def _must_decompress(request: HttpRequest, stored: StoredObject) -> bool:
    compressed = stored.meta.get("contentEncoding") == "gzip"
    return compressed and not request.accepts_gzip() and "no-transform" not in str(stored.meta.get("cacheControl", ""))


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    with file:
        state = zlib.decompressobj(wbits=31)
        while packed := file.read(PIECE_BYTES):
            try:
                piece = state.decompress(packed)
            except zlib.error as problem:
                raise ConnectionAbortedError("the object has contentEncoding gzip, but is not gzip") from problem
            if piece:
                yield piece
