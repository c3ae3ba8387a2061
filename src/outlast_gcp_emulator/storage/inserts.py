"""Uploads in the JSON API: as media, as a multipart body with metadata, or as a resumable session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from outlast_gcp_emulator.batch import boundary_of, parse_headers
from outlast_gcp_emulator.errors import invalid, required
from outlast_gcp_emulator.http_types import (
    JSON_BYTES_MAX,
    GzipBody,
    HttpRequest,
    HttpResponse,
    json_object,
    json_response,
)
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.storage.request_params import conditions_of, content_range, header_checksums
from outlast_gcp_emulator.storage.resources import OBJECT_FIELDS, object_resource, settable
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.uploads import Uploads, check_checksums
from outlast_gcp_emulator.storage.values import StoredObject, check_object_name

_STARTS = ("/upload/storage/v1/b/{bucket}/o", "/resumable/upload/storage/v1/b/{bucket}/o")
DEFAULT_TYPE = "application/octet-stream"


class InsertRoutes:
    """Handlers that create objects."""

    def __init__(self, store: ObjectStore, uploads: Uploads) -> None:
        self._store = store
        self._uploads = uploads

    def add_to(self, router: Router) -> None:
        for start in _STARTS:
            router.add_methods(start, POST=self.insert, PUT=self.insert, DELETE=self.cancel)

    def insert(self, request: HttpRequest) -> HttpResponse:
        if request.headers.get("content-encoding") == "gzip":
            request.source = GzipBody(request.source)
        if "upload_id" in request.query:
            return continue_session(self._uploads, request)
        kind = request.query.get("uploadType") or request.headers.get("x-goog-upload-protocol")
        if kind == "multipart":
            return self._multipart(request)
        if kind == "resumable":
            return self._start(request)
        if kind == "media":
            meta = {"contentType": request.headers.get("content-type") or DEFAULT_TYPE}
            return self._put(request, {**meta, **header_checksums(request.headers)}, request.pieces())
        raise invalid(f"Invalid value for: uploadType: expected media, multipart or resumable, got `{kind or ''}`")

    def cancel(self, request: HttpRequest) -> HttpResponse:
        upload = self._uploads.find("session", request.query.get("upload_id", ""))
        self._uploads.cancel(upload)
        # Google's status for a cancelled upload.
        return HttpResponse(status=499)

    def _multipart(self, request: HttpRequest) -> HttpResponse:
        body = MultipartBody(request)
        meta = {"contentType": body.content_type or DEFAULT_TYPE, **body.meta, **header_checksums(request.headers)}
        return self._put(request, meta, body.pieces())

    def _put(self, request: HttpRequest, given: dict[str, Any], pieces: Iterator[bytes]) -> HttpResponse:
        name = _name(request, given)
        bucket, only = request.parts["bucket"], conditions_of(request)
        meta = _with_encoding(request, settable(given, OBJECT_FIELDS))
        # Check the bucket before a large body is received.
        self._store.bucket(bucket)
        with self._store.staging(pieces) as staged:
            check_checksums(staged, given)
            return _shown(request, self._store.put(bucket, name, staged, meta, conditions=only))

    def _start(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        name, bucket = _name(request, given), request.parts["bucket"]
        kind = request.headers.get("x-upload-content-type") or DEFAULT_TYPE
        meta = _with_encoding(request, {"contentType": kind, **settable(given, OBJECT_FIELDS)})
        meta |= {field: given[field] for field in ("md5Hash", "crc32c") if given.get(field)}
        upload = self._uploads.start("session", bucket, name, meta, conditions_of(request))
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?uploadType=resumable&name={quote(name, safe='')}"
        location = f"{request.base_url}{path}&upload_id={upload.id}"
        return HttpResponse(headers={"Location": location, "X-GUploader-UploadID": upload.id})


def continue_session(uploads: Uploads, request: HttpRequest) -> HttpResponse:
    """Append bytes to a session, or return its progress."""
    upload = uploads.find("session", request.query["upload_id"])
    if upload.result is not None:
        return _shown(request, upload.result)
    # A body without a range is complete.
    piece = content_range(request.headers.get("content-range", "bytes 0-*/*"))
    if piece.first is None:
        return _progress(request, uploads.received(upload, whole=piece.size))
    return _progress(request, uploads.append(upload, piece, request.pieces()))


def _progress(request: HttpRequest, result: StoredObject | int) -> HttpResponse:
    if isinstance(result, StoredObject):
        return _shown(request, result)
    headers = {"Range": f"bytes=0-{result - 1}"} if result else {}
    if request.headers.get("x-guploader-no-308") == "yes":
        # For clients whose HTTP library treats 308 as a redirection.
        return HttpResponse(status=200, headers={**headers, "X-HTTP-Status-Code-Override": "308"})
    return HttpResponse(status=308, headers=headers)


def _name(request: HttpRequest, given: dict[str, Any]) -> str:
    name = request.query.get("name") or given.get("name")
    if not isinstance(name, str) or not name:
        raise required("name")
    return check_object_name(name)


def _with_encoding(request: HttpRequest, meta: dict[str, Any]) -> dict[str, Any]:
    encoding = request.query.get("contentEncoding")
    return {**meta, "contentEncoding": encoding} if encoding else meta


def _shown(request: HttpRequest, stored: StoredObject) -> HttpResponse:
    return json_response(object_resource(stored, request.base_url))


class MultipartBody:
    """A multipart/related body with the metadata and the bytes of an object. The bytes are streamed."""

    def __init__(self, request: HttpRequest) -> None:
        self._pieces = request.pieces()
        self._rest = b""
        boundary = b"--" + boundary_of(request.headers.get("content-type", ""))
        self._fill(boundary)
        start = self._rest.index(boundary)
        after = self._rest[start + len(boundary) :]
        # Some clients end lines with a bare newline; then a CR before it belongs to the body.
        newline = b"\r\n" if after.startswith(b"\r\n") else b"\n"
        self._mark = newline + boundary
        self._rest = after
        self._fill(self._mark)
        first, _, self._rest = self._rest.partition(self._mark)
        # A part without headers starts with an empty line.
        self.meta = json_object(first.partition(newline * 2)[2])
        self._fill(newline * 2)
        head, _, self._rest = self._rest.partition(newline * 2)
        self.content_type = parse_headers(head).get("content-type", "")

    def _fill(self, wanted: bytes) -> None:
        """Read until the buffer contains `wanted`."""
        while wanted not in self._rest:
            piece = next(self._pieces, b"")
            if not piece or len(self._rest) > JSON_BYTES_MAX:
                raise invalid("the multipart body is truncated")
            self._rest += piece

    def pieces(self) -> Iterator[bytes]:
        """Yield the object's bytes. Bytes that may belong to the final boundary are held back."""
        end = self._mark + b"--"
        held = len(end) + 8
        rest = self._rest
        for piece in self._pieces:
            rest += piece
            if len(rest) > held:
                yield rest[:-held]
                rest = rest[-held:]
        at = rest.rfind(end)
        if at < 0:
            raise invalid("the multipart body is truncated")
        yield rest[:at]
