"""The desk at which requests are answered: who asks for what, and the ways that all kinds of resources share.

A handler takes a `Call` and answers with a resource as JSON, or raises `Refused`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from outlast.clouds.local.cloud import LocalCloud
from outlast_gcp_emulator.compute import filters
from outlast_gcp_emulator.compute.operations import Operations, Work
from outlast_gcp_emulator.compute.refs import Doc, Ref, check_name, new_id, not_there, scope_link, timestamp
from outlast_gcp_emulator.compute.store import ResourceStore
from outlast_gcp_emulator.errors import ApiError

Handler = Callable[["Call"], Doc]


@dataclass(kw_only=True, slots=True)
class Call:
    """One request, taken apart."""

    project: str
    scope: str
    name: str
    query: Mapping[str, str]
    body: Doc
    # The version of the API by which the client came, as in `/compute/v1`.
    base: str = ""

    def ref(self, collection: str) -> Ref:
        return Ref(self.project, self.scope, collection, self.name)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"


class GuestAccess(NamedTuple):
    """The token of a machine, and the variables by which the programs on it find this endpoint."""

    token: str
    environment: dict[str, str]


@dataclass(kw_only=True, slots=True)
class Context:
    cloud: LocalCloud
    store: ResourceStore
    operations: Operations
    # What a machine needs to use this endpoint, by the machine's name.
    guest_access: Callable[[str], GuestAccess] = lambda machine: GuestAccess(token="", environment={})
    # The port of this endpoint, on this computer's loopback.
    port: int = 0
    # Guards the choice of names: whoever looks for a free one and takes it must be alone.
    names: threading.RLock = field(default_factory=threading.RLock)

    def find(self, ref: Ref) -> Doc:
        if (doc := self.store.get(ref)) is None:
            raise not_there(ref)
        return doc

    def begin(self, call: Call, target: Ref, verb: str, work: Work) -> Doc:
        """Start the work on a resource; a request that came before gets the answer that it got."""
        target_id = str((self.store.get(target) or {}).get("id", ""))
        return self.operations.begin(
            target, verb, work, target_id=target_id, request_id=call.query.get("requestId", "")
        )

    def change(self, ref: Ref, **changes: Any) -> Doc:
        """Change a resource; None takes a field away."""
        with self.store.lock:
            doc = {**self.find(ref), **changes}
            return self.store.put(ref, {name: value for name, value in doc.items() if value is not None})


def new_resource(ref: Ref, kind: str, body: Mapping[str, Any]) -> Doc:
    """What every new resource has, over what the client gave it."""
    given = {name: value for name, value in body.items() if not name.startswith("_")}
    place, _, where = ref.scope.partition("/")
    doc = {
        **given,
        "kind": f"compute#{kind}",
        "id": new_id(),
        "creationTimestamp": timestamp(time.time()),
        "name": check_name(body.get("name")),
        "selfLink": ref.link,
    }
    if where:
        doc[place[:-1]] = scope_link(ref.project, ref.scope)
    return doc


def check_free(context: Context, ref: Ref) -> None:
    if context.store.get(ref) is not None:
        raise ApiError(409, "alreadyExists", f"The resource '{ref.path}' already exists")


def listing(call: Call, kind: str, collection: str, docs: list[Doc]) -> Doc:
    """One page of a list, as the query wants it."""
    test = filters.parse(call.query.get("filter", ""))
    items = filters.ordered([(str(doc["name"]), doc) for doc in docs if test(doc)], call.query.get("orderBy", ""))
    shown, token = filters.page(items, call.query)
    path = f"{call.scope}/{collection}" if call.scope else collection
    answer: Doc = {
        "kind": f"compute#{kind}List",
        "id": f"projects/{call.project}/{path}",
        "items": [doc for _, doc in shown],
        "selfLink": scope_link(call.project, path),
    }
    if token:
        answer["nextPageToken"] = token
    return answer


def aggregated(call: Call, kind: str, collection: str, docs: list[tuple[Ref, Doc]]) -> Doc:
    """One page of a list over all zones or regions."""
    test = filters.parse(call.query.get("filter", ""))
    keyed = [(f"{ref.scope}/{doc['name']}", doc) for ref, doc in docs if test(doc)]
    shown, token = filters.page(filters.ordered(keyed, call.query.get("orderBy", "")), call.query)
    items: dict[str, Doc] = {}
    for key, doc in shown:
        items.setdefault(key.rpartition("/")[0], {}).setdefault(collection, []).append(doc)
    answer: Doc = {
        "kind": f"compute#{kind}AggregatedList",
        "id": f"projects/{call.project}/aggregated/{collection}",
        "items": items or {"zones/us-central1-a": _nothing("zones/us-central1-a")},
        "selfLink": scope_link(call.project, f"aggregated/{collection}"),
    }
    if token:
        answer["nextPageToken"] = token
    return answer


def _nothing(scope: str) -> Doc:
    message = f"There are no results for scope '{scope}' on this page."
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": [{"key": "scope", "value": scope}]}}
