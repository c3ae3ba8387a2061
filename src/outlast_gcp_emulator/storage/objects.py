"""Objects in the JSON API: get, list, delete, change, copy, rewrite, compose and move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlast_gcp_emulator.errors import ApiError, invalid, required
from outlast_gcp_emulator.http_types import (
    PIECE_BYTES,
    HttpRequest,
    HttpResponse,
    empty_response,
    json_response,
    parse_number,
)
from outlast_gcp_emulator.router import Router
from outlast_gcp_emulator.storage.listing import from_page_token, page_token
from outlast_gcp_emulator.storage.media import media_response
from outlast_gcp_emulator.storage.request_params import conditions_of
from outlast_gcp_emulator.storage.resources import OBJECT_FIELDS, object_resource, patched, settable
from outlast_gcp_emulator.storage.store import ObjectStore
from outlast_gcp_emulator.storage.values import Conditions, ObjectQuery, StoredObject

COMPOSE_SOURCES_MAX = 32
_REWRITE_BYTES_MIN = 1024 * 1024
_OBJECT = "/storage/v1/b/{bucket}/o/{object}"
_TARGET = "b/{target_bucket}/o/{target}"


class ObjectRoutes:
    """Handlers for objects, except for their creation."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def add_to(self, router: Router) -> None:
        router.add("GET", "/storage/v1/b/{bucket}/o", self.page)
        router.add_methods(_OBJECT, GET=self.get, DELETE=self.delete, PATCH=self.patch, PUT=self.update)
        router.add("GET", f"/download{_OBJECT}", self.get)
        router.add("POST", f"{_OBJECT}/compose", self.compose)
        router.add("POST", f"{_OBJECT}/copyTo/{_TARGET}", self.copy)
        router.add("POST", f"{_OBJECT}/rewriteTo/{_TARGET}", self.rewrite)
        router.add("POST", f"{_OBJECT}/moveTo/o/{{target}}", self.move)

    def page(self, request: HttpRequest) -> HttpResponse:
        query = request.query
        count = request.number("maxResults")
        token = query.get("pageToken", "")
        start = query.get("startOffset", "").encode("utf-8", "replace")
        wanted = ObjectQuery(
            prefix=query.get("prefix", ""),
            delimiter=query.get("delimiter", ""),
            start=max(start, from_page_token(token)) if token else start,
            end=query.get("endOffset", "").encode("utf-8", "replace"),
            results_max=max(1, min(1000, 1000 if count is None else count)),
            trailing_delimiter=request.flag("includeTrailingDelimiter"),
            glob=query.get("matchGlob", ""),
        )
        page = self._store.page(request.parts["bucket"], wanted)
        shown: dict[str, Any] = {"kind": "storage#objects"}
        if page.following:
            shown["nextPageToken"] = page_token(page.following)
        if page.prefixes:
            shown["prefixes"] = page.prefixes
        if page.objects:
            shown["items"] = [object_resource(stored, request.base_url) for stored in page.objects]
        return json_response(shown)

    def get(self, request: HttpRequest) -> HttpResponse:
        bucket, name = request.parts["bucket"], request.parts["object"]
        generation, only = request.number("generation"), conditions_of(request)
        if request.query.get("alt") == "media":
            stored, file = self._store.open(bucket, name, generation=generation)
            try:
                only.check(stored, reading=True)
            except ApiError:
                file.close()
                raise
            return media_response(request, stored, file)
        stored = self._store.get(bucket, name, generation=generation)
        only.check(stored, reading=True)
        return _shown(request, stored)

    def delete(self, request: HttpRequest) -> HttpResponse:
        generation, only = request.number("generation"), conditions_of(request)
        self._store.delete(request.parts["bucket"], request.parts["object"], generation=generation, only=only)
        return empty_response()

    def patch(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        return self._change(request, lambda meta: patched(meta, given, OBJECT_FIELDS))

    def update(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        return self._change(request, lambda _: settable(given, OBJECT_FIELDS))

    def _change(self, request: HttpRequest, change: Any) -> HttpResponse:
        generation, only = request.number("generation"), conditions_of(request)
        where = (request.parts["bucket"], request.parts["object"])
        return _shown(request, self._store.change(*where, change, generation=generation, only=only))

    # Several objects

    def copy(self, request: HttpRequest) -> HttpResponse:
        return _shown(request, self._copy(request, request.json()))

    def move(self, request: HttpRequest) -> HttpResponse:
        source = (request.parts["bucket"], request.parts["object"], None)
        stored = self._store.copy(
            source,
            (request.parts["bucket"], request.parts["target"]),
            lambda meta: meta,
            source_only=conditions_of(request, source=True),
            target_only=conditions_of(request),
            move=True,
        )
        return _shown(request, stored)

    def rewrite(self, request: HttpRequest) -> HttpResponse:
        """Copy in as many calls as the client requests. The body is shared, so only the last call does the work."""
        given = request.json()
        generation = request.number("sourceGeneration")
        source = self._store.get(request.parts["bucket"], request.parts["object"], generation=generation)
        done = _rewritten(request, source)
        progress: dict[str, Any] = {"kind": "storage#rewriteResponse", "objectSize": str(source.size)}
        progress |= {"totalBytesRewritten": str(done), "done": done == source.size}
        if done < source.size:
            return json_response({**progress, "rewriteToken": f"{source.generation}.{done}"})
        return json_response({**progress, "resource": object_resource(self._copy(request, given), request.base_url)})

    def _copy(self, request: HttpRequest, given: Mapping[str, Any]) -> StoredObject:
        parts = request.parts
        # Google's rule: metadata in the request replaces all metadata of the source.
        new = settable(given, OBJECT_FIELDS) if given else None
        return self._store.copy(
            (parts["bucket"], parts["object"], request.number("sourceGeneration")),
            (parts["target_bucket"], parts["target"]),
            lambda meta: meta if new is None else new,
            source_only=conditions_of(request, source=True),
            target_only=conditions_of(request),
        )

    def compose(self, request: HttpRequest) -> HttpResponse:
        given = request.json()
        sources = given.get("sourceObjects")
        if not isinstance(sources, list) or not 1 <= len(sources) <= COMPOSE_SOURCES_MAX:
            raise invalid(f"The number of source components must be from 1 to {COMPOSE_SOURCES_MAX}.")
        bucket, name = request.parts["bucket"], request.parts["object"]
        found = [self._source(bucket, source) for source in sources]
        # Checksums in the destination are ignored: some clients send those of a component.
        destination = given.get("destination")
        meta = settable(destination, OBJECT_FIELDS) if isinstance(destination, dict) else {}
        if "contentType" not in meta and found[0].meta.get("contentType"):
            meta["contentType"] = found[0].meta["contentType"]
        with self._store.staging(self._read_all(found)) as staged:
            stored = self._store.put(
                bucket,
                name,
                staged,
                meta,
                conditions=conditions_of(request),
                components=sum(source.components or 1 for source in found),
            )
        return _shown(request, stored)

    def _source(self, bucket: str, source: Any) -> StoredObject:
        if not isinstance(source, dict) or not isinstance(source.get("name"), str):
            raise required("sourceObjects.name")
        only = source.get("objectPreconditions")
        wanted = _body_number(only, "ifGenerationMatch") if isinstance(only, dict) else None
        stored = self._store.get(bucket, source["name"], generation=_body_number(source, "generation"))
        Conditions(generation_match=wanted).check(stored)
        return stored

    def _read_all(self, sources: list[StoredObject]) -> Iterator[bytes]:
        for source in sources:
            _, file = self._store.open(source.bucket, source.name, generation=source.generation)
            with file:
                while piece := file.read(PIECE_BYTES):
                    yield piece


def _rewritten(request: HttpRequest, source: StoredObject) -> int:
    """Return how many bytes are copied after this call."""
    per_call = request.number("maxBytesRewrittenPerCall")
    if per_call is None:
        return source.size
    if per_call < _REWRITE_BYTES_MIN:
        raise invalid(f"Invalid value for: maxBytesRewrittenPerCall: at least {_REWRITE_BYTES_MIN}")
    token = request.query.get("rewriteToken", "")
    generation, _, before = token.partition(".")
    if token and generation != str(source.generation):
        raise invalid("The rewriteToken belongs to another object.")
    return min(source.size, (parse_number("rewriteToken", before) if token else 0) + per_call)


def _body_number(given: Mapping[str, Any], name: str) -> int | None:
    """Return a 64-bit number of a body, which JSON contains as a string."""
    return parse_number(name, str(given[name])) if given.get(name) is not None else None


def _shown(request: HttpRequest, stored: StoredObject) -> HttpResponse:
    return json_response(object_resource(stored, request.base_url))
