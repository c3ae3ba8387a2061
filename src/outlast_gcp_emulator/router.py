"""Which handler answers which request, what refusals look like there, and where faults strike. Knows no API."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from outlast_gcp_emulator.errors import ApiError, Dialect, invalid, not_found
from outlast_gcp_emulator.faults import Fault, InjectedFaults, Reset
from outlast_gcp_emulator.fields import masked
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, zip_answer

# The parts of paths that name objects, and what a star takes.
_WITH_SLASHES = frozenset({"object", "target", "rest", "api", "path"})

Handler = Callable[[HttpRequest], HttpAnswer]
Watch = Callable[[HttpRequest, HttpAnswer], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """Requests of one shape. `host` is a name without its port; empty for any."""

    method: str
    pattern: re.Pattern[str]
    # None: what comes here and fits no other route is nobody's.
    handler: Handler | None
    dialect: Dialect
    host: str


class Router:
    """The table of routes; the first that fits is taken, so the narrow ones are added first.

    `watch` sees every request with its answer, those inside of batches, too, before the client does.
    """

    def __init__(self, *, watch: Watch | None = None) -> None:
        self.faults = InjectedFaults()
        self._watch = watch
        self._routes: list[Route] = []
        self._short: dict[str, str] = {}

    def add(self, method: str, path: str, handler: Handler, *, dialect: Dialect = "json", host: str = "") -> None:
        """`path` is like `/b/{bucket}/o/{object*}`: a name takes one segment, with a star all that are left."""
        pattern = path_pattern(path)
        self._routes.append(Route(method=method, pattern=pattern, handler=handler, dialect=dialect, host=host))

    def shorten(self, path: str, short: str) -> None:
        """`short`, and all below it, stands for `path`: in faults and to who watches, too."""
        self._short[short] = path

    def close(self, path: str) -> None:
        """Routes that are added later take nothing of this."""
        pattern = path_pattern(path)
        self._routes.append(Route(method="*", pattern=pattern, handler=None, dialect="json", host=""))

    def answer(self, request: HttpRequest) -> HttpAnswer:
        """The handler's answer, or its refusal in the dialect of the route. Raises Reset."""
        dialect = _guess(request)
        request.path = self._in_full(request.path)
        try:
            dialect, handler = self._find(request)
            answer = self._work(handler, request)
            if dialect == "json" and "fields" in request.query:
                answer = masked(answer, request.query["fields"])
        except ApiError as refused:
            answer = _refusal(refused, dialect)
        except Reset:
            if self._watch is not None:
                self._watch(request, HttpAnswer(status=503))
            raise
        if self._watch is not None:
            self._watch(request, answer)
        zip_answer(request, answer)
        return answer

    def _in_full(self, path: str) -> str:
        for short, full in self._short.items():
            if path == short or path.startswith(f"{short}/"):
                return full + path.removeprefix(short)
        return path

    def _work(self, handler: Handler, request: HttpRequest) -> HttpAnswer:
        fault = self.faults.strike(request)
        if fault is not None and not fault.after_work:
            return _struck(fault)
        answer = handler(request)
        return answer if fault is None else _struck(fault)

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
        raise not_found(f"Not Found: there is no {request.path} here")


def _check_names(parts: Mapping[str, str]) -> None:
    """Most names become those of files; only names in a bucket have slashes, and these never do."""
    for kind, name in parts.items():
        if kind not in _WITH_SLASHES and (name in (".", "..") or "/" in name or "\0" in name):
            raise invalid(f"Invalid resource field value: `{name}` cannot be the name of a {kind}")


def path_pattern(pattern: str) -> re.Pattern[str]:
    text = re.sub(r"\\\{([a-z_]+)\\\}", r"(?P<\1>[^/]+)", re.escape(pattern))
    return re.compile(re.sub(r"\\\{([a-z_]+)\\\*\\\}", r"(?P<\1>.+)", text), re.DOTALL)


def _struck(fault: Fault) -> HttpAnswer:
    if fault.status is None:
        raise Reset
    raise fault.refusal()


def _refusal(refused: ApiError, dialect: Dialect) -> HttpAnswer:
    kind, body = refused.body(dialect)
    return HttpAnswer(status=refused.status, headers={"Content-Type": kind, **refused.headers}, body=body)


def _guess(request: HttpRequest) -> Dialect:
    return "xml" if "xml" in request.headers.get("accept", "") else "json"
