"""The routes: finds the handler of a request, renders its errors, and injects faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from outlast_gcp_emulator.errors import ApiError, Dialect, invalid, not_found
from outlast_gcp_emulator.faults import Fault, InjectedFaults, Reset
from outlast_gcp_emulator.fields import masked
from outlast_gcp_emulator.http_types import HttpRequest, HttpResponse, compress_response, error_response

# Path parameters that may contain slashes.
_WITH_SLASHES = frozenset({"object", "target", "rest", "api", "path"})

Handler = Callable[[HttpRequest], HttpResponse]
Watch = Callable[[HttpRequest, HttpResponse], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Method and path pattern of requests. `host` is a name without its port; empty for any."""

    method: str
    pattern: re.Pattern[str]
    # None: matching requests get 404, and no later route is tried.
    handler: Handler | None
    dialect: Dialect
    host: str


class Router:
    """The table of routes. The first match is taken, so specific routes are added first.

    `watch` receives every request with its response before the client does, also those inside of batches.
    """

    def __init__(self, *, watch: Watch | None = None) -> None:
        self.faults = InjectedFaults()
        # Raises ApiError for a request that the conditions of the cloud refuse.
        self.gate: Callable[[HttpRequest], None] = lambda request: None
        self._watch = watch
        self._routes: list[Route] = []
        self._short: dict[str, str] = {}

    def add(self, method: str, path: str, handler: Handler, *, dialect: Dialect = "json", host: str = "") -> None:
        """Add a route. In `/b/{bucket}/o/{object*}` a name matches one segment, with a star all remaining ones."""
        pattern = path_pattern(path)
        self._routes.append(Route(method=method, pattern=pattern, handler=handler, dialect=dialect, host=host))

    def add_methods(self, path: str, **handlers: Handler) -> None:
        """Add a route for each method, as in `GET=handler`."""
        for method, handler in handlers.items():
            self.add(method, path, handler)

    def shorten(self, path: str, short: str) -> None:
        """Treat `short`, and everything below it, as `path`, also in faults and for `watch`."""
        self._short[short] = path

    def close(self, path: str) -> None:
        """Exclude a path from the routes that are added later."""
        pattern = path_pattern(path)
        self._routes.append(Route(method="*", pattern=pattern, handler=None, dialect="json", host=""))

    def respond(self, request: HttpRequest) -> HttpResponse:
        """Return the handler's response, or its error in the dialect of the route. Raises Reset."""
        dialect = _accepted_dialect(request)
        request.path = self._expand(request.path)
        try:
            dialect, handler = self._find(request)
            response = self._handle(handler, request)
            if dialect == "json" and "fields" in request.query:
                response = masked(response, request.query["fields"])
        except ApiError as error:
            response = error_response(error, dialect)
        except Reset:
            if self._watch is not None:
                self._watch(request, HttpResponse(status=503))
            raise
        if self._watch is not None:
            self._watch(request, response)
        compress_response(request, response)
        return response

    def _expand(self, path: str) -> str:
        for short, full in self._short.items():
            if path == short or path.startswith(f"{short}/"):
                return full + path.removeprefix(short)
        return path

    def _handle(self, handler: Handler, request: HttpRequest) -> HttpResponse:
        fault = self.faults.take(request)
        if fault is not None and not fault.after_work:
            raise _injected(fault)
        self.gate(request)
        response = handler(request)
        if fault is not None:
            raise _injected(fault)
        return response

    def _find(self, request: HttpRequest) -> tuple[Dialect, Handler]:
        host = request.headers.get("host", "").rpartition(":")[0]
        other_method = False
        for route in self._routes:
            found = route.pattern.fullmatch(request.path)
            if found is None or route.host not in ("", host):
                continue
            if route.method not in (request.method, "*"):
                other_method = True
                continue
            if route.handler is None:
                break
            request.parts = {name: unquote(text) for name, text in found.groupdict().items()}
            _check_names(request.parts)
            return route.dialect, route.handler
        if other_method:
            raise ApiError(405, "httpMethodNotAllowed", f"{request.method} is not allowed for {request.path}")
        raise not_found(f"Not Found: {request.path}")


def _check_names(parts: Mapping[str, str]) -> None:
    """Raise ApiError for names that cannot be file names, as most become. Names of objects may have slashes."""
    for kind, name in parts.items():
        if kind not in _WITH_SLASHES and (name in (".", "..") or "/" in name or "\0" in name):
            raise invalid(f"Invalid resource field value: `{name}` cannot be the name of a {kind}")


def path_pattern(pattern: str) -> re.Pattern[str]:
    text = re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>[^/]+)", re.escape(pattern))
    return re.compile(re.sub(r"\\\{([a-z_]+)\\\*\\\}", r"(?P<\1>.+)", text), re.DOTALL)


def _injected(fault: Fault) -> Exception:
    return Reset() if fault.status is None else fault.error()


def _accepted_dialect(request: HttpRequest) -> Dialect:
    return "xml" if "xml" in request.headers.get("accept", "") else "json"
