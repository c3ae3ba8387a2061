"""Injected faults: requests that fail, and responses that are lost after the work was done."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase

from outlast_gcp_emulator.errors import ApiError
from outlast_gcp_emulator.http_types import HttpRequest

_REASONS = {
    401: ("authError", "Invalid Credentials"),
    403: ("forbidden", "The caller does not have permission"),
    404: ("notFound", "Not Found"),
    409: ("conflict", "The resource is in use by another request"),
    429: ("rateLimitExceeded", "The rate of requests is too high"),
    500: ("internalError", "We encountered an internal error. Please try again."),
    503: ("backendError", "The service is unavailable now. Please try again."),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Fails the next `times` matching requests with `status`. Without a status it resets the connection."""

    # A shell pattern for the percent-encoded path, with or without the query: `/storage/v1/b/*/o/*`, `*upload_id=*`.
    path: str = "*"
    method: str = "*"
    status: int | None = None
    reason: str = ""
    message: str = ""
    # The request is carried out, and only its response is lost.
    after_work: bool = False
    times: int = 1

    def matches(self, request: HttpRequest, target: str) -> bool:
        matches_path = fnmatchcase(request.path, self.path) or fnmatchcase(target, self.path)
        return matches_path and fnmatchcase(request.method, self.method)

    def error(self) -> ApiError:
        assert self.status is not None
        reason, message = _REASONS.get(self.status, ("injected", "An injected fault"))
        return ApiError(self.status, self.reason or reason, self.message or message)


class Reset(Exception):
    """The connection is reset without a response."""


class InjectedFaults:
    """The faults that are waiting. May be used from any thread while requests are served."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Fault, list[None]]] = []
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.append((fault, [None] * fault.times))

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def left(self) -> int:
        """Return how many requests are still to fail."""
        with self._lock:
            return sum(len(charges) for _, charges in self._waiting)

    def take(self, request: HttpRequest) -> Fault | None:
        """Return the first fault that matches, and use it up once."""
        if not self._waiting:
            return None
        query = "&".join(f"{name}={value}" for name, value in request.query.items())
        target = f"{request.path}?{query}" if query else request.path
        with self._lock:
            for fault, charges in self._waiting:
                if charges and fault.matches(request, target):
                    charges.pop()
                    return fault
        return None
