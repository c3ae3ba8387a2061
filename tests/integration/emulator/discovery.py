"""Google's discovery documents, and a check of requests and responses against them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse

# The real gcloud sends these, but the documents do not contain them.
UNLISTED_PARAMETERS = {"$.xgafv", "includeFoldersAsPrefixes", "upload_id", "enableObjectRetention"}
UNLISTED_PARAMETERS |= {"returnPartialSuccess"}


@dataclass(frozen=True)
class Method:
    id: str
    verb: str
    pattern: re.Pattern[str]
    parameters: dict[str, dict[str, Any]]
    response: str | None
    request: str | None


class Description:
    """One API, from its document in google-api-python-client."""

    def __init__(self, name: str, *, base: str, skip: str = "") -> None:
        import googleapiclient

        documents = Path(googleapiclient.__file__).parent / "discovery_cache" / "documents"
        self._document = json.loads((documents / f"{name}.json").read_text(encoding="utf-8"))
        self._base, self._skip = base, skip
        self._methods = list(self._all(self._document))

    def _all(self, node: dict[str, Any]) -> Iterator[Method]:
        for method in node.get("methods", {}).values():
            paths = [self._base + method.get("flatPath", method["path"])]
            paths += [protocol["path"] for protocol in method.get("mediaUpload", {}).get("protocols", {}).values()]
            if method.get("useMediaDownloadService"):
                paths.append("/download" + paths[0])
            for path in paths:
                yield Method(
                    id=method["id"],
                    verb=method["httpMethod"],
                    pattern=re.compile(re.sub(r"\{\+?\w+\}", "[^/]+", path)),
                    parameters={**self._document["parameters"], **method.get("parameters", {})},
                    response=method.get("response", {}).get("$ref"),
                    request=method.get("request", {}).get("$ref"),
                )
        for below in node.get("resources", {}).values():
            yield from self._all(below)

    def find(self, request: HttpRequest) -> Method | None:
        verb = "POST" if "upload_id" in request.query else request.method
        fits = (m for m in self._methods if m.verb == verb and m.pattern.fullmatch(request.path))
        return next(fits, None)

    def problems(self, request: HttpRequest, response: HttpResponse, *, bodies: bool) -> Iterator[str]:
        """Yield the differences of a request and its response from the document."""
        method = self.find(request)
        if method is None:
            yield f"{request.method} {request.path} is in no API"
            return
        for name in set(request.query) - set(method.parameters) - UNLISTED_PARAMETERS:
            yield f"{method.id} has no parameter {name}"
        if bodies:
            yield from self._parameters(method, request)
        if request.parsed and bodies:
            if method.request is None:
                yield f"{method.id} takes no body, but got one"
            else:
                yield from self.mistakes(request.parsed, {"$ref": method.request}, f"{method.id} request")
        if not response.headers.get("Content-Type", "").startswith("application/json") or response.status >= 300:
            return
        if "x-goog-generation" in response.headers:
            return
        assert isinstance(response.body, bytes)
        if method.response is None:
            yield f"{method.id} has no response body, but got one"
        else:
            yield from self.mistakes(json.loads(response.body), {"$ref": method.response}, method.id)

    def _parameters(self, method: Method, request: HttpRequest) -> Iterator[str]:
        """Yield invalid parameters: wrong types, unknown enum values, missing parameters, unknown fields in masks."""
        for name, text in request.query.items():
            schema = method.parameters.get(name, {})
            if schema.get("type") == "boolean" and text not in ("true", "false", "True", "False"):
                yield f"{method.id}: {name} is not a boolean: {text}"
            if schema.get("type") == "integer" and not re.fullmatch(r"-?\d+", text):
                yield f"{method.id}: {name} is not a number: {text}"
            if "enum" in schema and text not in schema["enum"]:
                yield f"{method.id}: {name} is none of {schema['enum']}: {text}"
        for name, schema in method.parameters.items():
            if schema.get("required") and schema.get("location") == "query" and name not in request.query:
                yield f"{method.id} needs the parameter {name}"
        if "fields" in request.query and method.response is not None:
            mask = re.findall(r"[\w*-]+|[(),/]", request.query["fields"])
            yield from self._masked(mask, {"$ref": method.response}, f"{method.id} fields")

    def _masked(self, mask: list[str], schema: dict[str, Any], where: str) -> Iterator[str]:
        """Yield the fields of a mask such as `items(name,disks/source),nextPageToken` that the schema does not have.
        Consumes the mask up to its closing parenthesis."""
        current, at = schema, where
        while mask:
            word = mask.pop(0)
            if word == ")":
                return
            if word == ",":
                current, at = schema, where
            elif word == "(":
                yield from self._masked(mask, current, at)
            elif word != "/":
                below = self._below(current, word)
                if below is None:
                    yield f"{at} has no field {word}"
                current, at = below or {"type": "any", "additionalProperties": {}}, f"{at}/{word}"

    def _below(self, schema: dict[str, Any], name: str) -> dict[str, Any] | None:
        while "$ref" in schema or schema.get("type") == "array":
            schema = self._document["schemas"][schema["$ref"]] if "$ref" in schema else schema["items"]
        found = None if name == "*" else schema.get("properties", {}).get(name)
        below = found if found is not None else schema.get("additionalProperties")
        assert below is None or isinstance(below, dict)
        return below

    def mistakes(self, value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
        """Yield the places where a value differs from its schema."""
        schema = self._document["schemas"][schema["$ref"]] if "$ref" in schema else schema
        kind = schema.get("type", "any")
        if kind == "object":
            yield from self._object(value, schema, where)
        elif kind == "array":
            if not isinstance(value, list):
                yield f"{where} is not a list: {value!r}"
                return
            for number, item in enumerate(value):
                yield from self.mistakes(item, schema["items"], f"{where}[{number}]")
        elif kind == "string":
            if not isinstance(value, str) or not _formatted(value, schema.get("format")):
                yield f"{where} is not a {schema.get('format', 'string')}: {value!r}"
            if "enum" in schema and value not in schema["enum"]:
                yield f"{where} is none of {schema['enum']}: {value!r}"
        elif kind == "boolean" and not isinstance(value, bool):
            yield f"{where} is not a boolean: {value!r}"
        elif kind in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, int | float)):
            yield f"{where} is not a number: {value!r}"

    def _object(self, value: Any, schema: dict[str, Any], where: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where} is not an object: {value!r}"
            return
        known = schema.get("properties", {})
        for name, field in value.items():
            below = known.get(name) or schema.get("additionalProperties")
            if below is None:
                yield f"{where} has no field {name}"
            else:
                yield from self.mistakes(field, below, f"{where}.{name}")


def _formatted(text: str, form: str | None) -> bool:
    if form in ("int64", "uint64"):
        return re.fullmatch(r"-?\d+", text) is not None
    if form == "date-time":
        return re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", text) is not None
    return True


class Watching:
    """Collects the differences of all requests and responses of an endpoint from Google's documents."""

    def __init__(self, *, ours: bool = False) -> None:
        # Whether requests are checked completely, too. Tests of the server send invalid requests on purpose, but our
        # own code must not.
        self._ours = ours
        self._storage = Description("storage.v1", base="/storage/v1/")
        self._compute = Description("compute.v1", base="/compute/v1/")
        self._others = {
            name: Description(f"{name}.v1", base=f"/{name}/")
            for name in (
                "secretmanager",
                "iam",
                "cloudresourcemanager",
                "serviceusage",
                "cloudbilling",
                "file",
                "sqladmin",
                "oslogin",
            )
        }
        # Called between a request and its response.
        self.then: Callable[[HttpRequest, HttpResponse], None] | None = None
        self.problems: list[str] = []
        self.seen: set[str] = set()

    def taken(self) -> list[str]:
        """Return the problems since the last call."""
        found, self.problems = self.problems, []
        return found

    def __call__(self, request: HttpRequest, response: HttpResponse) -> None:
        self._check(request, response)
        if self.then is not None:
            self.then(request, response)

    def _check(self, request: HttpRequest, response: HttpResponse) -> None:
        if request.path.startswith("/compute/v1/"):
            api = self._compute
        elif (other := request.path.split("/")[1]) in self._others:
            api = self._others[other]
        elif re.match(r"(/resumable)?(/upload|/download)?/storage/v1/", request.path):
            api = self._storage
        else:
            return
        if response.status in (404, 405) and api.find(request) is None and not self._ours:
            return
        self.problems += api.problems(request, response, bodies=self._ours)
        if (method := api.find(request)) is not None and response.status < 300:
            self.seen.add(method.id)
