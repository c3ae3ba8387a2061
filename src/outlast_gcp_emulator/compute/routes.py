"""Which address of the Compute API is answered by what, and what every request goes through on its way."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from outlast.errors import Denied, NotFound, OutlastError, Throttled
from outlast_gcp_emulator.compute import (
    advice,
    attach,
    builtin_kinds,
    bulk,
    disks,
    groups,
    images,
    instances,
    machineimages,
    stored_kinds,
)
from outlast_gcp_emulator.compute.context import Call, Context, Handler, aggregated, listing
from outlast_gcp_emulator.compute.refs import GLOBAL, ROOT, Doc, check_place, render
from outlast_gcp_emulator.errors import ApiError, not_found
from outlast_gcp_emulator.http_types import HttpAnswer, HttpRequest, json_answer
from outlast_gcp_emulator.router import Router

# Method, path below the project, handler.
Entry = tuple[str, str, Handler]
Told = Callable[[Context, Call], Doc]

_ZONAL, _REGIONAL = "/zones/{zone}", "/regions/{region}"
# Behind the host there may be a token.
_URL = re.compile(r"https?://[^/]+(?:/[^/]+)?/compute/[a-z0-9]+/(projects/.*)")
_SCOPES = {"compute", "cloud-platform"}


def add_routes(router: Router, context: Context) -> None:
    """All of the Compute API, in every version's name."""
    limits = ListLimits(context)
    for method, path, handler in entries(context):
        answer = functools.partial(_answer, context, limits, handler)
        router.add(method, f"/compute/{{version}}/projects/{{project}}{path}", answer)
        # As clients come that were given the server's address and nothing more.
        router.add(method, f"/projects/{{project}}{path}", answer)
    # Else what is asked for would be taken for an object in a bucket `compute`.
    router.add("*", "/compute/{rest*}", _unknown)


def entries(context: Context) -> Iterator[Entry]:
    yield from _project(context)
    yield from _instances(context)
    yield from _disks(context)
    yield from _images(context)
    yield from _groups(context)
    yield from _operations(context)
    yield from _plain(context)


def _with(context: Context, handler: Told) -> Handler:
    return functools.partial(handler, context)


def _project(context: Context) -> Iterator[Entry]:
    yield "GET", "", _with(context, builtin_kinds.get_project)
    yield "POST", "/setCommonInstanceMetadata", _with(context, instances.set_common_metadata)
    yield "GET", "/zones", _with(context, builtin_kinds.list_zones)
    yield "GET", "/zones/{name}", _with(context, builtin_kinds.get_zone)
    yield "GET", "/regions", _with(context, builtin_kinds.list_regions)
    yield "GET", "/regions/{name}", _with(context, builtin_kinds.get_region)
    yield "POST", "/regions/{name}/advice/capacity", _with(context, advice.capacity)
    kinds = {"machineTypes": "machineType", "diskTypes": "diskType", "acceleratorTypes": "acceleratorType"}
    for collection, kind in kinds.items():
        yield "GET", f"{_ZONAL}/{collection}", builtin_kinds.list_types(kind, collection)
        yield "GET", f"{_ZONAL}/{collection}/{{name}}", builtin_kinds.get_type(collection)
        yield "GET", f"/aggregated/{collection}", builtin_kinds.aggregate_types(kind, collection)


def _instances(context: Context) -> Iterator[Entry]:
    here, one = f"{_ZONAL}/instances", f"{_ZONAL}/instances/{{name}}"
    yield "GET", "/aggregated/instances", _with(context, instances.aggregate)
    yield "GET", here, _with(context, instances.list_instances)
    yield "POST", here, _with(context, instances.insert)
    for place in (_ZONAL, _REGIONAL):
        yield "POST", f"{place}/instances/bulkInsert", _with(context, bulk.insert)
    yield "GET", one, _with(context, instances.get)
    yield "DELETE", one, instances.power(context, "delete")
    for verb in ("start", "stop", "suspend", "resume", "reset"):
        yield "POST", f"{one}/{verb}", instances.power(context, verb)
    yield "POST", f"{one}/simulateMaintenanceEvent", _with(context, instances.maintain)
    yield "POST", f"{one}/setMachineType", _with(context, instances.set_machine_type)
    changes = {
        "setMetadata": instances.metadata,
        "setTags": instances.tags,
        "setLabels": instances.labels,
        "setScheduling": instances.scheduling,
        "setServiceAccount": instances.service_account,
        "setDeletionProtection": instances.protection,
        "setDiskAutoDelete": attach.auto_delete,
        "attachDisk": attach.attach_disk,
        "detachDisk": attach.detach_disk,
        "addAccessConfig": instances.add_access,
        "deleteAccessConfig": instances.delete_access,
    }
    for verb, change in changes.items():
        yield "POST", f"{one}/{verb}", instances.changing(context, verb, change)
    for verb, (method, write) in instances.WRITTEN.items():
        yield method, f"{one}/{verb}", instances.changing(context, verb, write)
    yield from _policies(context, "instances", _ZONAL)
    yield "GET", f"{one}/serialPort", _with(context, instances.serial)
    yield "GET", f"{one}/getGuestAttributes", _with(context, instances.guest_attributes)


def _kept(context: Context, collection: str, kind: str) -> tuple[Handler, Handler, Handler]:
    """Get, list and aggregated list of what is kept as it is shown."""

    def aggregate(call: Call) -> Doc:
        return aggregated(call, kind, collection, list(context.store.each(collection, call.project)))

    def listed(call: Call) -> Doc:
        return listing(
            call, kind, collection, [doc for _, doc in context.store.each(collection, call.project, call.scope)]
        )

    return (lambda call: context.find(call.ref(collection))), listed, aggregate


def _label(context: Context, collection: str) -> Handler:
    return _with(context, stored_kinds.Plain(collection=collection, kind="", scopes=()).label)


def _disks(context: Context) -> Iterator[Entry]:
    here, one = f"{_ZONAL}/disks", f"{_ZONAL}/disks/{{name}}"
    get, listed, aggregate = _kept(context, "disks", "disk")
    yield "GET", "/aggregated/disks", aggregate
    yield "GET", here, listed
    yield "POST", here, _with(context, disks.insert)
    yield "GET", one, get
    yield "DELETE", one, _with(context, disks.delete)
    yield "PATCH", one, _with(context, attach.patch)
    yield "POST", f"{one}/resize", _with(context, attach.resize)
    yield "POST", f"{one}/createSnapshot", _with(context, images.create_snapshot)
    for verb in ("addResourcePolicies", "removeResourcePolicies"):
        yield "POST", f"{one}/{verb}", functools.partial(disks.policies, context, verb=verb)
    yield "POST", f"{one}/setLabels", _label(context, "disks")
    yield from _policies(context, "disks", _ZONAL)


def _images(context: Context) -> Iterator[Entry]:
    here, one = "/global/images", "/global/images/{name}"
    yield "GET", here, _with(context, images.list_images)
    yield "POST", here, _with(context, images.insert)
    yield "GET", f"{here}/family/{{name}}", _with(context, images.get_from_family)
    yield "GET", one, _with(context, images.get)
    yield "DELETE", one, lambda call: images.delete(context, call, "images")
    yield "PATCH", one, _with(context, images.patch)
    yield "POST", f"{one}/deprecate", _with(context, images.deprecate)
    yield from _owned(context, "images")
    yield "GET", "/zones/{anywhere}/imageFamilyViews/{name}", _with(context, images.family_view)
    get, listed, _ = _kept(context, "snapshots", "snapshot")
    yield "GET", "/global/snapshots", listed
    yield "POST", "/global/snapshots", _with(context, images.insert_snapshot)
    yield "GET", "/global/snapshots/{name}", get
    yield "DELETE", "/global/snapshots/{name}", lambda call: images.delete(context, call, "snapshots")
    yield from _owned(context, "snapshots")
    get, listed, _ = _kept(context, "machineImages", "machineImage")
    yield "GET", "/global/machineImages", listed
    yield "POST", "/global/machineImages", _with(context, machineimages.insert)
    yield "GET", "/global/machineImages/{name}", get
    yield "DELETE", "/global/machineImages/{name}", _with(context, machineimages.delete)
    yield from _owned(context, "machineImages")


def _owned(context: Context, collection: str) -> Iterator[Entry]:
    """Labels and policies of what is kept for the whole project."""
    yield "POST", f"/global/{collection}/{{name}}/setLabels", _label(context, collection)
    yield from _policies(context, collection, "/global")


def _policies(context: Context, collection: str, place: str) -> Iterator[Entry]:
    one = f"{place}/{collection}/{{name}}"
    yield "GET", f"{one}/getIamPolicy", lambda call: images.get_policy(context, call, collection)
    yield "POST", f"{one}/setIamPolicy", lambda call: images.set_policy(context, call, collection)


def _groups(context: Context) -> Iterator[Entry]:
    yield "GET", "/aggregated/instanceGroupManagers", _with(context, groups.aggregate)
    yield "GET", "/aggregated/instanceGroups", _with(context, groups.aggregate_groups)
    for place in (_ZONAL, _REGIONAL):
        here, one = f"{place}/instanceGroupManagers", f"{place}/instanceGroupManagers/{{name}}"
        yield "GET", here, _with(context, groups.list_groups)
        yield "POST", here, _with(context, groups.insert)
        yield "GET", one, _with(context, groups.get)
        yield "PATCH", one, _with(context, groups.patch)
        yield "DELETE", one, _with(context, groups.delete)
        yield "POST", f"{one}/resize", _with(context, groups.resize)
        yield "POST", f"{one}/setInstanceTemplate", _with(context, groups.set_template)
        yield "POST", f"{one}/listManagedInstances", _with(context, groups.managed)
        yield "GET", f"{one}/listErrors", _with(context, groups.errors)
        for verb in ("abandonInstances", "deleteInstances", "recreateInstances"):
            yield "POST", f"{one}/{verb}", functools.partial(groups.end_members, context, verb=verb)
        yield "GET", f"{place}/instanceGroups", _with(context, groups.list_instance_groups)
        yield "GET", f"{place}/instanceGroups/{{name}}", _with(context, groups.get_group)
        yield "POST", f"{place}/instanceGroups/{{name}}/listInstances", _with(context, groups.group_instances)


def _operations(context: Context) -> Iterator[Entry]:
    get, listed, aggregate = _kept(context, "operations", "operation")

    def wait(call: Call) -> Doc:
        return context.operations.wait(call.ref("operations"), patience_s=120.0)

    def delete(call: Call) -> Doc:
        if context.find(call.ref("operations"))["status"] != "DONE":
            raise ApiError(400, "resourceNotReady", "The operation is not done yet.")
        context.store.drop(call.ref("operations"))
        return {}

    yield "GET", "/aggregated/operations", aggregate
    for place in ("/global", _ZONAL, _REGIONAL):
        yield "GET", f"{place}/operations", listed
        yield "GET", f"{place}/operations/{{name}}", get
        yield "POST", f"{place}/operations/{{name}}/wait", wait
        yield "DELETE", f"{place}/operations/{{name}}", delete


def _plain(context: Context) -> Iterator[Entry]:
    places = {GLOBAL: "/global", "zones": _ZONAL, "regions": _REGIONAL}
    for kind in stored_kinds.KINDS:
        for scope in kind.scopes:
            here = f"{places[scope]}/{kind.collection}"
            yield "GET", here, _with(context, kind.list)
            yield "POST", here, _with(context, kind.insert)
            yield "GET", f"{here}/{{name}}", _with(context, kind.get)
            yield "PATCH", f"{here}/{{name}}", _with(context, kind.patch)
            yield "PUT", f"{here}/{{name}}", _with(context, kind.patch)
            # Of an autoscaler the name is in the query.
            for method in ("PATCH", "PUT"):
                yield method, here, _with(context, kind.patch)
            yield "DELETE", f"{here}/{{name}}", _with(context, kind.delete)
            yield "POST", f"{here}/{{name}}/setLabels", _with(context, kind.label)
            for verb in kind.setters:
                yield "POST", f"{here}/{{name}}/{verb}", _with(context, kind.patch)
        yield "GET", f"/aggregated/{kind.collection}", _with(context, kind.aggregate)
    for collection, (name, scopes) in stored_kinds.EMPTY.items():
        _, listed, aggregate = _kept(context, collection, name)
        for scope in scopes:
            yield "GET", f"{places[scope]}/{collection}", listed
        yield "GET", f"/aggregated/{collection}", aggregate


def _unknown(request: HttpRequest) -> HttpAnswer:
    raise not_found(f"{request.method} {request.path} is not answered here")


# What every request goes through


class ListLimits:
    """How many requests a zone answers in a second, where `outlast local set ZONE --rate` says so."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._left: dict[tuple[str, float], tuple[float, float]] = {}

    def take(self, scope: str) -> None:
        zone = scope.removeprefix("zones/")
        rate = self._context.cloud.zone_settings().get(zone, {}).get("rate") if scope.startswith("zones/") else None
        if rate is None:
            return
        with self._lock:
            now = time.monotonic()
            # By the rate as well: whoever changes it begins anew.
            left, seen = self._left.get((zone, rate), (max(1.0, rate), now))
            left = min(max(1.0, rate), left + (now - seen) * rate)
            self._left = {(zone, rate): (left - 1.0 if left >= 1.0 else left, now), **_without(self._left, zone)}
        if left < 1.0 or rate == 0:
            told = "Rate Limit Exceeded: too many requests for this zone, try again later"
            raise ApiError(429, "rateLimitExceeded", told, headers={"Retry-After": "1"})


def _without(left: dict[tuple[str, float], tuple[float, float]], zone: str) -> dict[tuple[str, float], Any]:
    return {key: value for key, value in left.items() if key[0] != zone}


def _answer(context: Context, limits: ListLimits, handler: Handler, request: HttpRequest) -> HttpAnswer:
    call = _call(request)
    limits.take(call.scope)
    check_token(context, request)
    if (prior := context.operations.asked_before(call.project, call.query.get("requestId", ""))) is not None:
        return json_answer(render(prior, call.base))
    try:
        doc = handler(call)
    except OutlastError as problem:
        raise _refusal(problem) from problem
    if request.method == "DELETE" and not doc:
        return HttpAnswer(status=204)
    return json_answer(render(doc, call.base))


def _call(request: HttpRequest) -> Call:
    parts = request.parts
    scope = GLOBAL if "/global/" in f"{request.path}/" else ""
    for kind in ("zone", "region"):
        if kind in parts:
            scope = f"{kind}s/{parts[kind]}"
    call = Call(
        project=parts["project"],
        scope=scope,
        name=parts.get("name") or request.query.get("autoscaler", ""),
        query=request.query,
        body=_absorb(request.json()) if request.method != "GET" else {},
        base=f"{request.base_url}/compute/{parts.get('version', 'v1')}",
    )
    check_place(call.scope, call.project)
    return call


def _absorb(value: Any) -> Any:
    """Links with an address become our own; what a user's metadata says stays as it is."""
    if isinstance(value, dict):
        return {name: inner if name == "metadata" else _absorb(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_absorb(inner) for inner in value]
    if isinstance(value, str) and (found := _URL.fullmatch(value)):
        return ROOT + found[1]
    return value


def check_token(context: Context, request: HttpRequest) -> None:
    """A machine may do what its scopes allow; whoever else asks is the owner of this computer."""
    machine = request.caller.machine
    if not machine:
        return
    for _, doc in context.store.each("instances"):
        if doc.get("_machine") == machine:
            scopes = {
                scope.rpartition("/")[2] for account in doc.get("serviceAccounts", []) for scope in account["scopes"]
            }
            allowed = _SCOPES | ({"compute.readonly"} if request.method == "GET" else set())
            if not scopes & allowed:
                raise ApiError(403, "insufficientPermissions", "Request had insufficient authentication scopes.")
            return
    # A machine that is being created has a disk before it has an instance; a deleted one has neither.
    if not any(doc.get("_machine") == machine for _, doc in context.store.each("disks")):
        raise ApiError(401, "authError", f"The machine {machine} of this token does not exist any more.")


def _refusal(problem: OutlastError) -> ApiError:
    match problem:
        case NotFound():
            return ApiError(404, "notFound", problem.message)
        case Denied():
            return ApiError(403, "forbidden", problem.message)
        case Throttled():
            return ApiError(429, "rateLimitExceeded", problem.message)
        case _:
            return ApiError(503, "backendError", problem.message)
