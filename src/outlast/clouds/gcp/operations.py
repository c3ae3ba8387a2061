"""Operations of Filestore and Cloud SQL: waited for by asking again, as neither of them holds an answer back."""

from __future__ import annotations

import time

from outlast.clouds.gcp.client import GcpClient
from outlast.clouds.gcp.errors import Doc, of_answer, of_operation
from outlast.errors import CloudUnreachable

_PAUSE_S, _S_MAX = 3.0, 1800.0


def file_done(client: GcpClient, operation: Doc, what: str) -> Doc:
    """What a Filestore operation ended with. Raises what it ended in."""
    give_up_at = time.monotonic() + _S_MAX
    while not operation.get("done"):
        _check_time(give_up_at, operation)
        operation = client.call("file", "GET", f"v1/{operation['name']}").doc
    if "error" in operation:
        # A status of gRPC, which has a code and a message; its number is told by the kind of error in `details`.
        raise of_answer(_HTTP.get(int(operation["error"].get("code", 2)), 400), operation, what)
    found = operation.get("response", {})
    return found if isinstance(found, dict) else {}


def sql_done(client: GcpClient, operation: Doc, what: str) -> Doc:
    """A Cloud SQL operation when it is over. Raises what it ended in."""
    give_up_at = time.monotonic() + _S_MAX
    while operation.get("status") != "DONE":
        _check_time(give_up_at, operation)
        operation = client.call("sqladmin", "GET", f"v1/projects/{client.project}/operations/{operation['name']}").doc
    if (problem := of_operation(operation, what)) is not None:
        raise problem
    return operation


# Of gRPC's own codes, those that say more than "no".
_HTTP = {5: 404, 6: 409, 7: 403, 8: 429, 13: 500, 14: 503, 16: 401}


def _check_time(give_up_at: float, operation: Doc) -> None:
    if time.monotonic() > give_up_at:
        raise CloudUnreachable(f"the operation {operation.get('name')} does not end", hint="look again later")
    time.sleep(_PAUSE_S)
