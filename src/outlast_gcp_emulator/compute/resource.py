"""The generic resource of the Compute API: get, list, delete, labels and IAM policy of one collection.

A handler is a method that takes a `Call` and returns JSON, or raises ApiError.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from outlast_gcp_emulator.compute import filters
from outlast_gcp_emulator.compute.context import Call, Context
from outlast_gcp_emulator.compute.refs import (
    GLOBAL,
    Doc,
    Ref,
    check_name,
    fingerprint,
    new_id,
    parse,
    scope_link,
    stable_number,
    timestamp,
)
from outlast_gcp_emulator.errors import ApiError, invalid

Handler = Callable[[Call], Doc]
# Method, path below the project, handler.
RouteEntry = tuple[str, str, Handler]
ZONAL, REGIONAL, PROJECT_WIDE = "/zones/{zone}", "/regions/{region}", "/global"


class Resource:
    """One collection of stored resources. Subclasses add the verbs of their kind."""

    kind = ""
    # The plural of the kind unless a subclass sets it.
    collection = ""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.store = context.store
        self.collection = self.collection or f"{self.kind}s"

    def ref(self, call: Call) -> Ref:
        return Ref(call.project, call.scope, self.collection, call.name)

    def new_ref(self, call: Call) -> Ref:
        """Return the reference of the resource that an insert request creates."""
        return Ref(call.project, call.scope, self.collection, str(call.body.get("name", "")))

    def new(self, ref: Ref, body: Mapping[str, Any]) -> Doc:
        """Return a new resource with the common fields. Raises ApiError if its name is invalid or taken."""
        doc = new_resource(ref, self.kind, body)
        check_free(self.context, ref)
        return doc

    def find(self, call: Call) -> tuple[Ref, Doc]:
        ref = self.ref(call)
        return ref, self.context.find(ref)

    def global_ref(self, project: str, given: Any, collection: str, field: str) -> Ref:
        """Parse a reference to a resource that is `global` unless the reference names another scope."""
        return parse(given, near=Ref(project, GLOBAL, collection, ""), field=field)

    def view(self, ref: Ref, doc: Doc) -> Doc:
        """Return a stored resource as clients see it."""
        return doc

    def items(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        return [(ref, self.view(ref, doc)) for ref, doc in self.store.each(self.collection, project, scope)]

    def listed(self, project: str, scope: str = "") -> list[tuple[Ref, Doc]]:
        """Return the resources that a list shows now."""
        return self.items(project, scope)

    # Handlers

    def get(self, call: Call) -> Doc:
        return self.view(*self.find(call))

    def listing(self, call: Call) -> Doc:
        """Return one page of the resources of a scope."""
        keyed = [(str(doc["name"]), doc) for _, doc in self.listed(call.project, call.scope)]
        shown, token = filters.select_page(keyed, call.query)
        path = f"{call.scope}/{self.collection}" if call.scope else self.collection
        return self._page(call, "List", path, [doc for _, doc in shown], token)

    def aggregated(self, call: Call) -> Doc:
        """Return one page of the resources of all scopes, grouped by scope."""
        silent = {f"zones/{zone}" for zone in self.context.silent_zones}
        if silent and not call.flag("returnPartialSuccess"):
            raise ApiError(503, "backendError", f"The scopes {', '.join(sorted(silent))} are unreachable.")
        keyed = [
            (f"{ref.scope}/{doc['name']}", doc) for ref, doc in self.listed(call.project) if ref.scope not in silent
        ]
        shown, token = filters.select_page(keyed, call.query)
        items: dict[str, Doc] = {}
        for key, doc in shown:
            items.setdefault(key.rpartition("/")[0], {}).setdefault(self.collection, []).append(doc)
        found = items or {"zones/us-central1-a": _no_results("zones/us-central1-a")}
        page = self._page(call, "AggregatedList", f"aggregated/{self.collection}", found, token)
        links = [scope_link(call.project, scope) for scope in sorted(silent)]
        return {**page, "unreachables": links} if links else page

    def _page(self, call: Call, suffix: str, path: str, items: Any, token: str) -> Doc:
        page: Doc = {
            "kind": f"compute#{self.kind}{suffix}",
            "id": f"projects/{call.project}/{path}",
            "items": items,
            "selfLink": scope_link(call.project, path),
        }
        return {**page, "nextPageToken": token} if token else page

    def delete(self, call: Call) -> Doc:
        ref, doc = self.find(call)
        self.check_deletable(ref, doc)
        return self.context.begin(call, ref, "delete", lambda: self.discard(ref))

    def check_deletable(self, ref: Ref, doc: Doc) -> None:
        """Raise ApiError if another resource needs this one."""

    def discard(self, ref: Ref) -> None:
        self.store.drop(ref)

    def set_labels(self, call: Call) -> Doc:
        ref = self.ref(call)
        with self.store.lock:
            self.context.change(ref, **changed_labels(call, self.context.find(ref)))
        return self.context.begin(call, ref, "setLabels")

    def get_policy(self, call: Call) -> Doc:
        return _policy(self.find(call)[1])

    def set_policy(self, call: Call) -> Doc:
        given = call.body.get("policy", call.body)
        bindings = given.get("bindings", call.body.get("bindings", []))
        with self.store.lock:
            ref, doc = self.find(call)
            current = _policy(doc)
            if given.get("etag", current["etag"]) != current["etag"]:
                raise ApiError(412, "conditionNotMet", "The etag of the policy does not match.")
            return _policy(self.context.change(ref, _policy={"version": 1, "bindings": bindings}))

    # Routes

    def routes(self) -> Iterator[RouteEntry]:
        """Yield the routes of this kind; none by default."""
        return iter(())

    def read_routes(self, *places: str) -> Iterator[RouteEntry]:
        for place in places:
            yield "GET", f"{place}/{self.collection}", self.listing
            yield "GET", f"{place}/{self.collection}/{{name}}", self.get

    def aggregated_route(self) -> RouteEntry:
        return "GET", f"/aggregated/{self.collection}", self.aggregated

    def label_route(self, place: str) -> RouteEntry:
        return "POST", f"{place}/{self.collection}/{{name}}/setLabels", self.set_labels

    def policy_routes(self, place: str) -> Iterator[RouteEntry]:
        path = f"{place}/{self.collection}/{{name}}"
        yield "GET", f"{path}/getIamPolicy", self.get_policy
        yield "POST", f"{path}/setIamPolicy", self.set_policy

    def stored_routes(self, place: str) -> Iterator[RouteEntry]:
        """Yield the routes of a kind with read, delete, labels and policy handlers."""
        yield from self.read_routes(place)
        yield "DELETE", f"{place}/{self.collection}/{{name}}", self.delete
        yield self.label_route(place)
        yield from self.policy_routes(place)


class OperationResource(Resource):
    kind = "operation"

    def routes(self) -> Iterator[RouteEntry]:
        yield self.aggregated_route()
        for place in (PROJECT_WIDE, ZONAL, REGIONAL):
            yield from self.read_routes(place)
            yield "POST", f"{place}/operations/{{name}}/wait", self.wait
            yield "DELETE", f"{place}/operations/{{name}}", self.delete

    def wait(self, call: Call) -> Doc:
        return self.context.operations.wait(self.ref(call))

    def delete(self, call: Call) -> Doc:
        ref, doc = self.find(call)
        if doc["status"] != "DONE":
            raise ApiError(400, "resourceNotReady", "The operation is not done yet.")
        self.store.drop(ref)
        return {}


def new_resource(ref: Ref, kind: str, body: Mapping[str, Any]) -> Doc:
    """Return the fields that a client gave, with the fields that every new resource has."""
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


def builtin_resource(ref: Ref, kind: str, created_at: str, **fields: Any) -> Doc:
    """Return a resource that exists without a request. Its id follows from its name."""
    return {
        "kind": f"compute#{kind}",
        "id": str(stable_number(ref.path)),
        "creationTimestamp": created_at,
        "name": ref.name,
        "selfLink": ref.link,
        **fields,
    }


def check_free(context: Context, ref: Ref) -> None:
    if context.store.get(ref) is not None:
        raise already_exists(ref)


def already_exists(ref: Ref) -> ApiError:
    return ApiError(409, "alreadyExists", f"The resource '{ref.path}' already exists")


def changed_labels(call: Call, doc: Doc) -> Doc:
    """Return the label fields that a `setLabels` request sets."""
    if call.body.get("labelFingerprint") != doc.get("labelFingerprint", fingerprint({})):
        raise ApiError(412, "conditionNotMet", "Labels fingerprint either invalid or resource labels have changed")
    given = call.body.get("labels", {})
    if not isinstance(given, dict):
        raise invalid("Invalid value for field 'labels': expected an object.")
    return {"labels": given or None, "labelFingerprint": fingerprint(given)}


def _policy(doc: Doc) -> Doc:
    policy: Doc = doc.get("_policy", {"version": 1, "bindings": []})
    return {**policy, "etag": fingerprint(policy)}


def _no_results(scope: str) -> Doc:
    message = f"There are no results for scope '{scope}' on this page."
    return {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": message, "data": [{"key": "scope", "value": scope}]}}
