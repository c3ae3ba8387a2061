"""What Google says when it refuses, as our own errors: HTTP answers and operations alike. Asks nobody."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.errors import (
    BadRequest,
    CloudError,
    CloudUnreachable,
    Denied,
    NoCapacity,
    NotFound,
    OverQuota,
    Throttled,
)

Doc = dict[str, Any]

LOGIN = "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key"
_SETUP = "`outlast setup gcp` prints what is needed, and `outlast doctor` says what is missing"


class AlreadyExists(BadRequest):
    """A resource of that name is there: ours, if an answer was lost, or somebody else's."""


class Stale(Throttled):
    """Somebody else changed the resource between our look and our change."""


class NotReady(Throttled):
    """The resource is in the middle of something."""


_QUOTA = re.compile(r"QUOTA", re.IGNORECASE)
_STOCKOUT = re.compile(r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|does not have enough resources available", re.IGNORECASE)
_RATE = {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "concurrentLimitExceeded"}
_DISABLED = {"accessNotConfigured", "SERVICE_DISABLED"}
_MISSING = {"RESOURCE_NOT_FOUND", "notFound"}
_THERE = {"RESOURCE_ALREADY_EXISTS", "alreadyExists", "ALREADY_EXISTS"}
_BUSY = {"resourceNotReady", "RESOURCE_NOT_READY", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE_TEMPORARILY"}
_PASSING = {"INTERNAL_ERROR", "backendError", "internalError", "SERVICE_UNAVAILABLE"}


def of_answer(status: int, doc: object, what: str) -> CloudError:
    """The error that an answer stands for; `what` is what was tried."""
    error = doc.get("error") if isinstance(doc, dict) else None
    error = error if isinstance(error, dict) else {}
    details: list[Mapping[str, Any]] = [*error.get("errors", []), *error.get("details", [])]
    reasons = {str(one.get("reason", "")) for one in details} | {str(error.get("status", ""))}
    message = " ".join(str(error.get("message") or f"the answer is {status}").split())
    return _sorted(status, reasons, message, what)


def of_operation(operation: Doc, what: str) -> CloudError | None:
    """The error that an operation ended in; None if it ended well. It counts as much as a refused request."""
    errors = operation.get("error", {}).get("errors", [])
    if not errors:
        return None
    codes = {str(one.get("code", "")) for one in errors}
    message = " ".join(str(errors[0].get("message") or ", ".join(sorted(codes))).split())
    return _sorted(int(operation.get("httpErrorStatusCode") or 400), codes, message, what)


def _sorted(status: int, reasons: set[str], message: str, what: str) -> CloudError:
    told = f"{what}: {message}"
    if any(map(_STOCKOUT.search, (*reasons, message))):
        return NoCapacity(told, hint="the next zone is tried; name more of them with --zone")
    if reasons & _RATE or status == 429:
        return Throttled(told, hint="it is tried again later")
    if any(map(_QUOTA.search, reasons)) or "quota" in message.lower():
        return OverQuota(told, hint="ask for more quota at https://console.cloud.google.com/iam-admin/quotas")
    if reasons & _MISSING or status == 404:
        return NotFound(told)
    if reasons & _THERE:
        return AlreadyExists(told)
    if reasons & _BUSY:
        return NotReady(told)
    if status in (409, 412):
        return Stale(told)
    return _by_status(status, reasons, told)


def _by_status(status: int, reasons: set[str], told: str) -> CloudError:
    if status == 401:
        return Denied(told, hint=LOGIN)
    if reasons & _DISABLED:
        return Denied(told, hint="enable the API in your project; `outlast setup gcp --apply` does")
    if status == 403 or "PERMISSIONS_ERROR" in reasons:
        return Denied(told, hint=_SETUP)
    if status >= 500 or reasons & _PASSING or status == 408:
        return CloudUnreachable(told, hint="it is tried again later")
    return BadRequest(told)


def no_type_here(problem: BadRequest) -> bool:
    """Whether a refusal says that this zone, and maybe only this zone, lacks the machine type or GPU."""
    text = problem.message
    return ("machineType" in text or "acceleratorType" in text) and ("does not exist" in text or "not found" in text)
