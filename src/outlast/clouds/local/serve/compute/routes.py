"""Which address of the Compute API is answered by what, and what every request goes through on its way."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from outlast.clouds.local.serve.compute import (
    advice,
    attach,
    bulk,
    disks,
    fixed,
    groups,
    images,
    instances,
    machineimages,
    plain,
)
from outlast.clouds.local.serve.compute.desk import Call, Desk, Handler, aggregated, listing
from outlast.clouds.local.serve.compute.links import GLOBAL, ROOT, Doc, check_place, render
from outlast.clouds.local.serve.message import Answer, Request, json_answer
from outlast.clouds.local.serve.refusal import Refused, not_found
from outlast.clouds.local.serve.router import Router
from outlast.errors import Denied, NotFound, OutlastError, Throttled

# Method, path below the project, handler.
Entry = tuple[str, str, Handler]
Told = Callable[[Desk, Call], Doc]

_ZONAL, _REGIONAL = "/zones/{zone}", "/regions/{region}"
_URL = re.compile(r"https?://[^/]+/compute/[a-z0-9]+/(projects/.*)")
_TOKEN = re.compile(r"Bearer local-([-a-z0-9]+)")
_SCOPES = {"compute", "cloud-platform"}


def add_routes(router: Router, desk: Desk) -> None:
    """All of the Compute API, in every version's name."""
    limits = Limits(desk)
    for method, path, handler in entries(desk):
        answer = functools.partial(_answer, desk, limits, handler)
        router.add(method, f"/compute/{{version}}/projects/{{project}}{path}", answer)
        # As clients come that were given the server's address and nothing more.
        router.add(method, f"/projects/{{project}}{path}", answer)
    # Else what is asked for would be taken for an object in a bucket `compute`.
    router.add("*", "/compute/{rest*}", _unknown)


def entries(desk: Desk) -> Iterator[Entry]:
    yield from _project(desk)
    yield from _instances(desk)
    yield from _disks(desk)
    yield from _images(desk)
    yield from _groups(desk)
    yield from _operations(desk)
    yield from _plain(desk)


def _with(desk: Desk, handler: Told) -> Handler:
    return functools.partial(handler, desk)


def _project(desk: Desk) -> Iterator[Entry]:
    yield "GET", "", _with(desk, fixed.get_project)
    yield "POST", "/setCommonInstanceMetadata", _with(desk, instances.set_common_metadata)
    yield "GET", "/zones", _with(desk, fixed.list_zones)
    yield "GET", "/zones/{name}", _with(desk, fixed.get_zone)
    yield "GET", "/regions", _with(desk, fixed.list_regions)
    yield "GET", "/regions/{name}", _with(desk, fixed.get_region)
    yield "POST", "/regions/{name}/advice/capacity", _with(desk, advice.capacity)
    kinds = {"machineTypes": "machineType", "diskTypes": "diskType", "acceleratorTypes": "acceleratorType"}
    for collection, kind in kinds.items():
        yield "GET", f"{_ZONAL}/{collection}", fixed.list_types(kind, collection)
        yield "GET", f"{_ZONAL}/{collection}/{{name}}", fixed.get_type(collection)
        yield "GET", f"/aggregated/{collection}", fixed.aggregate_types(kind, collection)


def _instances(desk: Desk) -> Iterator[Entry]:
    here, one = f"{_ZONAL}/instances", f"{_ZONAL}/instances/{{name}}"
    yield "GET", "/aggregated/instances", _with(desk, instances.aggregate)
    yield "GET", here, _with(desk, instances.list_instances)
    yield "POST", here, _with(desk, instances.insert)
    for place in (_ZONAL, _REGIONAL):
        yield "POST", f"{place}/instances/bulkInsert", _with(desk, bulk.insert)
    yield "GET", one, _with(desk, instances.get)
    yield "DELETE", one, instances.power(desk, "delete")
    for verb in ("start", "stop", "suspend", "resume", "reset"):
        yield "POST", f"{one}/{verb}", instances.power(desk, verb)
    yield "POST", f"{one}/simulateMaintenanceEvent", _with(desk, instances.maintain)
    yield "POST", f"{one}/setMachineType", _with(desk, instances.set_machine_type)
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
        yield "POST", f"{one}/{verb}", instances.changing(desk, verb, change)
    for verb, (method, write) in instances.WRITTEN.items():
        yield method, f"{one}/{verb}", instances.changing(desk, verb, write)
    yield from _policies(desk, "instances", _ZONAL)
    yield "GET", f"{one}/serialPort", _with(desk, instances.serial)
    yield "GET", f"{one}/getGuestAttributes", _with(desk, instances.guest_attributes)


def _kept(desk: Desk, collection: str, kind: str) -> tuple[Handler, Handler, Handler]:
    """Get, list and aggregated list of what is kept as it is shown."""

    def aggregate(call: Call) -> Doc:
        return aggregated(call, kind, collection, list(desk.store.each(collection, call.project)))

    def listed(call: Call) -> Doc:
        return listing(
            call, kind, collection, [doc for _, doc in desk.store.each(collection, call.project, call.scope)]
        )

    return (lambda call: desk.find(call.ref(collection))), listed, aggregate


def _label(desk: Desk, collection: str) -> Handler:
    return _with(desk, plain.Plain(collection=collection, kind="", scopes=()).label)


def _disks(desk: Desk) -> Iterator[Entry]:
    here, one = f"{_ZONAL}/disks", f"{_ZONAL}/disks/{{name}}"
    get, listed, aggregate = _kept(desk, "disks", "disk")
    yield "GET", "/aggregated/disks", aggregate
    yield "GET", here, listed
    yield "POST", here, _with(desk, disks.insert)
    yield "GET", one, get
    yield "DELETE", one, _with(desk, disks.delete)
    yield "PATCH", one, _with(desk, attach.patch)
    yield "POST", f"{one}/resize", _with(desk, attach.resize)
    yield "POST", f"{one}/createSnapshot", _with(desk, images.create_snapshot)
    for verb in ("addResourcePolicies", "removeResourcePolicies"):
        yield "POST", f"{one}/{verb}", functools.partial(disks.policies, desk, verb=verb)
    yield "POST", f"{one}/setLabels", _label(desk, "disks")
    yield from _policies(desk, "disks", _ZONAL)


def _images(desk: Desk) -> Iterator[Entry]:
    here, one = "/global/images", "/global/images/{name}"
    yield "GET", here, _with(desk, images.list_images)
    yield "POST", here, _with(desk, images.insert)
    yield "GET", f"{here}/family/{{name}}", _with(desk, images.get_from_family)
    yield "GET", one, _with(desk, images.get)
    yield "DELETE", one, lambda call: images.delete(desk, call, "images")
    yield "PATCH", one, _with(desk, images.patch)
    yield "POST", f"{one}/deprecate", _with(desk, images.deprecate)
    yield from _owned(desk, "images")
    yield "GET", "/zones/{anywhere}/imageFamilyViews/{name}", _with(desk, images.family_view)
    get, listed, _ = _kept(desk, "snapshots", "snapshot")
    yield "GET", "/global/snapshots", listed
    yield "POST", "/global/snapshots", _with(desk, images.insert_snapshot)
    yield "GET", "/global/snapshots/{name}", get
    yield "DELETE", "/global/snapshots/{name}", lambda call: images.delete(desk, call, "snapshots")
    yield from _owned(desk, "snapshots")
    get, listed, _ = _kept(desk, "machineImages", "machineImage")
    yield "GET", "/global/machineImages", listed
    yield "POST", "/global/machineImages", _with(desk, machineimages.insert)
    yield "GET", "/global/machineImages/{name}", get
    yield "DELETE", "/global/machineImages/{name}", _with(desk, machineimages.delete)
    yield from _owned(desk, "machineImages")


def _owned(desk: Desk, collection: str) -> Iterator[Entry]:
    """Labels and policies of what is kept for the whole project."""
    yield "POST", f"/global/{collection}/{{name}}/setLabels", _label(desk, collection)
    yield from _policies(desk, collection, "/global")


def _policies(desk: Desk, collection: str, place: str) -> Iterator[Entry]:
    one = f"{place}/{collection}/{{name}}"
    yield "GET", f"{one}/getIamPolicy", lambda call: images.get_policy(desk, call, collection)
    yield "POST", f"{one}/setIamPolicy", lambda call: images.set_policy(desk, call, collection)


def _groups(desk: Desk) -> Iterator[Entry]:
    yield "GET", "/aggregated/instanceGroupManagers", _with(desk, groups.aggregate)
    yield "GET", "/aggregated/instanceGroups", _with(desk, groups.aggregate_groups)
    for place in (_ZONAL, _REGIONAL):
        here, one = f"{place}/instanceGroupManagers", f"{place}/instanceGroupManagers/{{name}}"
        yield "GET", here, _with(desk, groups.list_groups)
        yield "POST", here, _with(desk, groups.insert)
        yield "GET", one, _with(desk, groups.get)
        yield "PATCH", one, _with(desk, groups.patch)
        yield "DELETE", one, _with(desk, groups.delete)
        yield "POST", f"{one}/resize", _with(desk, groups.resize)
        yield "POST", f"{one}/setInstanceTemplate", _with(desk, groups.set_template)
        yield "POST", f"{one}/listManagedInstances", _with(desk, groups.managed)
        yield "GET", f"{one}/listErrors", _with(desk, groups.errors)
        for verb in ("abandonInstances", "deleteInstances", "recreateInstances"):
            yield "POST", f"{one}/{verb}", functools.partial(groups.end_members, desk, verb=verb)
        yield "GET", f"{place}/instanceGroups", _with(desk, groups.list_instance_groups)
        yield "GET", f"{place}/instanceGroups/{{name}}", _with(desk, groups.get_group)
        yield "POST", f"{place}/instanceGroups/{{name}}/listInstances", _with(desk, groups.group_instances)


def _operations(desk: Desk) -> Iterator[Entry]:
    get, listed, aggregate = _kept(desk, "operations", "operation")

    def wait(call: Call) -> Doc:
        return desk.operations.wait(call.ref("operations"), patience_s=120.0)

    def delete(call: Call) -> Doc:
        if desk.find(call.ref("operations"))["status"] != "DONE":
            raise Refused(400, "resourceNotReady", "The operation is not done yet.")
        desk.store.drop(call.ref("operations"))
        return {}

    yield "GET", "/aggregated/operations", aggregate
    for place in ("/global", _ZONAL, _REGIONAL):
        yield "GET", f"{place}/operations", listed
        yield "GET", f"{place}/operations/{{name}}", get
        yield "POST", f"{place}/operations/{{name}}/wait", wait
        yield "DELETE", f"{place}/operations/{{name}}", delete


def _plain(desk: Desk) -> Iterator[Entry]:
    places = {GLOBAL: "/global", "zones": _ZONAL, "regions": _REGIONAL}
    for kind in plain.KINDS:
        for scope in kind.scopes:
            here = f"{places[scope]}/{kind.collection}"
            yield "GET", here, _with(desk, kind.list)
            yield "POST", here, _with(desk, kind.insert)
            yield "GET", f"{here}/{{name}}", _with(desk, kind.get)
            yield "PATCH", f"{here}/{{name}}", _with(desk, kind.patch)
            yield "PUT", f"{here}/{{name}}", _with(desk, kind.patch)
            # Of an autoscaler the name is in the query.
            for method in ("PATCH", "PUT"):
                yield method, here, _with(desk, kind.patch)
            yield "DELETE", f"{here}/{{name}}", _with(desk, kind.delete)
            yield "POST", f"{here}/{{name}}/setLabels", _with(desk, kind.label)
            for verb in kind.setters:
                yield "POST", f"{here}/{{name}}/{verb}", _with(desk, kind.patch)
        yield "GET", f"/aggregated/{kind.collection}", _with(desk, kind.aggregate)
    for collection, (name, scopes) in plain.EMPTY.items():
        _, listed, aggregate = _kept(desk, collection, name)
        for scope in scopes:
            yield "GET", f"{places[scope]}/{collection}", listed
        yield "GET", f"/aggregated/{collection}", aggregate


def _unknown(request: Request) -> Answer:
    raise not_found(f"{request.method} {request.path} is not answered here")


# What every request goes through


class Limits:
    """How many requests a zone answers in a second, where `outlast local set ZONE --rate` says so."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._lock = threading.Lock()
        self._left: dict[tuple[str, float], tuple[float, float]] = {}

    def take(self, scope: str) -> None:
        zone = scope.removeprefix("zones/")
        rate = self._desk.cloud.zone_settings().get(zone, {}).get("rate") if scope.startswith("zones/") else None
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
            raise Refused(429, "rateLimitExceeded", told, headers={"Retry-After": "1"})


def _without(left: dict[tuple[str, float], tuple[float, float]], zone: str) -> dict[tuple[str, float], Any]:
    return {key: value for key, value in left.items() if key[0] != zone}


def _answer(desk: Desk, limits: Limits, handler: Handler, request: Request) -> Answer:
    call = _call(request)
    limits.take(call.scope)
    check_token(desk, request)
    if (prior := desk.operations.asked_before(call.project, call.query.get("requestId", ""))) is not None:
        return json_answer(render(prior, call.base))
    try:
        doc = handler(call)
    except OutlastError as problem:
        raise _refusal(problem) from problem
    if request.method == "DELETE" and not doc:
        return Answer(status=204)
    return json_answer(render(doc, call.base))


def _call(request: Request) -> Call:
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


def check_token(desk: Desk, request: Request) -> None:
    """A machine may do what its scopes allow; whoever else asks is the owner of this computer."""
    token = _TOKEN.fullmatch(request.headers.get("authorization", ""))
    if token is None:
        return
    for _, doc in desk.store.each("instances"):
        if doc.get("_machine") == token[1]:
            scopes = {
                scope.rpartition("/")[2] for account in doc.get("serviceAccounts", []) for scope in account["scopes"]
            }
            allowed = _SCOPES | ({"compute.readonly"} if request.method == "GET" else set())
            if not scopes & allowed:
                raise Refused(403, "insufficientPermissions", "Request had insufficient authentication scopes.")


def _refusal(problem: OutlastError) -> Refused:
    match problem:
        case NotFound():
            return Refused(404, "notFound", problem.message)
        case Denied():
            return Refused(403, "forbidden", problem.message)
        case Throttled():
            return Refused(429, "rateLimitExceeded", problem.message)
        case _:
            return Refused(503, "backendError", problem.message)
