"""Translates Google's errors, in HTTP responses and in operations, into ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from outlast.errors import (
    AlreadyExists,
    BadRequest,
    CloudError,
    CloudUnreachable,
    Denied,
    NoCapacity,
    NoQuota,
    NotFound,
    OverQuota,
    PolicyDenied,
    Throttled,
)

Doc = dict[str, Any]

LOGIN = "log in with `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key"
_SETUP = "`outlast setup gcp` lists the required rights, and `outlast doctor` the missing ones"


class Stale(Throttled):
    """Another client changed the resource between our read and our write."""


class ServiceDisabled(Denied):
    """The project has not enabled the API, or enabled it seconds ago."""


class NotReady(Throttled):
    """Another operation on the resource is in progress."""


_QUOTAS = "https://console.cloud.google.com/iam-admin/quotas"
_QUOTA = re.compile(r"QUOTA", re.IGNORECASE)
_STOCKOUT = re.compile(r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|does not have enough resources available", re.IGNORECASE)
# Operations that fail because the zone has no machine left, or preempted it while it was created.
_NO_MACHINE = {"UNSUPPORTED_OPERATION", "insufficientCapacity", "INSUFFICIENT_CAPACITY"}
_ZERO_QUOTA = re.compile(r"Quota '?(\w+)'? exceeded\.?\s+Limit: 0(\.0)? globally", re.IGNORECASE)
_QUOTA_PROJECT = re.compile(r"requires a quota project", re.IGNORECASE)
_CONSTRAINT = re.compile(r"constraints?[ :/]*(?:constraints/)?([a-z]+\.\w+(?:\.\w+)*)", re.IGNORECASE)
# Several constraints at once, and those that an organisation wrote, which Google refuses with 400 or 412.
_POLICIES = re.compile(r"custom org polic|constraints were violated", re.IGNORECASE)
_RATE = {"RESOURCE_OPERATION_RATE_EXCEEDED"}
_RATE |= {"rateLimitExceeded", "userRateLimitExceeded", "RATE_LIMIT_EXCEEDED", "concurrentLimitExceeded"}
_DISABLED = {"accessNotConfigured", "SERVICE_DISABLED"}
_MISSING = {"RESOURCE_NOT_FOUND", "notFound"}
_THERE = {"RESOURCE_ALREADY_EXISTS", "alreadyExists", "ALREADY_EXISTS"}
_BUSY = {"resourceNotReady", "RESOURCE_NOT_READY", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE_TEMPORARILY"}
_PASSING = {"INTERNAL_ERROR", "backendError", "internalError", "SERVICE_UNAVAILABLE"}


def from_response(status: int, doc: object, what: str) -> CloudError:
    """Return the error of a failed response; `what` describes the request."""
    error = doc.get("error") if isinstance(doc, dict) else None
    error = error if isinstance(error, dict) else {}
    details: list[Mapping[str, Any]] = [*error.get("errors", []), *error.get("details", [])]
    reasons = {str(one.get("reason", "")) for one in details} | {str(error.get("status", ""))}
    message = str(error.get("message") or f"HTTP status {status}")
    if _POLICIES.search(message):  # the details name them
        message = " ".join(dict.fromkeys([message, *(str(one.get("message", "")) for one in details)]))
    return _classify(status, reasons, " ".join(message.split()), what)


def from_operation(operation: Doc, what: str) -> CloudError | None:
    """Return the error of a failed operation; None if it succeeded."""
    errors = operation.get("error", {}).get("errors", [])
    if not errors:
        return None
    codes = {str(one.get("code", "")) for one in errors}
    message = " ".join(str(errors[0].get("message") or ", ".join(sorted(codes))).split())
    return _classify(int(operation.get("httpErrorStatusCode") or 400), codes, message, what)


def _classify(status: int, reasons: set[str], message: str, what: str) -> CloudError:
    text = f"{what}: {message}"
    if _QUOTA_PROJECT.search(message):
        return Denied(text, hint="set a quota project: `gcloud auth application-default set-quota-project PROJECT`")
    if found := _ZERO_QUOTA.search(message):
        return NoQuota(text, hint=f"request quota `{found[1]}` at {_QUOTAS}, or run on another cloud")
    if reasons & _NO_MACHINE or any(map(_STOCKOUT.search, (*reasons, message))):
        return NoCapacity(text, hint="the next zone is tried; name more of them with --zone")
    if reasons & _RATE or status == 429:
        return Throttled(text, hint="it is retried later")
    if any(map(_QUOTA.search, reasons)) or "quota" in message.lower():
        return OverQuota(text, hint=f"request more quota at {_QUOTAS}")
    if reasons & _MISSING or status == 404:
        return NotFound(text)
    if reasons & _THERE:
        return AlreadyExists(text)
    if reasons & _BUSY:
        return NotReady(text)
    # Some services answer with 400 or 403; their text names the constraint in full.
    if (status == 412 or "constraints/" in message.lower()) and (policy := _CONSTRAINT.search(message)):
        hint = f"ask the administrator of your organisation about the constraint `{policy[1]}`"
        return PolicyDenied(text, hint=hint)
    if _POLICIES.search(message):
        return PolicyDenied(text, hint="ask the administrator of your organisation about its policies")
    if status in (409, 412):
        return Stale(text)
    return _by_status(status, reasons, text)


def _by_status(status: int, reasons: set[str], text: str) -> CloudError:
    if status == 401:
        return Denied(text, hint=LOGIN)
    if reasons & _DISABLED:
        return ServiceDisabled(text, hint="enable the API in your project; `outlast setup gcp --apply` does")
    if status == 403 or "PERMISSIONS_ERROR" in reasons:
        return Denied(text, hint=_SETUP)
    if status >= 500 or reasons & _PASSING or status == 408:
        return CloudUnreachable(text, hint="it is retried later")
    return BadRequest(text)


def is_missing_type(problem: BadRequest) -> bool:
    """Return whether the error means that this zone lacks the machine type or GPU; another zone may have it."""
    text = problem.message
    return ("machineType" in text or "acceleratorType" in text) and ("does not exist" in text or "not found" in text)
