"""The XML API, path style, as obstore speaks it: objects, lists, copies, uploads in parts and in sessions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from outlast_gcp_emulator.errors import ApiError, invalid
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, empty_answer
from outlast_gcp_emulator.router import Handler, Router
from outlast_gcp_emulator.storage.checksums import crc32c_text, md5_text
from outlast_gcp_emulator.storage.inserts import continue_session
from outlast_gcp_emulator.storage.listing import from_page_token, page_token
from outlast_gcp_emulator.storage.media import (
    check_header_conditions,
    media_answer,
    object_headers,
    sums_text,
    xml_etag,
)
from outlast_gcp_emulator.storage.request_params import (
    announced_sums,
    check_bucket_name,
    header_conditions,
    header_meta,
)
from outlast_gcp_emulator.storage.resources import timestamp
from outlast_gcp_emulator.storage.s3_compat import taken
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.uploads import UploadPart, Uploads, check_sums
from outlast_gcp_emulator.storage.values import Conditions, Listing, Stored

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_PARTS_MAX = 10_000
_DELETED_MAX = 1_000
# What the protocols of Google and Amazon let a client ask of a bucket or an object, and is not the thing itself.
_ASPECTS = {
    *("accelerate", "acl", "analytics", "attributes", "billing", "compose", "cors", "defaultObjectAcl", "encryption"),
    *("encryptionConfig", "intelligent-tiering", "inventory", "legal-hold", "lifecycle", "logging", "metrics"),
    *("notification", "notificationConfig", "object-lock", "ownershipControls", "policy", "policyStatus"),
    *("publicAccessBlock", "replication", "requestPayment", "restore", "retention", "select", "storageClass"),
    *("tagging", "torrent", "versioning", "versions", "website", "websiteConfig"),
}
# XML 1.0 has no way to write these.
_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


class XmlRoutes:
    """Added last: its paths would take every other."""

    def __init__(self, store: ObjectStore, uploads: Uploads, *, project: str) -> None:
        self._store = store
        self._uploads = uploads
        self._project = project

    def add_to(self, router: Router) -> None:
        for method, handler in (
            ("GET", self.read_bucket),
            ("HEAD", self.head_bucket),
            ("PUT", self.put_bucket),
            ("POST", self.post_bucket),
            ("DELETE", self.delete_bucket),
        ):
            router.add(method, "/{bucket}", _whole(taken(handler)), dialect="xml")
            router.add(method, "/{bucket}/", _whole(taken(handler)), dialect="xml")
        router.add("GET", "/", self.list_buckets, dialect="xml")
        for method, handler in (
            ("GET", self.get),
            ("HEAD", self.head),
            ("PUT", self.put),
            ("POST", self.post),
            ("DELETE", self.delete),
        ):
            router.add(method, "/{bucket}/{object*}", _whole(taken(handler)), dialect="xml")

    # Buckets

    def list_buckets(self, _: HttpRequest) -> HttpAnswer:
        found = self._store.buckets(prefix="", start="", count=1000, project="")
        shown = [_tags("Bucket", Name=each.name, CreationDate=timestamp(each.created_us)) for each in found]
        return _xml("ListAllMyBucketsResult", _tag("Buckets", shown))

    def head_bucket(self, request: HttpRequest) -> HttpAnswer:
        self._store.bucket(request.parts["bucket"])
        return HttpAnswer()

    def put_bucket(self, request: HttpRequest) -> HttpAnswer:
        name = check_bucket_name(request.parts["bucket"])
        project = request.headers.get("x-goog-project-id") or self._project
        self._store.create_bucket(name, project=project, meta={})
        return HttpAnswer()

    def delete_bucket(self, request: HttpRequest) -> HttpAnswer:
        self._store.delete_bucket(request.parts["bucket"])
        return empty_answer()

    def post_bucket(self, request: HttpRequest) -> HttpAnswer:
        """Many objects are deleted at once. One that is not there is as good as deleted."""
        if "delete" not in request.query:
            raise invalid("POST to a bucket wants ?delete")
        bucket = self._store.bucket(request.parts["bucket"]).name
        root = _parsed(request.body())
        wanted = _elements(root, "Object")
        if not wanted or len(wanted) > _DELETED_MAX or not all(each.get("Key") for each in wanted):
            raise ApiError(400, "MalformedXML", f"From 1 to {_DELETED_MAX} objects are wanted, each with its Key.")
        told = [self._deleted(bucket, each) for each in wanted]
        if any(field.text and field.text.lower() == "true" for field in _named(root, "Quiet")):
            told = [tag for tag in told if not tag.startswith("<Deleted>")]
        return _xml("DeleteResult", *told)

    def _deleted(self, bucket: str, wanted: Mapping[str, str]) -> str:
        version = wanted.get("VersionId", "")
        fields = {"Key": wanted["Key"]} | ({"VersionId": version} if version else {})
        try:
            if version and not version.isdecimal():
                raise ApiError(400, "InvalidArgument", f"The version `{version}` is no generation.")
            generation = int(version) if version else None
            self._store.delete(bucket, wanted["Key"], generation=generation, only=Conditions())
        except ApiError as refused:
            if refused.status != 404:
                return _tags("Error", **fields, Code=refused.xml_code, Message=refused.message)
        return _tags("Deleted", **fields)

    def read_bucket(self, request: HttpRequest) -> HttpAnswer:
        name, query = request.parts["bucket"], request.query
        if "uploads" in query:
            raise ApiError(501, "notImplemented", "Uploads in parts that are under way are not listed here")
        if "location" in query:
            return _xml("LocationConstraint", escape(str(self._store.bucket(name).meta.get("location", "US"))))
        newer = query.get("list-type") == "2"
        token = query.get("continuation-token" if newer else "marker", "")
        after = query.get("start-after", "") if newer else token
        start = after.encode("utf-8", "replace") + b"\0" if after else b""
        listing = Listing(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=from_page_token(token) if newer and token else start,
            results_max=max(1, min(1000, request.number("max-keys") or 1000)),
        )
        page = self._store.page(name, listing)
        write = quote if query.get("encoding-type") == "url" else _plain
        told = [_tags("", Name=name, Prefix=write(listing.prefix), Delimiter=listing.delimiter)]
        told += [_tags("", MaxKeys=listing.results_max, IsTruncated="true" if page.following else "false")]
        if newer:
            told += [_tags("", KeyCount=len(page.objects) + len(page.prefixes))]
        if page.following:
            names = [stored.name for stored in page.objects[-1:]] + page.prefixes[-1:]
            following = page_token(page.following) if newer else write(max(names))
            told += [_tags("", **{"NextContinuationToken" if newer else "NextMarker": following})]
        told += [_contents(stored, write(stored.name)) for stored in page.objects]
        told += [_tags("CommonPrefixes", Prefix=write(prefix)) for prefix in page.prefixes]
        return _xml("ListBucketResult", *told)

    # Objects

    def get(self, request: HttpRequest) -> HttpAnswer:
        bucket, name = _where(request)
        if "uploadId" in request.query:
            return self._list_parts(request)
        stored, file = self._store.open(bucket, name, generation=request.number("generation"))
        try:
            header_conditions(request).check(stored, reading=True)
        except ApiError:
            file.close()
            raise
        return media_answer(request, stored, file)

    def head(self, request: HttpRequest) -> HttpAnswer:
        stored = self._store.get(*_where(request), generation=request.number("generation"))
        header_conditions(request).check(stored, reading=True)
        check_header_conditions(request, stored)
        return HttpAnswer(headers={**object_headers(stored), "Content-Length": str(stored.size)})

    def put(self, request: HttpRequest) -> HttpAnswer:
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
            check_sums(staged, announced_sums(request.headers))
            stored = self._store.put(bucket, name, staged, meta, conditions=only)
        return HttpAnswer(headers=_told(stored))

    def delete(self, request: HttpRequest) -> HttpAnswer:
        if "uploadId" in request.query:
            self._uploads.cancel(self._uploads.find("parts", request.query["uploadId"]))
            return empty_answer()
        generation, only = request.number("generation"), header_conditions(request)
        self._store.delete(*_where(request), generation=generation, only=only)
        return empty_answer()

    def post(self, request: HttpRequest) -> HttpAnswer:
        if "uploads" in request.query:
            return self._start_parts(request)
        if "uploadId" in request.query:
            return self._join(request)
        if request.headers.get("x-goog-resumable") == "start":
            only, meta = header_conditions(request), header_meta(request.headers)
            upload = self._uploads.start("session", *_where(request), meta, only)
            location = f"{request.base_url}{request.path}?upload_id={upload.id}"
            return HttpAnswer(status=201, headers={"Location": location})
        raise invalid("POST wants ?uploads, ?uploadId or x-goog-resumable: start")

    def _copy(self, request: HttpRequest) -> HttpAnswer:
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
        answer = _xml("CopyObjectResult", _tags("", LastModified=timestamp(stored.updated_us), ETag=xml_etag(stored)))
        answer.headers |= _told(stored)
        return answer

    # Uploads in parts

    def _start_parts(self, request: HttpRequest) -> HttpAnswer:
        bucket, name = _where(request)
        upload = self._uploads.start("parts", bucket, name, header_meta(request.headers), header_conditions(request))
        return _xml("InitiateMultipartUploadResult", _tags("", Bucket=bucket, Key=name, UploadId=upload.id))

    def _put_part(self, request: HttpRequest) -> HttpAnswer:
        if "x-goog-copy-source" in request.headers:
            # Google has no such call. Taken for a part that was sent it would be an empty one.
            raise ApiError(501, "notImplemented", "A part cannot be a copy; copy the object in one request.")
        upload = self._uploads.find("parts", request.query["uploadId"])
        number = request.number("partNumber")
        if number is None or not 1 <= number <= _PARTS_MAX:
            raise invalid(f"partNumber must be from 1 to {_PARTS_MAX}")
        with self._store.staging(request.pieces()) as staged:
            check_sums(staged, announced_sums(request.headers))
            self._uploads.put_part(upload, number, staged)
        sums = f"crc32c={crc32c_text(staged.crc32c)},md5={md5_text(staged.md5)}"
        return HttpAnswer(headers={"ETag": f'"{staged.md5.hex()}"', "x-goog-hash": sums})

    def _list_parts(self, request: HttpRequest) -> HttpAnswer:
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

    def _join(self, request: HttpRequest) -> HttpAnswer:
        upload = self._uploads.find("parts", request.query["uploadId"])
        there = {part.number: part for part in self._uploads.parts(upload)}
        wanted = [_checked(there, number, tag) for number, tag in _parts_of(request.body())]
        if not wanted or [part.number for part in wanted] != sorted({part.number for part in wanted}):
            raise ApiError(400, "InvalidPartOrder", "The parts must be in ascending order, each once.")
        only = header_conditions(request)
        stored = self._uploads.join(upload, wanted, only if only.generation_match is not None else upload.conditions)
        shown = _tags("", Bucket=stored.bucket, Key=stored.name, ETag=xml_etag(stored))
        answer = _xml("CompleteMultipartUploadResult", shown)
        answer.headers |= {name: value for name, value in _told(stored).items() if name != "ETag"}
        return answer


def _whole(handler: Handler) -> Handler:
    """For what is asked of a bucket or an object itself: to put its rights is not to put the object."""

    def answer(request: HttpRequest) -> HttpAnswer:
        if asked := sorted(_ASPECTS & request.query.keys()):
            raise ApiError(501, "notImplemented", f"`?{asked[0]}` of a bucket or an object is not kept here")
        return handler(request)

    return answer


def _where(request: HttpRequest) -> tuple[str, str]:
    return request.parts["bucket"], request.parts["object"]


def _told(stored: Stored) -> dict[str, str]:
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
    """With or without a namespace, as clients differ in it."""
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def _elements(root: ElementTree.Element, name: str) -> list[dict[str, str]]:
    return [{field.tag.rpartition("}")[2]: field.text or "" for field in element} for element in _named(root, name)]


def _parts_of(body: bytes) -> list[tuple[int, str]]:
    """Numbers and tags of the parts that a client wants joined."""
    parts = _elements(_parsed(body), "Part")
    if not all(part.get("PartNumber", "").isdecimal() for part in parts):
        raise ApiError(400, "MalformedXML", "A part has no PartNumber.")
    return [(int(part["PartNumber"]), part.get("ETag", "").strip('"')) for part in parts]


def _checked(there: Mapping[int, UploadPart], number: int, tag: str) -> UploadPart:
    part = there.get(number)
    if part is None or tag not in ("", part.md5.hex()):
        raise ApiError(400, "InvalidPart", f"Part {number} was not found, or its ETag is another.")
    return part


def _contents(stored: Stored, name: str) -> str:
    return _tags(
        "Contents",
        Key=name,
        Generation=stored.generation,
        MetaGeneration=stored.metageneration,
        LastModified=timestamp(stored.updated_us),
        ETag=xml_etag(stored),
        Size=stored.size,
    )


def _plain(text: str) -> str:
    return text


def _tags(outer: str, **fields: Any) -> str:
    inner = "".join(f"<{name}>{_written(value)}</{name}>" for name, value in fields.items())
    return f"<{outer}>{inner}</{outer}>" if outer else inner


def _written(value: object) -> str:
    return _UNWRITABLE.sub(lambda found: f"%{ord(found.group()):02X}", escape(str(value))).replace("\r", "&#13;")


def _tag(name: str, inner: Iterable[str]) -> str:
    return f"<{name}>{''.join(inner)}</{name}>"


def _xml(root: str, *inner: str) -> HttpAnswer:
    text = f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{_NAMESPACE}">{"".join(inner)}</{root}>'
    return HttpAnswer(headers={"Content-Type": "application/xml; charset=UTF-8"}, body=text.encode())
