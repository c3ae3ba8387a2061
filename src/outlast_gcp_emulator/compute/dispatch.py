"""The way of a request to a resource class: parsing, rate limits, authorization, and errors of the local cloud."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Iterable
from typing import Any

from outlast.errors import Denied, NotFound, OutlastError, Throttled
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import GLOBAL, ROOT, check_place, render
from outlast_gcp_emulator.compute.resource import Handler, RouteEntry
from outlast_gcp_emulator.errors import ApiError, not_found
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, json_response
from outlast_gcp_emulator.router import Router

# A token may follow the host.
_URL = re.compile(r"https?://[^/]+(?:/[^/]+)?/compute/[a-z0-9]+/(projects/.*)")
_SCOPES = {"compute", "cloud-platform"}


class Dispatcher:
    """Wraps the handlers of the resource classes for the router."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._limits = ZoneRateLimits(context)

    def add_routes(self, router: Router, entries: Iterable[RouteEntry]) -> None:
        """Add the entries below every version of the Compute API."""
        for method, path, handler in entries:
            respond = functools.partial(self._respond, handler)
            router.add(method, f"/compute/{{version}}/projects/{{project}}{path}", respond)
            # For clients that append only the project to the server's address.
            router.add(method, f"/projects/{{project}}{path}", respond)
        # Else the XML API would treat the path as an object in a bucket `compute`.
        router.add("*", "/compute/{rest*}", _unknown_path)

    def _respond(self, handler: Handler, request: HttpRequest) -> HttpResponse:
        call = _parse_call(request)
        self._limits.take(call.scope)
        self.check_token(request)
        earlier = self._context.operations.of_request(call.project, call.query.get("requestId", ""))
        if earlier is not None:
            return json_response(render(earlier, call.base))
        try:
            doc = handler(call)
        except OutlastError as problem:
            raise _api_error(problem) from problem
        if request.method == "DELETE" and not doc:
            return HttpResponse(status=204)
        return json_response(render(doc, call.base))

    def check_token(self, request: HttpRequest) -> None:
        """Check that the scopes of a machine allow its request. The owner of the endpoint may do everything."""
        machine = request.caller.machine
        if not machine:
            return
        for _, doc in self._context.store.each("instances"):
            if doc.get("_machine") == machine:
                accounts = doc.get("serviceAccounts", [])
                scopes = {scope.rpartition("/")[2] for account in accounts for scope in account["scopes"]}
                allowed = _SCOPES | ({"compute.readonly"} if request.method == "GET" else set())
                if not scopes & allowed:
                    raise ApiError(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
                return
        # A machine that is being created has a disk before it has an instance; a deleted one has neither.
        if not any(doc.get("_machine") == machine for _, doc in self._context.store.each("disks")):
            raise ApiError(401, "authError", f"The machine {machine} of this token does not exist any more.")


class ZoneRateLimits:
    """Requests per second of a zone, as set by `outlast local set ZONE --rate`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        # By zone: the rate, the requests left, and when they were counted.
        self._left: dict[str, tuple[float, float, float]] = {}

    def take(self, scope: str) -> None:
        """Count one request. Raises ApiError above the rate."""
        zone = scope.removeprefix("zones/")
        rate = self._context.cloud.zone_settings().get(zone, {}).get("rate") if scope.startswith("zones/") else None
        if rate is None:
            return
        full = max(1.0, rate)
        with self._lock:
            now = time.monotonic()
            counted_rate, left, counted_at = self._left.get(zone, (rate, full, now))
            # A changed rate starts with a full allowance.
            left = full if counted_rate != rate else min(full, left + (now - counted_at) * rate)
            self._left[zone] = (rate, left - 1.0 if left >= 1.0 else left, now)
        if left < 1.0 or rate == 0:
            message = "Rate Limit Exceeded: too many requests for this zone, try again later"
            raise ApiError(429, "rateLimitExceeded", message, headers={"Retry-After": "1"})


def _unknown_path(request: HttpRequest) -> HttpResponse:
    raise not_found(f"{request.method} {request.path} is not supported")


def _parse_call(request: HttpRequest) -> Call:
    parts = request.parts
    scope = GLOBAL if "/global/" in f"{request.path}/" else ""
    for kind in ("zone", "region"):
        if kind in parts:
            scope = f"{kind}s/{parts[kind]}"
    call = Call(
        project=parts["project"],
        scope=scope,
        name=parts.get("name") or request.query.get("autoscaler", ""),
        query=request.query,
        body=_stored_links(request.json()) if request.method != "GET" else {},
        base=_links_base(request, parts.get("version", "v1")),
    )
    check_place(call.scope, call.project)
    return call


def _links_base(request: HttpRequest, version: str) -> str:
    """Return the start of the links in a response: this server's address, which a client may follow.

    gcloud follows no link, but filters lists on its side by links in Google's form.
    """
    if "google-cloud-sdk" in request.headers.get("user-agent", ""):
        return f"https://www.googleapis.com/compute/{version}"
    return f"{request.base_url}/compute/{version}"


def _stored_links(value: Any) -> Any:
    """Convert links with an address to the stored form, except in users' metadata."""
    if isinstance(value, dict):
        return {name: inner if name == "metadata" else _stored_links(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_stored_links(inner) for inner in value]
    if isinstance(value, str) and (found := _URL.fullmatch(value)):
        return ROOT + found[1]
    return value


def _api_error(problem: OutlastError) -> ApiError:
    match problem:
        case NotFound():
            return ApiError(404, "notFound", problem.message)
        case Denied():
            return ApiError(403, "forbidden", problem.message)
        case Throttled():
            return ApiError(429, "rateLimitExceeded", problem.message)
        case _:
            return ApiError(503, "backendError", problem.message)
