"""The XML API with path-style addresses, as obstore uses it: objects, lists, copies and uploads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, empty_response
from outlast_gcp_emulator.router import Handler, Router
from outlast_gcp_emulator.storage.checksums import crc32c_text, md5_text
from outlast_gcp_emulator.storage.inserts import continue_session
from outlast_gcp_emulator.storage.listing import from_page_token, page_token
from outlast_gcp_emulator.storage.media import (
    check_header_conditions,
    media_response,
    object_headers,
    sums_text,
    xml_etag,
)
from outlast_gcp_emulator.storage.request_params import (
    check_bucket_name,
    header_checksums,
    header_conditions,
    header_meta,
)
from outlast_gcp_emulator.storage.resources import timestamp
from outlast_gcp_emulator.storage.s3_compat import accepting_s3
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.uploads import UploadPart, Uploads, check_checksums
from outlast_gcp_emulator.storage.values import Conditions, ObjectQuery, StoredObject

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PARTS_MAX = 10_000
_DELETED_MAX = 1_000
# Query parameters of Google and Amazon that select a property of a bucket or an object instead of the thing itself.
_SUBRESOURCES = {
    *("accelerate", "acl", "analytics", "attributes", "billing", "compose", "cors", "defaultObjectAcl", "encryption"),
    *("encryptionConfig", "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "logging", "metrics"),
    *("notification", "notificationConfig", "object-lock", "ownershipControls", "policy", "policyStatus"),
    *("publicAccessBlock", "replication", "requestPayment", "restore", "retention", "select", "storageClass"),
    *("tagging", "torrent", "versioning", "versions", "website", "websiteConfig"),
}
# XML 1.0 cannot represent these.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class XmlRoutes:
    """Handlers of the XML API. Add them last: their paths match all others."""

    def __init__(self, store: ObjectStore, uploads: Uploads, *, project: str) -> None:
        self._store = store
        self._uploads = uploads
        self._project = project

    def add_to(self, router: Router) -> None:
        bucket = {"GET": self.read_bucket, "HEAD": self.head_bucket, "PUT": self.put_bucket}
        bucket |= {"POST": self.post_bucket, "DELETE": self.delete_bucket}
        objects = {"GET": self.get, "HEAD": self.head, "PUT": self.put, "POST": self.post, "DELETE": self.delete}
        router.add("GET", "/", self.list_buckets, dialect="xml")
        for path, handlers in (("/{bucket}", bucket), ("/{bucket}/", bucket), ("/{bucket}/{object*}", objects)):
            for method, handler in handlers.items():
                router.add(method, path, _without_subresource(accepting_s3(handler)), dialect="xml")

    # Buckets

    def list_buckets(self, _: HttpRequest) -> HttpResponse:
        found = self._store.buckets(prefix="", start="", count=1000, project="")
        shown = [_tags("Bucket", Name=bucket.name, CreationDate=timestamp(bucket.created_us)) for bucket in found]
        return _xml("ListAllMyBucketsResult", _tag("Buckets", shown))

    def head_bucket(self, request: HttpRequest) -> HttpResponse:
        self._store.bucket(request.parts["bucket"])
        return HttpResponse()

    def put_bucket(self, request: HttpRequest) -> HttpResponse:
        name = check_bucket_name(request.parts["bucket"])
        project = request.headers.get("x-goog-project-id") or self._project
        self._store.create_bucket(name, project=project, meta={})
        return HttpResponse()

    def delete_bucket(self, request: HttpRequest) -> HttpResponse:
        self._store.delete_bucket(request.parts["bucket"])
        return empty_response()

    def post_bucket(self, request: HttpRequest) -> HttpResponse:
        """Delete many objects. A missing object counts as deleted."""
        if "delete" not in request.query:
            raise invalid("POST to a bucket requires ?delete")
        bucket = self._store.bucket(request.parts["bucket"]).name
        root = _parsed(request.body())
        wanted = _elements(root, "Object")
        if not wanted or len(wanted) > _DELETED_MAX or not all(element.get("Key") for element in wanted):
            raise ApiError(400, "MalformedXML", f"Expected 1 to {_DELETED_MAX} objects, each with a Key.")
        results = [self._delete_result(bucket, element) for element in wanted]
        if any(field.text and field.text.lower() == "true" for field in _named(root, "Quiet")):
            results = [tag for tag in results if not tag.startswith("<Deleted>")]
        return _xml("DeleteResult", *results)

    def _delete_result(self, bucket: str, wanted: Mapping[str, str]) -> str:
        version = wanted.get("VersionId", "")
        fields = {"Key": wanted["Key"]} | ({"VersionId": version} if version else {})
        try:
            if version and not version.isdecimal():
                raise ApiError(400, "InvalidArgument", f"Invalid version `{version}`: expected a generation.")
            generation = int(version) if version else None
            self._store.delete(bucket, wanted["Key"], generation=generation, only=Conditions())
        except ApiError as error:
            if error.status != 404:
                return _tags("Error", **fields, Code=error.xml_code, Message=error.message)
        return _tags("Deleted", **fields)

    def read_bucket(self, request: HttpRequest) -> HttpResponse:
        name, query = request.parts["bucket"], request.query
        if "uploads" in query:
            raise ApiError(501, "notImplemented", "Listing multipart uploads is not supported")
        if "location" in query:
            return _xml("LocationConstraint", escape(str(self._store.bucket(name).meta.get("location", "US"))))
        newer = query.get("list-type") == "2"
        token = query.get("continuation-token" if newer else "marker", "")
        after = query.get("start-after", "") if newer else token
        start = after.encode("utf-8", "replace") + b"\0" if after else b""
        wanted = ObjectQuery(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=from_page_token(token) if newer and token else start,
            results_max=max(1, min(1000, request.number("max-keys") or 1000)),
        )
        page = self._store.page(name, wanted)
        write = quote if query.get("encoding-type") == "url" else str
        tags = [_tags("", Name=name, Prefix=write(wanted.prefix), Delimiter=wanted.delimiter)]
        tags += [_tags("", MaxKeys=wanted.results_max, IsTruncated="true" if page.following else "false")]
        if newer:
            tags += [_tags("", KeyCount=len(page.objects) + len(page.prefixes))]
        if page.following:
            names = [stored.name for stored in page.objects[-1:]] + page.prefixes[-1:]
            following = page_token(page.following) if newer else write(max(names))
            tags += [_tags("", **{"NextContinuationToken" if newer else "NextMarker": following})]
        tags += [_contents(stored, write(stored.name)) for stored in page.objects]
        tags += [_tags("CommonPrefixes", Prefix=write(prefix)) for prefix in page.prefixes]
        return _xml("ListBucketResult", *tags)

    # Objects

    def get(self, request: HttpRequest) -> HttpResponse:
        bucket, name = _where(request)
        if "uploadId" in request.query:
            return self._list_parts(request)
        stored, file = self._store.open(bucket, name, generation=request.number("generation"))
        try:
            header_conditions(request).check(stored, reading=True)
        except ApiError:
            file.close()
            raise
        return media_response(request, stored, file)

    def head(self, request: HttpRequest) -> HttpResponse:
        stored = self._store.get(*_where(request), generation=request.number("generation"))
        header_conditions(request).check(stored, reading=True)
        check_header_conditions(request, stored)
        return HttpResponse(headers={**object_headers(stored), "Content-Length": str(stored.size)})

    def put(self, request: HttpRequest) -> HttpResponse:
        if "uploadId" in request.query:
            return self._put_part(request)
        if "upload_id" in request.query:
            return continue_session(self._uploads, request)
        if "x-goog-copy-source" in request.headers:
            return self._copy(request)
        bucket, name = _where(request)
        meta, only = header_meta(request.headers), header_conditions(request)
        self._store.bucket(bucket)
        with self._store.staging(request.pieces()) as staged:
            check_checksums(staged, header_checksums(request.headers))
            stored = self._store.put(bucket, name, staged, meta, conditions=only)
        return HttpResponse(headers=_summary_headers(stored))

    def delete(self, request: HttpRequest) -> HttpResponse:
        if "uploadId" in request.query:
            self._uploads.cancel(self._uploads.find("parts", request.query["uploadId"]))
            return empty_response()
        generation, only = request.number("generation"), header_conditions(request)
        self._store.delete(*_where(request), generation=generation, only=only)
        return empty_response()

    def post(self, request: HttpRequest) -> HttpResponse:
        if "uploads" in request.query:
            return self._start_parts(request)
        if "uploadId" in request.query:
            return self._join(request)
        if request.headers.get("x-goog-resumable") == "start":
            only, meta = header_conditions(request), header_meta(request.headers)
            upload = self._uploads.start("session", *_where(request), meta, only)
            location = f"{request.base_url}{request.path}?upload_id={upload.id}"
            return HttpResponse(status=201, headers={"Location": location})
        raise invalid("POST requires ?uploads, ?uploadId or x-goog-resumable: start")

    def _copy(self, request: HttpRequest) -> HttpResponse:
        text = unquote(request.headers["x-goog-copy-source"]).removeprefix("/")
        bucket, _, name = text.partition("/")
        generation = request.headers.get("x-goog-copy-source-generation", "")
        new = header_meta(request.headers)
        replaced = request.headers.get("x-goog-metadata-directive", "COPY").upper() == "REPLACE"
        stored = self._store.copy(
            (bucket, name, int(generation) if generation.isdecimal() else None),
            _where(request),
            lambda meta: new if replaced else meta,
            source_only=header_conditions(request, start="x-goog-copy-source-if"),
            target_only=header_conditions(request),
        )
        response = _xml("CopyObjectResult", _tags("", LastModified=timestamp(stored.updated_us), ETag=xml_etag(stored)))
        response.headers |= _summary_headers(stored)
        return response

    # Multipart uploads

    def _start_parts(self, request: HttpRequest) -> HttpResponse:
        bucket, name = _where(request)
        upload = self._uploads.start("parts", bucket, name, header_meta(request.headers), header_conditions(request))
        return _xml("InitiateMultipartUploadResult", _tags("", Bucket=bucket, Key=name, UploadId=upload.id))

    def _put_part(self, request: HttpRequest) -> HttpResponse:
        if "x-goog-copy-source" in request.headers:
            # Google has no such call. Without this check the part would be empty.
            raise ApiError(501, "notImplemented", "A part cannot be a copy; copy the object in one request.")
        upload = self._uploads.find("parts", request.query["uploadId"])
        number = request.number("partNumber")
        if number is None or not 1 <= number <= _PARTS_MAX:
            raise invalid(f"partNumber must be from 1 to {_PARTS_MAX}")
        with self._store.staging(request.pieces()) as staged:
            check_checksums(staged, header_checksums(request.headers))
            self._uploads.put_part(upload, number, staged)
        sums = f"crc32c={crc32c_text(staged.crc32c)},md5={md5_text(staged.md5)}"
        return HttpResponse(headers={"ETag": f'"{staged.md5.hex()}"', "x-goog-hash": sums})

    def _list_parts(self, request: HttpRequest) -> HttpResponse:
        upload = self._uploads.find("parts", request.query["uploadId"])
        shown = [
            _tags(
                "Part",
                PartNumber=part.number,
                LastModified=timestamp(part.updated_us),
                ETag=f'"{part.md5.hex()}"',
                Size=part.size,
            )
            for part in self._uploads.parts(upload)
        ]
        head = _tags("", Bucket=upload.bucket, Key=upload.name, UploadId=upload.id, IsTruncated="false")
        return _xml("ListPartsResult", head, *shown)

    def _join(self, request: HttpRequest) -> HttpResponse:
        upload = self._uploads.find("parts", request.query["uploadId"])
        known = {part.number: part for part in self._uploads.parts(upload)}
        wanted = [_checked_part(known, number, tag) for number, tag in _parts_of(request.body())]
        if not wanted or [part.number for part in wanted] != sorted({part.number for part in wanted}):
            raise ApiError(400, "InvalidPartOrder", "The parts must be in ascending order, each once.")
        only = header_conditions(request)
        stored = self._uploads.join(upload, wanted, only if only.generation_match is not None else upload.conditions)
        shown = _tags("", Bucket=stored.bucket, Key=stored.name, ETag=xml_etag(stored))
        response = _xml("CompleteMultipartUploadResult", shown)
        response.headers |= {name: value for name, value in _summary_headers(stored).items() if name != "ETag"}
        return response


def _without_subresource(handler: Handler) -> Handler:
    """Return a handler that refuses requests for a subresource, so that a PUT of `?acl` does not replace an object."""

    def respond(request: HttpRequest) -> HttpResponse:
        if names := sorted(_SUBRESOURCES & request.query.keys()):
            raise ApiError(501, "notImplemented", f"`?{names[0]}` of a bucket or an object is not supported")
        return handler(request)

    return respond


def _where(request: HttpRequest) -> tuple[str, str]:
    return request.parts["bucket"], request.parts["object"]


def _summary_headers(stored: StoredObject) -> dict[str, str]:
    return {
        "ETag": xml_etag(stored),
        "x-goog-generation": str(stored.generation),
        "x-goog-metageneration": str(stored.metageneration),
        "x-goog-hash": sums_text(stored),
        "x-goog-stored-content-length": str(stored.size),
    }


def _parsed(body: bytes) -> ElementTree.Element:
    try:
        return ElementTree.fromstring(body)
    except ElementTree.ParseError as problem:
        raise ApiError(400, "MalformedXML", f"The XML is not well-formed: {problem}") from problem


def _named(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    """Return the elements of that name, with or without a namespace, because clients differ."""
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def _elements(root: ElementTree.Element, name: str) -> list[dict[str, str]]:
    return [{field.tag.rpartition("}")[2]: field.text or "" for field in element} for element in _named(root, name)]


def _parts_of(body: bytes) -> list[tuple[int, str]]:
    """Return numbers and ETags of the parts to join."""
    parts = _elements(_parsed(body), "Part")
    if not all(part.get("PartNumber", "").isdecimal() for part in parts):
        raise ApiError(400, "MalformedXML", "A part has no PartNumber.")
    return [(int(part["PartNumber"]), part.get("ETag", "").strip('"')) for part in parts]


def _checked_part(known: Mapping[int, UploadPart], number: int, tag: str) -> UploadPart:
    part = known.get(number)
    if part is None or tag not in ("", part.md5.hex()):
        raise ApiError(400, "InvalidPart", f"Part {number} was not found, or its ETag is different.")
    return part


def _contents(stored: StoredObject, name: str) -> str:
    return _tags(
        "Contents",
        Key=name,
        Generation=stored.generation,
        MetaGeneration=stored.metageneration,
        LastModified=timestamp(stored.updated_us),
        ETag=xml_etag(stored),
        Size=stored.size,
    )


def _tags(outer: str, **fields: Any) -> str:
    inner = "".join(f"<{name}>{_written(value)}</{name}>" for name, value in fields.items())
    return f"<{outer}>{inner}</{outer}>" if outer else inner


def _written(value: object) -> str:
    return _UNWRITABLE.sub(lambda found: f"%{ord(found.group()):02X}", escape(str(value))).replace("\r", "&#13;")


def _tag(name: str, inner: Iterable[str]) -> str:
    return f"<{name}>{''.join(inner)}</{name}>"


def _xml(root: str, *inner: str) -> HttpResponse:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{_NAMESPACE}">{"".join(inner)}</{root}>'
    return HttpResponse(headers={"Content-Type": "application/xml; charset=UTF-8"}, body=text.encode())
