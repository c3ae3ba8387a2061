"""Waits for operations of Filestore and Cloud SQL, by polling: neither API has long polling."""

from __future__ import annotations

import time

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Doc, from_operation, from_response
from outlast.errors import CloudUnreachable

_PAUSE_S, _S_MAX = 3.0, 1800.0


def wait_filestore(client: GcpClient, operation: Doc, what: str) -> Doc:
    """Return the result of a Filestore operation. Raises its error."""
    give_up_at = time.monotonic() + _S_MAX
    while not operation.get("done"):
        _check_time(give_up_at, operation)
        operation = client.call("file", "GET", f"v1/{operation['name']}").doc
    if "error" in operation:
        # A gRPC status has no HTTP status code.
        raise from_response(_HTTP.get(int(operation["error"].get("code", 2)), 400), operation, what)
    found = operation.get("response", {})
    return found if isinstance(found, dict) else {}


def wait_sql(client: GcpClient, operation: Doc, what: str) -> Doc:
    """Return a Cloud SQL operation once it is done. Raises its error."""
    give_up_at = time.monotonic() + _S_MAX
    while operation.get("status") != "DONE":
        _check_time(give_up_at, operation)
        operation = client.call("sqladmin", "GET", f"v1/projects/{client.project}/operations/{operation['name']}").doc
    if (problem := from_operation(operation, what)) is not None:
        raise problem
    return operation


# gRPC code → HTTP status, for the codes that we distinguish.
_HTTP = {5: 404, 6: 409, 7: 403, 8: 429, 13: 500, 14: 503, 16: 401}


def _check_time(give_up_at: float, operation: Doc) -> None:
    if time.monotonic() > give_up_at:
        why = f"operation {operation.get('name')} is not done after {_S_MAX:g} s"
        raise CloudUnreachable(why, hint="check again later")
    time.sleep(_PAUSE_S)
