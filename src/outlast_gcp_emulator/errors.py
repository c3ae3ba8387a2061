"""Errors of Google's APIs: one exception, with its body in JSON and in XML."""

from __future__ import annotations

import json
from typing import Literal
from xml.sax.saxutils import escape

Dialect = Literal["json", "xml"]

_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    416: "OUT_OF_RANGE",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}

# Reasons of the JSON API → codes of the XML API.
_XML_CODE = {
    "conditionNotMet": "PreconditionFailed",
    "conflict": "BucketAlreadyOwnedByYou",
    "forbidden": "AccessDenied",
    "notFound": "NoSuchKey",
    "rateLimitExceeded": "SlowDown",
    "required": "InvalidArgument",
    "requestedRangeNotSatisfiable": "InvalidRange",
    "backendError": "ServiceUnavailable",
    "internalError": "InternalError",
    "authError": "AuthenticationRequired",
    "invalid": "InvalidArgument",
    "notEmpty": "BucketNotEmpty",
    "noSuchBucket": "NoSuchBucket",
    "noSuchUpload": "NoSuchUpload",
    "badDigest": "BadDigest",
}
# Finer reasons of ours → reasons of the JSON API.
_JSON_REASON = {
    "noSuchBucket": "notFound",
    "noSuchUpload": "notFound",
    "notEmpty": "conflict",
    "badDigest": "invalid",
}


class ApiError(Exception):
    """An error response. `reason` is Google's, or a key of `_JSON_REASON`."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        headers: dict[str, str] | None = None,
        info: tuple[str, dict[str, str]] | None = None,
    ) -> None:
        """`info` is the reason in upper case with its metadata, which newer APIs add."""
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}
        self._info = info

    @property
    def xml_code(self) -> str:
        return _XML_CODE.get(self.reason, self.reason[:1].upper() + self.reason[1:])

    def body(self, dialect: Dialect) -> tuple[str, bytes]:
        """Return content type and body."""
        if self.status == 304:
            return "text/plain", b""
        if dialect == "xml":
            text = f"<Error><Code>{escape(self.xml_code)}</Code><Message>{escape(self.message)}</Message></Error>"
            return "application/xml; charset=UTF-8", f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
        reason = _JSON_REASON.get(self.reason, self.reason)
        detail = {"message": self.message, "domain": "global", "reason": reason}
        error: dict[str, object] = {"code": self.status, "message": self.message, "errors": [detail]}
        if self._info is not None:
            kind = "type.googleapis.com/google.rpc.ErrorInfo"
            reason, metadata = self._info
            error["details"] = [{"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}]
        if self.status in _STATUS:
            error["status"] = _STATUS[self.status]
        return "application/json; charset=UTF-8", json.dumps({"error": error}).encode()


def invalid(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def required(name: str) -> ApiError:
    return ApiError(400, "required", f"Required parameter: {name}")


def not_found(message: str) -> ApiError:
    return ApiError(404, "notFound", message)
